//! Everything that differs between processors, for tests of walks: the registers of interrupted
//! code, and code that a test writes.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

pub(crate) use processor::{COUNTS, FRAME, UNCOVERED, interrupted, written};

/// `tgkill` without an entry in the tables, longer than padding.
pub(crate) type Uncovered = unsafe extern "C" fn(libc::c_int, libc::c_int, libc::c_int) -> libc::c_int;
