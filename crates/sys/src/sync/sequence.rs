//! Several words with one writer, or one at a time, which readers read consistently.
//!
//! A writer makes the number odd, writes, and makes it even. It executes no barrier on x86, unless
//! there are other writers. A reader that finds the number even, and the same before and after, has
//! words of one moment.

use std::sync::atomic::Ordering;

crate::atomics!(AtomicU64, fence);

/// How often a reader looks again, before it takes what it sees: the writer may have been
/// preempted.
const PATIENCE: usize = if cfg!(loom) { 2 } else { 100 };

/// A sequence lock: see the module. Zeroed memory is a new one.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Sequence(AtomicU64);

impl Sequence {
    crate::const_unless_loom! {
        /// A lock that nobody writes under.
        pub const fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Releases the lock in a child of a fork, where a thread of the parent may have been writing.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Writes, as the only thread that does.
    #[inline]
    pub fn write<T>(&self, write: impl FnOnce() -> T) -> T {
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

    /// Writes, as one of several threads. Returns `None` without a call of `write` if another
    /// thread is writing, or the caller is a handler that has interrupted a writer.
    #[inline]
    pub fn try_write<T>(&self, write: impl FnOnce() -> T) -> Option<T> {
        let even = self.0.load(Ordering::Relaxed);
        if !even.is_multiple_of(2) {
            return None;
        }
        // Acquire: pairs with the last store of the writer before, whose words are older than ours.
        self.0.compare_exchange(even, even.wrapping_add(1), Ordering::Acquire, Ordering::Relaxed).ok()?;
        // As in `write`.
        fence(Ordering::Release);
        let result = write();
        self.0.store(even.wrapping_add(2), Ordering::Release);
        Some(result)
    }

    /// Returns the result of `read`, and whether it is consistent. It is not if a writer was
    /// writing each time: the reader does not wait for it.
    pub fn read<T>(&self, read: impl Fn() -> T) -> (T, bool) {
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
