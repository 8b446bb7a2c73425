//! The static key behind which times are taken.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dormouse_clock::{point, stamp, ticks_to_ns};
use dormouse_keys::{Error, Key, Lease, static_key, unlikely};
use dormouse_sys::environment;
use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::process::identity;

use crate::calls;
use crate::cpu;
use crate::exemplars;
use crate::received_gaps;
use crate::returned;
use crate::rows;
use crate::run::{next_run, run_begun};
use crate::slow;

static_key! {
    /// On while times of tasks are requested.
    pub(crate) static WAITS: "dormouse.waits" = false;
}

/// How many [`Waiting`]s of this process live.
static HOLDERS: AtomicU64 = AtomicU64::new(0);
/// A forked child begins another run: most of the tasks that it has copied will never be polled.
static FORGET: Reset = Reset::new(Phase::Waits, forget);

/// As long as this lives, times are taken. Several may exist at once.
///
/// In a forked child, one that the parent made has no effect.
#[derive(Debug)]
#[must_use = "times are taken as long as it lives"]
pub struct Waiting {
    process: u64,
    lease: Lease,
}

impl Waiting {
    /// Begins to take times.
    ///
    /// # Errors
    ///
    /// If the static key cannot be switched. Then nothing has changed.
    ///
    /// # Cost
    ///
    /// A batch of one key if no other exists; the first one of a process takes a millisecond more.
    pub fn start() -> Result<Self, Error> {
        if environment::is_off() {
            return Err(Error::Off);
        }
        FORGET.join();
        // Calibrates the counter: durations are put into buckets as they end.
        _ = point();
        if HOLDERS.load(Ordering::SeqCst) == 0 {
            next_run();
        }
        let lease = WAITS.acquire()?;
        // The others may have ended just before this: then no times were taken in between. One that
        // ends is no longer counted before its lease goes, so a lease that came too late finds 0.
        if HOLDERS.fetch_add(1, Ordering::SeqCst) == 0 {
            next_run();
        }
        Ok(Self { process: identity::id(), lease })
    }

    /// The keys that this value keeps on.
    pub fn keys(&self) -> &[&'static Key] {
        self.lease.keys()
    }

    /// Lets times be taken until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // Before the lease goes. A forked child has forgotten those of its parent.
        if self.process == identity::id() {
            HOLDERS.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Begins another run, as times that are taken again do: tasks forget what began before a gap. For
/// whoever suspends the key and resumes it; to be called after it is suspended, and before and
/// after it is resumed.
pub fn forget_gap() {
    next_run();
}

/// Whether times are taken.
pub fn is_on() -> bool {
    WAITS.is_enabled()
}

/// Whether times are taken, for code of the service's threads: a sleeping instruction.
#[inline]
pub fn are_times_taken() -> bool {
    unlikely!(WAITS)
}

/// For how long times have been taken without a gap; `None` while they are not. Tasks that were
/// polled or began in this time are known.
pub fn taken_for() -> Option<Duration> {
    let ticks = || stamp().saturating_sub(run_begun());
    is_on().then(|| Duration::from_nanos(ticks_to_ns(ticks())))
}

fn forget() {
    rows::forget();
    returned::forget();
    cpu::forget();
    exemplars::forget();
    calls::forget();
    received_gaps::forget();
    HOLDERS.store(0, Ordering::SeqCst);
    slow::forget();
    next_run();
}
