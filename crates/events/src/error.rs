//! The errors of choosing events to count. Counting itself does not fail.

/// Why an event cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More events at once than a task can count.
    #[error("{requested} events at once are more than the {limit} that can be counted; ask for fewer")]
    TooMany {
        /// How many were asked for, together with the events of other countings.
        requested: usize,
        /// How many there can be.
        limit: usize,
    },
    /// The process has counted as many different events as it can.
    #[error("no place for {event}: a process can count {limit} different events in its life")]
    TooManyEvents {
        /// The event that was asked for.
        event: &'static str,
        /// How many there can be.
        limit: usize,
    },
    /// The process has counted as many different sets of events as it can.
    #[error(
        "a process can count {limit} different sets of events in its life; ask for one that was counted before"
    )]
    TooManySets {
        /// How many there can be.
        limit: usize,
    },
    /// The hook that counts cannot be woken.
    #[error("nothing can be counted: {why}")]
    Asleep {
        /// The static key's reason.
        why: String,
    },
    /// Asked for by a signal handler that has interrupted the same on its own thread.
    #[error(
        "a signal handler that has interrupted a change or read of the counted events can neither change nor read them"
    )]
    Reentrant,
    /// The context counts it already.
    #[error("{event} is counted already")]
    Twice {
        /// The event that was to be added.
        event: &'static str,
    },
    /// The context does not count it.
    #[error("{event} is not counted here")]
    NotCounted {
        /// The event that was to be removed.
        event: &'static str,
    },
    /// The event is unavailable on this machine.
    #[error("{event} is unavailable: {reason}")]
    Unavailable {
        /// The event that was asked for.
        event: String,
        /// The reason, and what would change it.
        reason: String,
    },
    /// No event has that name.
    #[error("there is no event named {event}; {advice}")]
    Unknown {
        /// The name.
        event: String,
        /// Names that were perhaps meant.
        advice: String,
    },
}
