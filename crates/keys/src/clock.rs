//! The clock for leases that end by time. Tests replace it by a clock that stands still until they
//! move it.

use std::time::Instant;

#[cfg(not(test))]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
pub(crate) fn now() -> Instant {
    fake::now()
}

#[cfg(test)]
pub(crate) mod fake {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    static PASSED_NS: AtomicU64 = AtomicU64::new(0);

    pub(crate) fn now() -> Instant {
        static START: OnceLock<Instant> = OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_nanos(PASSED_NS.load(Ordering::Relaxed))
    }

    /// Moves the clock on. This wakes no thread: see [`crate::timer::look`].
    #[cfg(not(loom))]
    pub(crate) fn pass(time: Duration) {
        PASSED_NS.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}
