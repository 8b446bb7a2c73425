//! Leases that end by time: those requested for a duration, and those of keys that *dwell*, which
//! stay on for a time after they were given back.
//!
//! A *hold* is one of a key's counted leases, which lies in this table. There is at most one for
//! each key and [`Holder`]: a holder that holds a key again extends its hold. So a request handler
//! that keeps a key on for a second with every request counts once, allocates once, and patches
//! once. The table is therefore bounded by the number of keys and of holders.
//!
//! # Invariants
//!
//! 1. A key's count of leases is at least the number of its holds: both change under the patch
//!    lock, in `plan` alone.
//! 2. The holds that a forked child has inherited belong to its parent: [`lock`] drops them.
//!
//! # Locking
//!
//! The holds have a mutex of their own because the timer's thread must sleep on it. Only that
//! thread takes it without the patch lock, and then takes no further lock.

use std::collections::{HashMap, TryReserveError};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use dormouse_sys::rendezvous;

use crate::Error;
use crate::key::Key;
use crate::primitive::{Condvar, Mutex, MutexGuard, shared};
use crate::room::collect;

/// The longest hold: 31 days. To keep a key on for longer, set its baseline.
pub const LONGEST_HOLD: Duration = Duration::from_secs(31 * 24 * 3600);

/// The user on whose behalf a key is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Holder {
    /// No user: the key has been given back and stays on for its dwell time, or could not be
    /// switched off yet.
    Nobody,
    /// This program's own code.
    Program,
    /// For a user who asked an agent for it.
    User {
        /// The user's id.
        uid: u32,
    },
}

/// A key that is held on for a time.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Hold {
    /// The key.
    pub key: &'static Key,
    /// The user on whose behalf the key is held.
    pub holder: Holder,
    /// How much longer the key is held. Zero if its end was refused; that is tried again every
    /// second.
    pub left: Duration,
}

/// One hold of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHold {
    pub(crate) holder: Holder,
    pub(crate) until: Instant,
    /// When the timer is to end it: `until`, or later when it could not.
    end_at: Instant,
}

impl KeyHold {
    pub(crate) fn new(holder: Holder, until: Instant) -> Self {
        Self { holder, until, end_at: until }
    }
}

/// The state of the timer's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(all(test, loom), expect(dead_code, reason = "a model's timer is the test's"))]
pub(crate) enum TimerThread {
    /// There is no timer thread.
    None,
    /// It has been started and does not run yet.
    Started,
    /// It ends holds. If two were started at the same time, the second to run ends itself.
    Runs,
}

/// All holds. They change when the text has, where nothing may be refused any more; hence room is
/// made before.
#[derive(Debug)]
pub(crate) struct Holds {
    /// By the key's address; no list is empty.
    by_key: HashMap<usize, (&'static Key, Vec<KeyHold>), BuildHasherDefault<OfAddress>>,
    /// The number of forks behind the process that these are of.
    forks: u32,
    #[cfg_attr(all(test, loom), expect(dead_code, reason = "a model's timer is the test's"))]
    pub(crate) timer: TimerThread,
    /// When the timer's thread will wake by itself; `None` if it sleeps until it is woken.
    pub(crate) looks_at: Option<Instant>,
}

impl Holds {
    const fn new() -> Self {
        let by_key = HashMap::with_hasher(BuildHasherDefault::new());
        Self { by_key, forks: 0, timer: TimerThread::None, looks_at: None }
    }

    /// Makes room for the holds of `keys` more keys.
    pub(crate) fn reserve(&mut self, keys: usize) -> Result<(), TryReserveError> {
        self.by_key.try_reserve(keys)
    }

    /// A key's holds.
    pub(crate) fn of(&self, key: &Key) -> &[KeyHold] {
        self.by_key.get(&key.address()).map_or(&[], |(_, holds)| holds)
    }

    /// Replaces a key's holds; there must be room.
    pub(crate) fn set(&mut self, key: &'static Key, holds: Vec<KeyHold>) {
        if !holds.is_empty() {
            self.by_key.insert(key.address(), (key, holds));
        } else if self.by_key.remove(&key.address()).is_some() && self.by_key.is_empty() {
            // Their memory goes with the last one.
            self.by_key = HashMap::default();
        }
    }

    fn each(&self) -> impl Iterator<Item = (&'static Key, &KeyHold)> {
        self.by_key.values().flat_map(|(key, holds)| holds.iter().map(move |hold| (*key, hold)))
    }

    /// Every hold, by key.
    pub(crate) fn list(&self, now: Instant) -> Result<Vec<Hold>, TryReserveError> {
        let listed = |(key, hold): (_, &KeyHold)| {
            // Zero for a hold whose end was refused.
            let left = hold.until.saturating_duration_since(now);
            Hold { key, holder: hold.holder, left }
        };
        let mut all = collect(self.each().map(listed))?;
        all.sort_unstable_by_key(|hold| (hold.key.address(), hold.holder));
        Ok(all)
    }

    /// The holds that are to end now, by key.
    pub(crate) fn due(&self, now: Instant) -> Result<Vec<(&'static Key, Holder)>, TryReserveError> {
        let due = self.each().filter(|(_, hold)| hold.end_at <= now);
        let mut due = collect(due.map(|(key, hold)| (key, hold.holder)))?;
        due.sort_unstable_by_key(|(key, holder)| (key.address(), *holder));
        Ok(due)
    }

    /// When the next hold is to end.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.each().map(|(_, hold)| hold.end_at).min()
    }

    /// Has the timer leave holds alone until `at` that are to end now, of those keys whose end was
    /// refused.
    pub(crate) fn postpone(&mut self, now: Instant, at: Instant, is_refused: impl Fn(&Key) -> bool) {
        let is_due = |hold: &KeyHold| hold.end_at <= now;
        for (key, holds) in self.by_key.values_mut() {
            // Other keys are not read: the memory of one may be gone, and once its end was refused
            // for that it is no longer due.
            if holds.iter().any(is_due) && is_refused(key) {
                holds.iter_mut().filter(|hold| is_due(hold)).for_each(|hold| hold.end_at = at);
            }
        }
    }

    /// Has the timer look by `at`.
    pub(crate) fn expect(&self, at: Instant) {
        if self.looks_at.is_none_or(|looks_at| at < looks_at) {
            SOONER.notify_one();
        }
    }
}

#[cfg(not(all(test, loom)))]
static HOLDS: Mutex<Holds> = Mutex::new(dormouse_sys::process::fork::Phase::Holds, Holds::new());
#[cfg(all(test, loom))]
loom::lazy_static! { static ref HOLDS: Mutex<Holds> = Mutex::new(Holds::new()); }

shared! {
    static SOONER: Condvar = Condvar::new();
}

/// The holds of this process; those of a parent are dropped.
pub(crate) fn lock() -> Result<MutexGuard<Holds>, Error> {
    #[cfg(not(all(test, loom)))]
    let mut holds = HOLDS.lock()?;
    #[cfg(all(test, loom))]
    let mut holds = HOLDS.lock().unwrap();
    let forks = rendezvous::forks();
    if holds.forks != forks {
        *holds = Holds { forks, ..Holds::new() };
    }
    Ok(holds)
}

/// Waits until the timer's thread is woken, or until `left` has passed.
#[cfg(not(all(test, loom)))]
pub(crate) fn wait(holds: MutexGuard<Holds>, left: Option<Duration>) {
    SOONER.wait(holds, left);
}

#[cfg(all(test, loom))]
pub(crate) fn wait(holds: MutexGuard<Holds>, left: Option<Duration>) {
    match left {
        None => drop(SOONER.wait(holds).unwrap()),
        Some(left) => drop(SOONER.wait_timeout(holds, left).unwrap()),
    }
}

/// Has the timer's thread look now.
#[cfg(all(test, not(loom)))]
pub(crate) fn wake_timer() {
    SOONER.notify_one();
}

/// Refuses to hold keys for too long.
pub(crate) fn check(length: Duration) -> Result<(), Error> {
    if length > LONGEST_HOLD {
        return Err(Error::HoldLength { asked: length, longest: LONGEST_HOLD });
    }
    Ok(())
}

/// Mixes an address. (The standard library's hasher would ask a thread-local for its seed: see
/// [`crate::patch_lock`].)
#[derive(Debug, Default)]
struct OfAddress(u64);

impl Hasher for OfAddress {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_usize(usize::from(byte));
        }
    }

    fn write_usize(&mut self, address: usize) {
        // The table looks at the highest bits and the lowest.
        let mixed = (self.0 ^ address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
