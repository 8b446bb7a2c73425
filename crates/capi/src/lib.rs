//! The C face of dormouse: what `include/dormouse/*.h` declare. The headers are the documentation for users.
//!
//! The layouts that C and Rust share are `repr(C)`, begin with their size where a caller provides them, and grow at
//! their end only; `layout` compares them with the committed headers. Every function keeps `errno`, and no
//! panic leaves one.
//!
//! Exported are the names that begin with `dormouse_`, of the version in `dormouse.map`.
//!
//! # Safety
//!
//! C promises what its compiler does not check: that a pointer is NULL or leads to what its type says, that keys and
//! probes are static, and that a batch, a list or a lease is used by one thread at a time and not after its
//! end. What can be told at little cost is told: NULL, misaligned pointers, structures of an unknown size.

// Where sites are not patched there is no assembler that could lay them down from C.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(any(dormouse_fallback, miri, loom))))]
#![deny(unsafe_code)]

mod error;
mod host;
mod keys;
#[cfg(test)]
mod layout;
mod list;
mod probe;
