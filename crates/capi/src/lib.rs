//! The C interface of dormouse, declared in `include/dormouse/*.h`. The headers are the
//! documentation for users.
//!
//! The layouts that C and Rust share are `repr(C)`, begin with their size where a caller provides
//! them, and grow only at their end; `layout` compares them with the committed headers. Every
//! function keeps `errno`, no panic leaves one, and no thread is cancelled inside of one
//! (`call.rs`).
//!
//! The exported names are those that begin with `dormouse_`, with the version in `dormouse.map`,
//! and the thread-local `otel_thread_ctx_v1`.
//!
//! # Safety
//!
//! C promises what its compiler does not check. The `unsafe` code cites these promises by number:
//!
//! 1. A pointer is NULL or points to a value of its type, for the time of the call.
//! 2. Keys and probes are static (the header's macros define them).
//! 3. A structure that the caller provides begins with its size (GROWTH).
//! 4. A batch, a list, a lease, a watch, a profile, waits, metrics or a publishing are NULL or come
//!    from the function that begins them. One thread at a time uses them (THREADS), and none after
//!    the function that ends them. (Any number of threads may read waits.)
//! 5. A string ends with a NUL. An array has as many elements as the count beside it.
//! 6. An object is registered by the header's macros, and stays until it is unregistered.
//!
//! The functions check what is cheap to check: NULL, misaligned pointers, structures of an unknown
//! size.

// Where sites are not patched there is no assembler that could lay them down from C.
#![cfg(not(any(dormouse_fallback, miri, loom)))]
#![deny(unsafe_code)]

mod agent;
mod call;
mod error;
mod groups;
mod keys;
#[cfg(test)]
mod layout;
mod list;
mod metrics;
mod probe;
mod profile;
mod publish;
mod waits;
mod watch;
