//! A budget as the timer watches it, and how it ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use dormouse_sys::futex;
use dormouse_sys::process::identity;

use super::meter::CpuMeter;
use super::pace::Pace;
use super::slot::Slot;

/// [`Watch::due`] of one that is not in the queue.
pub(super) const NOT_QUEUED: u64 = u64::MAX;

/// How a budget has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BudgetEnd {
    /// It was used up.
    Exceeded {
        /// CPU time since the budget was made, when the timer saw it: at least the budget.
        used: Duration,
    },
    /// The measured thing has ended before.
    Ended {
        /// CPU time since the budget was made. If the meter cannot return its time at the end, that
        /// of the last reading.
        used: Duration,
    },
    /// It was made before a fork, and this process is the child.
    Forked,
}

pub(super) type Callback = Box<dyn FnOnce(Duration) + Send>;

/// The state that a budget and the timer share.
pub(super) struct Watch<M: ?Sized = dyn CpuMeter> {
    /// The process that it was made in.
    pub(super) process: u64,
    pub(super) start_ns: u64,
    pub(super) target_ns: u64,
    pub(super) pace: Pace,
    /// The place in the timer's queue, or [`NOT_QUEUED`]; the timer's alone.
    pub(super) due: AtomicU64,
    /// Unique in a process.
    pub(super) id: u64,
    pub(super) cancelled: AtomicBool,
    /// 0, or the kind of its end and the time used: see [`Watch::end`].
    pub(super) end: AtomicU64,
    /// 1 when it has ended, for threads that wait.
    pub(super) ended: AtomicU32,
    pub(super) waker: Slot<Waker>,
    pub(super) callback: Slot<Callback>,
    pub(super) meter: M,
}

/// The bits of [`Watch::end`] for its kind, below the nanoseconds used.
const KIND_BITS: u32 = 2;
const EXCEEDED: u64 = 1;
const ENDED: u64 = 2;

impl<M: ?Sized> Watch<M> {
    pub(super) fn is_parents(&self) -> bool {
        self.process != identity::id()
    }

    pub(super) fn end(&self) -> Option<BudgetEnd> {
        // Pairs with the exchange in `finish`: a thread that sees the end reads no less than the
        // timer has read. In one order with the exchanges of the slots.
        let end = self.end.load(Ordering::SeqCst);
        let used = Duration::from_nanos(end >> KIND_BITS);
        match end & ((1 << KIND_BITS) - 1) {
            0 => None,
            EXCEEDED => Some(BudgetEnd::Exceeded { used }),
            _ => Some(BudgetEnd::Ended { used }),
        }
    }

    pub(super) fn used(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.start_ns))
    }
}

impl Watch {
    /// Tells all that wait.
    pub(super) fn finish(&self, end: BudgetEnd) {
        let (kind, used) = match end {
            BudgetEnd::Exceeded { used } => (EXCEEDED, used),
            BudgetEnd::Ended { used } => (ENDED, used),
            BudgetEnd::Forked => (ENDED, Duration::ZERO),
        };
        let used = u64::try_from(used.as_nanos()).unwrap_or(u64::MAX) << KIND_BITS;
        // Pairs with the load in `end`: after everything that the meter's reading has synchronised
        // with. And in one order with the exchanges of the slots: this thread finds a waker, or the
        // thread that puts it there finds the end.
        let _or_before = self.end.compare_exchange(0, used | kind, Ordering::SeqCst, Ordering::SeqCst);
        self.ended.store(1, Ordering::SeqCst);
        futex::wake(&self.ended, i32::MAX.cast_unsigned());
        if self.cancelled.load(Ordering::Relaxed) {
            return;
        }
        if let Some(waker) = self.waker.take() {
            // If it panics, the function is called all the same.
            caught(|| waker.wake());
        }
        if let Some(callback) = self.callback.take()
            && let Some(BudgetEnd::Exceeded { used }) = self.end()
        {
            callback(used);
        }
    }
}

/// Runs code of the host's, which may panic: its hook has said so, and the thread goes on.
pub(super) fn caught(run: impl FnOnce()) {
    let _said = catch_unwind(AssertUnwindSafe(run));
}
