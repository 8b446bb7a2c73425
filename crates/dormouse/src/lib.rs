//! perf for the inside of your process.
//!
//! A service embeds this crate; the `dormouse` command looks into the service while it runs.
//!
//! ```no_run
//! use dormouse::Group;
//!
//! async fn brew(cups: u32) {
//!     dormouse::probe!("brew.start", cups);
//!     // …
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! dormouse::init()?;
//! let orders = Group::new("POST /orders");
//! orders.instrument(brew(2)).await;
//! # Ok(())
//! # }
//! ```
//!
//! - [`probe!`] and [`macro@probed`]: named places with fields that sleep behind a static key;
//! - [`Group`]: CPU time, polls and tasks per route, job or whatever the service calls its work. Nothing is counted until
//!   somebody asks ([`Group::count`], [`count`], the command, `DORMOUSE_COUNT`);
//! - [`thread`], [`mod@tokio`] and [`mod@tower`] (features `tokio`, `tower`), [`inherit()`], [`inherit_fn`], [`carry`]: work
//!   that is handed on and stays with its group;
//! - [`Group::budget`], [`budgeted`]: who is told when a group, or one request, has used so much CPU time;
//! - [`static_key!`], [`likely!`], [`unlikely!`]: branches of the service's own (see [`keys`]);
//! - [`Alloc`]: the global allocator, with a counter that sleeps;
//! - [`mod@tracing`] (feature `tracing`): the `tracing` macros with callsites that sleep behind static keys;
//! - [`init`]: the agent, a thread that answers the command. Without it everything works in-process.
//!
//! # Promises to the host
//!
//! Nothing here aborts the process, panics into it or waits on a path that serves requests. The agent is off
//! until [`init`] is called. Asleep, a probe is one instruction; records never block, they are dropped and
//! counted.

#![deny(unsafe_code)]

mod adapt;
mod agent;
mod budget;
mod environment;
mod group;
mod instrument;
mod probe;
pub mod record;
mod recorder;
mod tasks;
#[cfg(feature = "tracing")]
pub mod tracing;
mod value;
pub mod wire;

#[cfg(feature = "tokio")]
pub use adapt::tokio;
#[cfg(feature = "tower")]
pub use adapt::tower;
pub use adapt::{
    inherit::{Carried, Inherited, carry, inherit, inherit_fn},
    thread,
};
pub use agent::{Agent, InitError, init};
pub use budget::{BudgetError, Budgeted, Counted, TaskBudget, budgeted};
pub use dormouse_events::{Alloc, Counter, Counting, Event};
pub use dormouse_keys::{Batch, BatchReport, Key, Lease, StaticKey, likely, static_key, unlikely};
pub use dormouse_macros::probed;
pub use group::{Group, GroupStat, MAX_GROUPS, count};
pub use instrument::{Entered, Instrumented, Task, idle};
pub use probe::Probe;
pub use recorder::{Trace, TraceError, trace};
pub use value::Value;

pub use dormouse_clock as clock;
pub use dormouse_events as events;
pub use dormouse_keys as keys;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So do the guide's.
#[cfg(all(doctest, feature = "tokio", feature = "tower"))]
#[doc = include_str!("../../../docs/guide/attribution.md")]
struct Attribution;

/// What the macros expand to; not for use by hand.
#[doc(hidden)]
pub mod macros {
    pub use crate::probe::{Scope, point};
    #[cfg(feature = "tracing")]
    pub use tracing;
}
