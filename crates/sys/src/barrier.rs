//! A memory barrier that one thread has all others pass, so that theirs costs nothing: `membarrier(PRIVATE_EXPEDITED)`.
//!
//! Of two threads that each store, pass their barrier (the one [`light`], the other [`heavy`]) and load, one sees the
//! other's store. Source: Linux, `membarrier(2)`.

use std::sync::atomic::{Ordering, compiler_fence, fence};

use rustix::thread::{MembarrierCommand, membarrier};

/// The side of those who pass it often: keeps the compiler's order, and no more.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// Registers the process for [`heavy`], which does so itself if it must; false where the kernel refuses.
///
/// # Cost
///
/// The first call of a process with more than one thread waits for a grace period: several milliseconds.
pub fn register() -> bool {
    membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
}

/// The other side: every thread of the process passes a barrier. False where the kernel refuses; then only the caller has.
pub fn heavy() -> bool {
    let pass = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    // Not registered: a fork child, too, may have to be.
    let passed = pass() || register() && pass();
    fence(Ordering::SeqCst);
    passed
}
