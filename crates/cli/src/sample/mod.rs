//! Samples of a process, and the difference of two.

pub(crate) mod delta;
pub(crate) mod events;
pub(crate) mod objectives;
pub(crate) mod profiling;
pub(crate) mod source;
pub(crate) mod tasks;
pub(crate) mod totals;

/// Why no event has a count of work in no group.
pub(crate) const IN_NO_GROUP: &str =
    "counted while groups run: how often it happened in no group is not known";

/// Why rows of threads and the process have no count of an event that groups count: the kernel has
/// no such number, and a service counts while a group runs.
pub(crate) const OF_GROUPS: &str =
    "counted while groups run, and for them alone: the kernel has no such count of threads or the process";
