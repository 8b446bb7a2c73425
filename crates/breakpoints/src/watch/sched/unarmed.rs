//! The reasons why a task of a group runs unarmed, as reports name them.

/// The reason why a task of the group ran unarmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unarmed {
    /// The thread has no block, its row was just shut, or its registers were being counted.
    Busy,
    Budget,
    Limit,
    Register,
    Filtered,
    Denied,
}

/// In the order of [`Unarmed`].
pub(super) const REASONS: [&str; 6] = [
    "the thread was not to be found, or other watches were beginning or ending just then",
    "a quarter of the descriptors that the process may open is in use (ulimit -n)",
    "no descriptor was left (ulimit -n)",
    "no debug register of the thread was free",
    "a seccomp filter of the thread might end the process for perf_event_open",
    "the kernel refused the event",
];
