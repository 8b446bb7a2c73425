//! Events that the kernel counts behind a descriptor: those of the processor, and moves between
//! processors.
//!
//! Each thread needs a descriptor for each of these events. It opens them at its first read after
//! counting has begun, and closes them when counting ends or when the thread does. All threads
//! together use at most a quarter of the descriptors that the process may open. A thread that
//! cannot open one does without: its count stands still, its times show that nothing was counted,
//! and the reason is counted here.
//!
//! A read is `rdpmc` where the kernel permits it and the event is in the unit, otherwise a system
//! call. For how long an event was enabled is the thread's CPU time; for how long it waited for its
//! turn is what the kernel reports.
//!
//! The processor's own events are experimental: they were never tried on a machine with a PMU. The
//! rest is tested with the kernel's own events.
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
