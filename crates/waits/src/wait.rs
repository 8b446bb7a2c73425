//! A wait of a task: the time between two of its polls.

use crate::slot::wake_stamp;

/// A wait that is over, by stamps that do not go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) since: u64,
    pub(crate) woken: u64,
    pub(crate) ends: u64,
}

impl Wait {
    /// A wait that ends now. `woken` is the wake, or 0 if none was seen. Counters of two processors
    /// may differ, so stamps are put in order.
    #[inline]
    pub(crate) fn new(since: u64, woken: u64, now: u64) -> Self {
        let ends = now.max(since);
        let woken = if woken == 0 { ends } else { wake_stamp(woken).clamp(since, ends) };
        Self { since, woken, ends }
    }

    #[inline]
    pub(crate) fn awaited(self) -> u64 {
        self.woken - self.since
    }

    #[inline]
    pub(crate) fn runnable(self) -> u64 {
        self.ends - self.woken
    }
}
