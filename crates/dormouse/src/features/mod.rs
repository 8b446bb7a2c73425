//! The features, each in a module of its own: `mod.rs` has the functions that a service calls,
//! `engine` the work on a thread of dormouse's, `verb` the answers to clients.

pub(crate) mod budget;
pub(crate) mod cancelled;
mod clients;
pub(crate) mod cost;
pub(crate) mod hello;
mod keys;
pub(crate) mod learning;
pub(crate) mod limit;
pub mod locks;
pub(crate) mod long_polls;
pub mod metrics;
pub(crate) mod objectives;
#[cfg(feature = "opentelemetry")]
pub mod opentelemetry;
pub mod profile;
pub mod publish;
pub mod recorder;
pub(crate) mod sleep;
pub(crate) mod stalls;
pub(crate) mod stat;
pub(crate) mod tasks;
mod trace;
#[cfg(feature = "tracing")]
pub mod tracing;
pub mod triggers;
pub mod waits;
pub(crate) mod watch;
