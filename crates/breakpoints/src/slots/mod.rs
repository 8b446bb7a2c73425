//! Accounting of slots for breakpoints: whether one more fits into the few debug registers.
//!
//! A processor has few debug registers (x86: four). A breakpoint of a processor takes one there for
//! as long as it exists, and a breakpoint of a task takes one wherever the task runs. [`Slots`]
//! decides, before anything is armed, whether a breakpoint still fits, and if not, which holders
//! are in the way.
//!
//! ```
//! use dormouse_breakpoints::{
//!     Cpu, Error, Registers, SlotKind, SlotRequest, Slots, Target, TaskId,
//! };
//!
//! # fn main() -> Result<(), Error> {
//! let slots = Slots::new(Registers::X86, 2)?;
//! let watch = SlotRequest::new(Target::Task(TaskId(7)), SlotKind::Data);
//! let mut held = slots.reserve_all(&[watch; 4])?;
//!
//! let Err(Error::NoSpace { free, holders, .. }) = slots.reserve(watch) else {
//!     panic!("a fifth fits")
//! };
//! assert_eq!((free, holders[0].target, holders[0].slots), (0, Target::Task(TaskId(7)), 4));
//!
//! held.pop();
//! slots.reserve(SlotRequest::new(Target::Cpu(Cpu(0)), SlotKind::Data))?;
//! # Ok(())
//! # }
//! ```
//!
//! # Rules
//!
//! The rules are those of the Linux kernel (`kernel/events/hw_breakpoint.c`), for each kind of
//! register by itself. With `H` registers, `C[c]` slots of processor `c` itself, `n(T, c)` slots
//! that task `T` takes on `c`, and weight `w`:
//!
//! | request | fits if |
//! |---|---|
//! | processor `c` | `C[c] + max over T of n(T, c) + w <= H` |
//! | task `T` on processor `c` | `C[c] + n(T, c) + w <= H` |
//! | task `T` wherever it runs | `max over c of (C[c] + n(T, c)) + w <= H` |
//!
//! Tasks combine by maximum, because no two run on one processor at once; tasks and processors add
//! up. Slots are taken when they are reserved, not when something is armed, and two breakpoints on
//! one address take two.
//!
//! A *processor* is a thing that has registers and runs one task at a time: with async tasks, a
//! worker thread.
//!
//! # Cost
//!
//! A task's request takes one lock out of 64 and visits that task's own breakpoints, at most `H` of
//! them unless some are bound to a processor; neither the number of tasks nor that of processors
//! matters. A processor's request takes all locks, and is slow.
//!
//! # Things it does not do
//!
//! It arms nothing and has no addresses. It does not include what other processes or a debugger
//! hold.

mod admission;
mod cpus;
mod histogram;
mod lock;
#[cfg(any(test, feature = "oracle"))]
#[doc(hidden)]
pub mod oracle;
mod shard;
mod table;

pub use admission::{Reservation, Slots};
