//! Counts of events that were not counted all the time.
//!
//! Where more events want the processor's unit than fit in it, the kernel lets them take turns, and says of each how
//! long it was on and how long of that it was counted. What would have been counted is then estimated, for each
//! stretch between two reads by itself: a total that is scaled by the ratio of totals would charge one task for how
//! another one was counted, and could go back.

/// How long an event was on, and how long of that it was counted, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// On.
    pub enabled_ns: u64,
    /// Counted.
    pub running_ns: u64,
}
