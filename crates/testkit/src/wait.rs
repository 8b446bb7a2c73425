//! Waits that end.

use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything takes that does not hang, on a busy machine too.
pub const HANG: Duration = Duration::from_secs(120);

/// Waits until `is_so`. The test fails if that takes longer than [`HANG`].
#[track_caller]
pub fn eventually(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < HANG, "not so after {HANG:?}");
        thread::sleep(Duration::from_millis(1));
    }
}
