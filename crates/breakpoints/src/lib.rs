//! Watchpoints: which code writes this variable, on every thread, with no thread stopped. Also the
//! accounting of the debug registers that they need.
//!
//! - [`WatchSpec`] describes a watch, [`WatchSpec::arm`] arms it on all present and future threads
//!   of the process, or on none. The [`Watch`] is the guard. Its [`WatchReport`] has the places of
//!   the code that wrote, with counts, values and stacks, and states what it covers.
//! - [`Slots`] is the accounting: whether one more breakpoint fits, and if not, which holders are
//!   in the way. It arms nothing, and is useful by itself.
//!
//! - [`Outside`] watches another process, which need not contain dormouse.
//!
//! Layers, each of which uses only those before it: requests and errors, [`Slots`], watches,
//! watches from outside.

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
    Access, Coverage, HitStackEnd, Watch, WatchHit, WatchReport, WatchSite, WatchSpec, WatchState, held,
    on_hit, on_stray, refusal, registers, sched_in, sched_out, spent_ns, switches,
};
