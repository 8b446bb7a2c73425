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
//! # async fn main() {
//! // The service goes on without the agent.
//! if let Err(why) = dormouse::init() {
//!     eprintln!("nobody can look in: {why}");
//! }
//! let orders = Group::new("POST /orders");
//! orders.instrument(brew(2)).await;
//! # }
//! ```
//!
//! - [`probe!`] and [`macro@probed`]: named places with fields that sleep behind a static key;
//! - [`Group`]: CPU time, polls and tasks per route, job, or other kind of work. Nothing is counted
//!   until it is requested ([`Group::start_counting`], [`start_counting`], the command,
//!   `DORMOUSE_COUNT`);
//! - [`thread`], [`mod@tokio`] and [`mod@tower`] (features `tokio`, `tower`), [`inherit()`],
//!   [`inherit_fn`], [`carry`]: keep work that is handed on in its group; [`outside`]: keeps work
//!   out of all groups;
//! - `dormouse::rayon` (feature `rayon`): parallel iterators and rayon's functions in groups;
//! - `dormouse::axum` and `dormouse::hyper` (features `axum`, `hyper`): a group for connections;
//! - `dormouse::actix` (feature `actix`): a middleware that charges requests to their routes;
//! - [`Group::budget`], [`budgeted`]: a limit of CPU time for a group, or for one request, with a
//!   function that is called when it is used up;
//! - [`Group::objective`], [`objectives`]: how many requests were answered within a time, exactly;
//! - [`Watch`]: reports each access to a variable, with thread, task, group, and the values before
//!   and after;
//! - [`mod@profile`]: which function uses the CPU time of a group, allocates, or faults; in pprof's
//!   format, and at `/debug/pprof/` of the host's own server;
//! - [`mod@metrics`]: all of this for Prometheus and OpenTelemetry, on a route of the host's own;
//! - [`mod@recorder`]: a flight recorder, which keeps the last records of probes that stay awake;
//! - [`mod@waits`]: where the tasks of a group spend their time: on a CPU, stalled, runnable,
//!   awaiting; with histograms of latencies, polls, delays and waits;
//! - [`set_trace_context`]: the distributed trace of a request, for exemplars, files and timelines;
//!   `dormouse::opentelemetry` (features `opentelemetry`, `opentelemetry-context`) takes it from
//!   the service's own tracer, and shows groups to its meter;
//! - [`long_polls`]: reports polls that keep a worker, while they last, with the stack of their
//!   thread;
//! - [`static_key!`], [`likely!`], [`unlikely!`]: branches of the service's own (see [`keys`]);
//! - [`Alloc`]: a global allocator that can count allocations;
//! - [`mod@tracing`] (feature `tracing`): the `tracing` macros behind static keys, asleep but for
//!   warnings and errors;
//! - [`init`]: starts the agent, a thread that answers the command. Without it everything works
//!   in-process.
//!
//! # Promises to the host
//!
//! Dormouse never aborts the process, panics into it or waits on a path that serves requests. The
//! agent is off until [`init`] starts it. Asleep, a probe is one instruction. A record never
//! blocks: if there is no room it is dropped and counted.
//!
//! A host in C or C++ that calls Rust of its own must disable cancellation (`pthread_cancel`)
//! around such calls: a thread that is cancelled inside is unwound by force, over frames whose
//! destructors Rust must run, and dormouse contains cancellation points. The functions of
//! `dormouse.h` disable it themselves.

#![deny(unsafe_code)]

mod adapt;
mod agent;
mod core;
mod doctor;
mod environment;
mod features;
mod init;
mod lookout;
mod web;

pub use self::core::calls::{Call, InstrumentedCall};
pub use self::core::ends::{MAX_OUTCOMES, outcome};
pub use self::core::group::{Group, GroupStat, MAX_NAME, start_counting};
pub use self::core::numbered::NumberedTask;
pub use self::core::probe::Probe;
pub use self::core::registry::MAX_GROUPS;
pub use self::core::results::InstrumentedResult;
pub use self::core::task::{Entered, Instrumented, Task, idle};
pub use self::core::trace::{Trace, TraceError, trace};
pub use self::core::trace_context::{TraceContext, set_trace_context};
pub use self::core::value::Value;
#[cfg(feature = "actix")]
pub use adapt::actix;
#[cfg(feature = "axum")]
pub use adapt::axum;
#[cfg(feature = "hyper")]
pub use adapt::hyper;
#[cfg(feature = "rayon")]
pub use adapt::rayon;
#[cfg(feature = "tokio")]
pub use adapt::tokio;
#[cfg(feature = "tower")]
pub use adapt::tower;
pub use adapt::{
    inherit::{Carried, Inherited, carry, inherit, inherit_fn},
    outside::{Outside, outside},
    part::{Part, part},
    thread,
};
pub use agent::{Agent, InitError};
pub use dormouse_breakpoints::{
    Access, Coverage, HitStackEnd, WatchHit, WatchReport, WatchSite, WatchSpec, WatchState,
};
pub use dormouse_events::{Alloc, Counter, Counting, Event};
pub use dormouse_keys::{Batch, BatchReport, Key, Lease, StaticKey, likely, static_key, unlikely};
pub use dormouse_macros::probed;
pub use dormouse_protocol::{Objective, ObjectiveError, ObjectiveRow, OutcomesRow};
pub use dormouse_waits::calls::CallKind;
pub use features::budget::{BudgetError, BudgetScope, Budgeted, TaskBudget, budgeted};
pub use features::locks as sync;
pub use features::long_polls::{LongPoll, LongPollNow, LongPolls, LongPollsError, long_polls};
pub use features::objectives::{Objectives, ObjectivesError, objectives};
pub use features::profile::{ProfileError, ProfileRun, ProfileSpec};
pub use features::publish::{PublishError, Publishing};
pub use features::recorder::{Recorder, RecorderError};
pub use features::stalls::ThreadIn;
pub use features::waits::Waiting;
pub use features::watch::{Watch, WatchError};
pub use init::init;

pub use self::core::record;
#[cfg(feature = "opentelemetry")]
pub use features::opentelemetry;
#[cfg(feature = "tracing")]
pub use features::tracing;
pub use features::{metrics, profile, publish, recorder, triggers, waits};

pub use dormouse_breakpoints as breakpoints;
pub use dormouse_clock as clock;
pub use dormouse_events as events;
pub use dormouse_keys as keys;

/// The README's example compiles.
#[cfg(all(doctest, feature = "axum", feature = "tower", feature = "tracing"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// So does that of the guide's first page.
#[cfg(all(doctest, feature = "axum", feature = "tower"))]
#[doc = include_str!("../guide/start.md")]
struct Start;

/// So do those of the page on groups.
#[cfg(all(doctest, feature = "axum", feature = "hyper", feature = "rayon", feature = "tower"))]
#[doc = include_str!("../guide/attribution.md")]
struct Attribution;

/// And that of the page on profiles.
#[cfg(doctest)]
#[doc = include_str!("../guide/profile.md")]
struct Profiles;

/// And that of the page on waits.
#[cfg(doctest)]
#[doc = include_str!("../guide/waits.md")]
struct Waits;

/// And those of the page on calls.
#[cfg(all(doctest, feature = "tower", feature = "tracing-calls"))]
#[doc = include_str!("../guide/calls.md")]
struct Calls;

/// And those of the page on locks.
#[cfg(all(doctest, feature = "locks", feature = "tokio"))]
#[doc = include_str!("../guide/locks.md")]
struct Locks;

/// And that of the page on the flight recorder.
#[cfg(doctest)]
#[doc = include_str!("../guide/record.md")]
struct Recorded;

/// And that of the page on publishing.
#[cfg(doctest)]
#[doc = include_str!("../guide/publish.md")]
struct Published;

/// And that of the page on watches.
#[cfg(all(doctest, feature = "symbols"))]
#[doc = include_str!("../guide/watch.md")]
struct Watching;

/// And those of the page on metrics.
#[cfg(all(doctest, feature = "axum", feature = "tower"))]
#[doc = include_str!("../guide/metrics.md")]
struct Measured;

/// And those of the page on production.
#[cfg(doctest)]
#[doc = include_str!("../guide/production.md")]
struct Production;

/// And that of the page on experiments.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/experiment.md")]
struct Experiments;

/// Answers that the command computes itself for processes without an agent.
#[doc(hidden)]
pub mod answers {
    pub use crate::features::stat::counting::countable_events;
    pub use crate::features::watch::rows::{watch_row, watch_spec};
}

/// The macros expand to these items; do not use them directly.
#[doc(hidden)]
pub mod macros {
    pub use crate::core::probe::{ProbedScope, point};
    #[cfg(feature = "tracing")]
    pub use tracing;
}
