//! What can go wrong when counters are chosen. Counting itself does not fail.

/// Why an event cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A context has as many counters as it can.
    #[error("no room for {event}: a context holds at most {limit} counters; remove one first")]
    TooMany {
        /// The event that was to be added.
        event: &'static str,
        /// How many counters there can be.
        limit: usize,
    },
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
    /// The event cannot be had on this machine.
    #[error("{event} is unavailable: {reason}")]
    Unavailable {
        /// The event that was asked for.
        event: String,
        /// Why not, and what would change it.
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
