//! Several words of one writer, which readers see whole.
//!
//! The writer makes the number odd, writes, and makes it even. It executes no barrier on x86. A
//! reader that finds the number even, and the same before and after, has words of one moment.

use std::sync::atomic::Ordering;

use crate::primitive::{AtomicU64, fence};

/// How often a reader looks again, before it takes what it sees: the writer may have been
/// preempted.
const PATIENCE: usize = if cfg!(loom) { 2 } else { 100 };

#[derive(Debug)]
pub(crate) struct Sequence(AtomicU64);

impl Sequence {
    #[cfg(all(test, loom))]
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Writes, as the only thread that does.
    #[inline]
    pub(crate) fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        // Odd already: a signal handler of the writer writes in the midst of it.
        let odd = self.0.load(Ordering::Relaxed) | 1;
        self.0.store(odd, Ordering::Relaxed);
        // Pairs with the fence in `read`: who sees one of the words sees the odd number, too.
        fence(Ordering::Release);
        let result = write();
        // Pairs with the load in `read`: who sees the even number sees all words.
        self.0.store(odd.wrapping_add(1), Ordering::Release);
        result
    }

    /// The result of `read`, and whether it is of one moment: a writer that is always about to
    /// write is not waited for.
    pub(crate) fn read<T>(&self, read: impl Fn() -> T) -> (T, bool) {
        for _ in 0..PATIENCE {
            // Acquire: pairs with the last store in `write`.
            let before = self.0.load(Ordering::Acquire);
            let seen = read();
            // Acquire: pairs with the fence in `write`.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.0.load(Ordering::Relaxed) == before {
                return (seen, true);
            }
            std::hint::spin_loop();
        }
        (read(), false)
    }
}

#[cfg(all(test, loom))]
mod interleavings;
