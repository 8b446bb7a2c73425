//! Blocking work of a group that has waited for a thread of its runtime.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_protocol::BlockingRow;

/// The sums of a group. All threads share them: to hand work to another thread costs far more.
#[derive(Debug, Default)]
pub(crate) struct PoolQueue {
    begun: AtomicU64,
    queued_ns: AtomicU64,
}

impl PoolQueue {
    /// Work begins after that time.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "for runtimes of tokio"))]
    pub(crate) fn count(&self, queued_ns: u64) {
        self.queued_ns.fetch_add(queued_ns, Ordering::Relaxed);
        // Release: pairs with the load in `read`.
        self.begun.fetch_add(1, Ordering::Release);
    }

    /// The sums; `None` if nothing was counted.
    pub(crate) fn read(&self) -> Option<BlockingRow> {
        // Acquire: the times of those that are counted are in the sum.
        let begun = self.begun.load(Ordering::Acquire);
        (begun > 0).then(|| BlockingRow { begun, queued_ns: self.queued_ns.load(Ordering::Relaxed) })
    }
}
