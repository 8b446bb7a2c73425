//! Waits that end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A time limit longer than anything takes that does not hang, even on a busy machine.
pub const HANG: Duration = Duration::from_secs(120);

/// Waits until `is_so` returns true. The test fails if that takes longer than [`HANG`].
#[track_caller]
pub fn eventually(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < HANG, "not so after {HANG:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sets a flag when it is dropped, so that threads which work until then also end when a test
/// fails.
#[derive(Debug)]
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
