//! Groups and their tasks, probes and their records, and how each becomes a row of an answer: every
//! feature uses them, and they use no feature.

pub(crate) mod clock_fault;
pub(crate) mod group;
pub(crate) mod memory;
mod own_probes;
pub(crate) mod panics;
pub(crate) mod probe;
pub mod record;
pub(crate) mod registry;
pub(crate) mod rows;
pub(crate) mod task;
pub(crate) mod tasks;
pub(crate) mod trace;
pub(crate) mod trace_context;
pub(crate) mod value;
