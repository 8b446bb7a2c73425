//! A number that grows with each change of what is counted, and the key behind which the hook in
//! the switch sleeps.
//!
//! Each change of what is counted increments the generation. A span stores the generation in which
//! it began. A thread that finds a newer one knows that another thread may have flushed its span,
//! and that its context may count other events now. So one comparison shows that nothing has
//! changed.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_keys::static_key;

static_key! {
    /// On while anything is counted for anybody.
    pub(crate) static SWITCH: "dormouse.switch" = false;
}

static CURRENT: AtomicU64 = AtomicU64::new(2);

/// A number that grows with each change: odd while anything is counted, even while nothing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(pub(crate) u64);

impl Generation {
    /// The generation of a span that began while nothing was counted anywhere. No change ever has
    /// this number.
    pub(crate) const ASLEEP: Self = Self(0);

    #[inline]
    pub(crate) fn current() -> Self {
        // Pairs with the store in `advance`: a thread that sees the generation sees the event sets
        // of its contexts.
        Self(CURRENT.load(Ordering::Acquire))
    }

    /// Whether anything is counted in it.
    #[inline]
    pub(crate) fn counts(self) -> bool {
        !self.0.is_multiple_of(2)
    }

    /// Moves on to the next generation, in which something is counted or not. One thread at a time
    /// does this: the one that has the lock of changes, or the only thread of a fork child.
    pub(crate) fn advance(counts: bool) -> Self {
        let next = ((CURRENT.load(Ordering::Relaxed) | 1) + 1) | u64::from(counts);
        // Pairs with the load in `current`.
        CURRENT.store(next, Ordering::Release);
        Self(next)
    }
}
