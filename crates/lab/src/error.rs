//! Errors of groups and meters.

/// Why a thread cannot join a group, or cannot be measured.
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
    /// There is no such thread in this process.
    #[error("cannot measure thread {tid}: this process has none of that number")]
    NoThread {
        /// The number asked for.
        tid: u32,
    },
}
