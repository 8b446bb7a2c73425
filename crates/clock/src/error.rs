//! Errors. Reads of clocks do not fail.

use std::io;

use dormouse_sys::loader::PinError;

use crate::tier::Tier;

/// Why a thread cannot join a group, the process cannot be read exactly, a budget cannot be
/// watched, or a tier cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Every place of the group is taken.
    #[error(
        "cannot join the group: all its {places} places are taken; spread the threads over several groups"
    )]
    Full {
        /// Places in a group.
        places: usize,
    },
    /// The thread belongs to as many groups as it can.
    #[error("cannot join the group: this thread is in {groups} others, which is the most; leave one of them")]
    TooManyGroups {
        /// Groups that it belongs to.
        groups: usize,
    },
    /// The thread's thread-locals are being destroyed.
    #[error("cannot join the group: this thread is at its end; join earlier")]
    Ended,
    /// The threads of the process cannot be listed.
    #[error(
        "cannot list this process's threads in /proc/self/task: {source}; mount /proc, or read process_cpu_ns"
    )]
    Threads {
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// There is no such thread in this process.
    #[error("cannot measure thread {tid}: this process has none of that number")]
    NoThread {
        /// The number asked for.
        tid: u32,
    },
    /// The measured thread or process has already ended.
    #[error("cannot set a budget: the thread or process that it measures has ended already")]
    MeterEnded,
    /// The thread that watches budgets cannot be started.
    #[error(
        "cannot start the thread that watches CPU budgets: {source}; raise the limit of threads (ulimit -u, pids.max)"
    )]
    Timer {
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The object that contains this library cannot be kept loaded, so it cannot start a thread.
    #[error("cannot watch CPU budgets: {0}")]
    Leaving(#[from] PinError),
    /// The tier does not work here.
    #[error("cannot read clocks by the tier {tier}: {reason}; let the library choose")]
    Tier {
        /// The requested tier.
        tier: Tier,
        /// The result of its test.
        reason: String,
    },
}
