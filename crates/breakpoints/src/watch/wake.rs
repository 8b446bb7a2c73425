//! The word by which the keeper is woken: by threads with errands, and by handlers.
//!
//! # Async-signal-safety
//!
//! [`wake`] is signal-safe: an addition, and a system call if the keeper sleeps.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

/// Moves with each wake.
static WORD: AtomicU32 = AtomicU32::new(0);
/// Whether the keeper sleeps, or is about to.
static SLEEPS: AtomicBool = AtomicBool::new(false);

/// Wakes the keeper.
pub(super) fn wake() {
    WORD.fetch_add(1, Ordering::SeqCst);
    // SeqCst, as both accesses in `sleep`: one side sees the other's.
    if SLEEPS.load(Ordering::SeqCst) {
        let _ = futex::wake(&WORD, futex::Flags::PRIVATE, 1);
    }
}

/// The number of wakes so far, for [`sleep`].
pub(super) fn seen() -> u32 {
    WORD.load(Ordering::SeqCst)
}

/// Sleeps until there was a wake since `seen`, or for so long; then it returns true. The keeper
/// alone calls it.
pub(super) fn sleep(seen: u32, at_most: Duration) -> bool {
    let mut is_over = false;
    SLEEPS.store(true, Ordering::SeqCst);
    if WORD.load(Ordering::SeqCst) == seen {
        let timeout = at_most.try_into().ok();
        // Interrupted or woken: the keeper looks again.
        let waited = futex::wait(&WORD, futex::Flags::PRIVATE, seen, timeout.as_ref());
        is_over = waited == Err(Errno::TIMEDOUT);
    }
    SLEEPS.store(false, Ordering::SeqCst);
    is_over
}
