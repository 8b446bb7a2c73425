//! Locks are noted as long as somebody asks.

use dormouse_clock::point;
use dormouse_keys::{Error, Key, Lease};
use dormouse_sys::Capability;
use dormouse_sys::environment;
use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::process::identity;

use crate::note;
use crate::run::{LOCKS, Units, begin, end, forget_runs, next_run, run};

/// In a forked child nobody asks, and no lock is held that this thread has not taken.
static FORGET: Reset = Reset::new(Phase::Locks, forget);

/// Which holds are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holds {
    /// Holds that began after a wait, and one in 16 of the others.
    #[default]
    Sampled,
    /// All. It costs some 30 ns more for each.
    All,
}

/// As long as this lives, it is noted who holds locks, who waits for them, and for how long.
/// Several may exist at once.
///
/// In a forked child, one that the parent made has no effect.
#[derive(Debug)]
#[must_use = "locks are noted as long as it lives"]
pub struct LockTimes {
    process: u64,
    holds: Holds,
    lease: Lease,
}

impl LockTimes {
    /// Begins to note locks.
    ///
    /// # Errors
    ///
    /// If the static key cannot be switched. Then nothing has changed.
    ///
    /// # Cost
    ///
    /// A batch of one key if no other exists.
    pub fn start(holds: Holds) -> Result<Self, Error> {
        if environment::is_off() {
            return Err(Error::Off);
        }
        FORGET.join();
        // Calibrates the counter: durations are put into buckets as they end.
        _ = point();
        let lease = LOCKS.acquire()?;
        if run().is_none() {
            note::begin_run();
        }
        begin(holds.units());
        Ok(Self { process: identity::id(), holds, lease })
    }

    /// The keys that this value keeps on.
    pub fn keys(&self) -> &[&'static Key] {
        self.lease.keys()
    }

    /// Lets locks be noted until the process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for LockTimes {
    fn drop(&mut self) {
        // Before the lease goes. A forked child has forgotten those of its parent.
        if self.process == identity::id() {
            end(self.holds.units());
        }
    }
}

impl Holds {
    fn units(self) -> Units {
        match self {
            Self::Sampled => Units::One,
            Self::All => Units::OneOfAll,
        }
    }
}

/// Begins another run: no holder of the one before is believed. For whoever suspends the key and
/// resumes it; to be called after it is suspended, and before and after it is resumed.
pub fn forget_gap() {
    note::begin_run();
    next_run();
}

/// Whether locks are noted.
pub fn is_on() -> bool {
    LOCKS.is_enabled() && run().is_some()
}

/// How often there was no room for a holder, to count an acquisition, and for a present wait.
pub fn lost() -> [u64; 3] {
    note::lost()
}

/// A line of `dormouse doctor` if locks are missing, otherwise `None`.
pub fn capability() -> Option<Capability> {
    let [holders, rows, waits] = note::lost();
    let detail = || {
        format!(
            "{holders} times there was no room for a lock's holder, {rows} times none for a line that \
             takes locks, which then is not counted, and {waits} times none for a wait, which then is \
             shown when it is over"
        )
    };
    (holders + rows + waits > 0).then(|| Capability::limited("locks.room", detail()))
}

fn forget() {
    forget_runs();
    note::forget();
}
