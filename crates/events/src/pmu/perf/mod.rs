//! Events that the kernel counts behind a descriptor: those of the processor, and moves between
//! processors.
//!
//! Each thread needs a separate descriptor for each of them. It gets one at its first read after
//! somebody has begun to count, gives it back when nobody counts any more or when it ends, and all
//! threads together have a quarter of what the process may open. A thread that cannot have one goes
//! without: its count stands still, its times say that nothing was counted, and the reason is
//! counted here.
//!
//! A read is `rdpmc` where the kernel permits it and the event is in the unit, else a system call.
//! How long an event was on is the thread's CPU time; how long it waited for its turn the kernel
//! says.
//!
//! The processor's own events are experimental: no machine with a PMU was at hand to try them on.
//! The rest is tried with the kernel's own events.
//!
//! # Locking
//!
//! `CHANGES` serialises begins and ends. No read takes it.

mod kernel;
mod linux;
mod row;
mod unit;

pub use self::linux::refusals;
pub(super) use self::linux::{KNOWN, arrive, depart};
