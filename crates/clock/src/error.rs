//! What can go wrong outside the reads; reads do not fail.

use std::io;

use crate::tier::Tier;

/// Why a thread could not join a group, the process could not be read exactly, or a tier could not be had.
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
    /// The thread's locals are being destroyed.
    #[error("cannot join the group: this thread is at its end; join earlier")]
    Ended,
    /// The threads of the process cannot be listed.
    #[error(
        "cannot list this process's threads in /proc/self/task: {source}; mount /proc, or read process_cpu_ns"
    )]
    Threads {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The tier does not work here.
    #[error("cannot read clocks by the tier {tier}: {reason}; let the library choose")]
    Tier {
        /// What was asked for.
        tier: Tier,
        /// What its test found.
        reason: String,
    },
}
