//! Stands in for [`trap`](crate::trap) on processors for which no handler of SIGTRAP exists yet:
//! all but x86-64.
//!
//! It has the types of the real module, so that its callers compile. Nothing can be watched:
//! [`watch`] returns the reason.

use std::io;

pub use crate::trap_types::{Disposition, PerfTrap, Watcher};

/// The reason.
const WHY: &str = "traps are handled on x86-64 only";

/// Always an error.
pub fn watch(_: Watcher) -> io::Result<u64> {
    Err(io::Error::new(io::ErrorKind::Unsupported, WHY))
}

/// False: [`watch`] takes no signal.
pub fn is_used() -> bool {
    false
}

/// Always an error, because no handler was installed.
pub fn disposition() -> io::Result<Disposition> {
    Err(io::Error::new(io::ErrorKind::Unsupported, WHY))
}
