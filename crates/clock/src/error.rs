//! Errors. Reads of clocks do not fail.

use std::io;

use dormouse_sys::loader::PinError;

use crate::tier::Tier;

/// Why the process cannot be read exactly, a budget cannot be watched, or a tier cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The threads of the process cannot be listed.
    #[error(
        "cannot list this process's threads in /proc/self/task: {source}; mount /proc, or read process_cpu_ns"
    )]
    Threads {
        /// The system's answer.
        #[source]
        source: io::Error,
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
