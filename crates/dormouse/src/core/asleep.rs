//! Whether a client has put dormouse in this process to sleep.
//!
//! The agent's thread alone writes it. A forked child is asleep as its parent is, until its own
//! agent wakes it.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_protocol::Asleep;
use dormouse_sys::clock::monotonic_ns;

use crate::core::panics;

/// When the sleep began, in nanoseconds of the monotonic clock; 0: awake.
static SINCE: AtomicU64 = AtomicU64::new(0);
/// The user and the process that began it, 32 bits each.
static BY: AtomicU64 = AtomicU64::new(0);

/// Whether dormouse is asleep.
pub(crate) fn is_asleep() -> bool {
    SINCE.load(Ordering::Relaxed) != 0
}

/// The sleep, if there is one.
pub(crate) fn asleep() -> Option<Asleep> {
    let since = Some(SINCE.load(Ordering::Relaxed)).filter(|&since| since != 0)?;
    let by = BY.load(Ordering::Relaxed);
    let for_ms = monotonic_ns().saturating_sub(since) / 1_000_000;
    Some(Asleep { for_ms, uid: (by >> 32) as u32, pid: by as u32 })
}

/// Begins a sleep by that user and process.
pub(crate) fn begin(uid: u32, pid: u32) {
    BY.store(u64::from(uid) << 32 | u64::from(pid), Ordering::Relaxed);
    SINCE.store(monotonic_ns().max(1), Ordering::Relaxed);
    panics::pause(true);
}

/// Ends it.
pub(crate) fn end() {
    SINCE.store(0, Ordering::Relaxed);
    panics::pause(false);
}
