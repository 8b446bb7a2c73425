//! Watchpoints: which code writes this variable, on every thread, with no thread stopped; and the
//! account of the debug registers that they need.
//!
//! - [`WatchSpec`] describes a watch, [`WatchSpec::arm`] arms it on all threads of the process that
//!   are and that will be, or on none. The [`Watch`] is the guard, its [`WatchReport`] has the
//!   places of the code that wrote, with counts, values and stacks, and says what it covers.
//! - [`Slots`] is the account: whether one more breakpoint fits, and which holders are in the way
//!   if not. It arms nothing, and is of use by itself.
//!
//! - [`Outside`] watches another process, with nothing of dormouse in it.
//!
//! Layers, each of which uses those before it alone: requests and errors, [`Slots`], watches, those
//! from outside.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

mod error;
mod outside;
mod request;
mod slots;
mod watch;

pub use dormouse_sys::perf::{Error as PerfError, UserStack};
pub use error::{Error, HeldSlot, SlotHolder};
pub use outside::{Outside, OutsideBudget, OutsideReport, TargetEnd, free_registers};
pub use request::{Cpu, MOST_SLOTS, Registers, SlotKind, SlotRequest, Target, TaskId};
#[cfg(any(test, feature = "oracle"))]
#[doc(hidden)]
pub use slots::oracle;
pub use slots::{Reservation, Slots};
pub use watch::{
    Access, Coverage, Watch, WatchHit, WatchReport, WatchSite, WatchSpec, WatchState, held, on_hit, on_stray,
    refusal, sched_in, sched_out, switches,
};
