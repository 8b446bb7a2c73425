//! Groups and their tasks, probes and their records, and their conversion to rows of an answer:
//! every feature uses these modules, and they use no feature.

pub(crate) mod arrival;
pub(crate) mod asleep;
pub(crate) mod calls;
pub(crate) mod clock_fault;
pub(crate) mod ends;
pub(crate) mod group;
pub(crate) mod library;
pub(crate) mod long_lived;
pub(crate) mod memory;
pub(crate) mod numbered;
pub(crate) mod objectives;
mod own_probes;
pub(crate) mod panics;
pub(crate) mod pool_queue;
pub(crate) mod probe;
pub mod record;
pub(crate) mod registry;
#[cfg(any(feature = "actix", feature = "tower"))]
mod response;
pub(crate) mod results;
pub(crate) mod rows;
#[cfg(feature = "tokio")]
pub(crate) mod runtime_task;
#[cfg_attr(not(feature = "tokio"), expect(dead_code, unreachable_pub, reason = "for runtimes of tokio"))]
pub(crate) mod runtimes;
pub(crate) mod served;
pub(crate) mod task;
pub(crate) mod tasks;
pub(crate) mod trace;
pub(crate) mod trace_context;
pub(crate) mod ungrouped;
pub(crate) mod value;
