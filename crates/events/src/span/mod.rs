//! The span of each thread, where other threads can read it.

mod baseline;
mod seqlock;
mod snapshot;
#[cfg(not(all(test, loom)))]
mod table;

pub(crate) use self::baseline::Delta;
pub(crate) use self::seqlock::{MAX_CONTEXTS, Span};
pub(crate) use self::snapshot::{Pending, Shortcut, Snapshot};
#[cfg(all(test, not(loom)))]
pub(crate) use self::table::SPANS;
#[cfg(not(all(test, loom)))]
pub(crate) use self::table::{live, own, used};
