//! [`trap`](crate::trap) where no handler of SIGTRAP is written yet: other processors than x86-64.
//!
//! The types are those of the real module, so that its callers compile. Nothing can be watched:
//! [`watch`] returns the reason.

use std::io;

/// The reason.
const WHY: &str = "traps are handled on x86-64 only";

/// One hit of an event that traps.
#[derive(Debug, Clone, Copy)]
pub struct PerfTrap {
    /// The event's data.
    pub data: u64,
    /// The thread's next instruction.
    pub ip: usize,
    /// Its frame pointer.
    pub frame: usize,
    /// Its stack pointer.
    pub stack: usize,
    /// 1: the thread blocked the signal.
    pub is_late: u32,
}

/// Called for each hit.
pub type Watcher = fn(&PerfTrap);

/// The action of SIGTRAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Our handler.
    Ours,
    /// The default action, which ends the process.
    Default,
    /// The signal is ignored.
    Ignored,
    /// A handler at this address.
    Other(usize),
}

/// Always an error.
pub fn watch(_: Watcher) -> io::Result<u64> {
    Err(io::Error::new(io::ErrorKind::Unsupported, WHY))
}

/// False: [`watch`] takes no signal.
pub fn is_used() -> bool {
    false
}

/// Always an error, because nobody has asked for the signal.
pub fn disposition() -> io::Result<Disposition> {
    Err(io::Error::new(io::ErrorKind::Unsupported, WHY))
}
