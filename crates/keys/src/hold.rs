//! What holds keys on for a time: timed leases, and keys that linger after they have been given back.
//!
//! A *hold* is one of a key's counted leases, whose holder is this table. There is at most one for each key and
//! [`Holder`]: who holds a key again extends its hold, so that a request handler that says "on for a second" with
//! every request counts once, allocates once, and patches once. The table is therefore bounded by the number of
//! keys and of users, whatever anybody asks for.
//!
//! # Invariants
//!
//! 1. A key's count of leases is at least the number of its holds: both change under the patch lock, in
//!    [`crate::plan`] alone.
//! 2. What the table of a forked child has inherited is its parent's, and is dropped before anybody looks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::generation;
use crate::key::Key;

/// The longest hold: a month. Who wants more wants the baseline.
pub const LONGEST_HOLD: Duration = Duration::from_secs(31 * 24 * 3600);

/// For whom a key is held on for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Holder {
    /// For nobody: the key has been given back and lingers for its dwell time, or could not be switched off yet.
    Nobody,
    /// For this program's own code.
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
    /// For whom.
    pub holder: Holder,
    /// How much longer; zero for one whose end has been refused, which is tried again every second.
    pub left: Duration,
}

/// A hold of a key that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) holder: Holder,
    pub(crate) until: Instant,
    /// When the timer is to end it: `until`, or later when it could not.
    end_at: Instant,
}

impl Term {
    pub(crate) fn new(holder: Holder, until: Instant) -> Self {
        Self { holder, until, end_at: until }
    }
}

/// All holds.
#[derive(Debug)]
pub(crate) struct Holds {
    /// By the key's address; no list is empty.
    terms: BTreeMap<usize, (&'static Key, Vec<Term>)>,
    generation: u32,
    /// Whether the timer's thread runs, or is just being started.
    #[cfg_attr(all(test, loom), expect(dead_code, reason = "a model's timer is the test's"))]
    pub(crate) timed: bool,
    /// When the timer's thread will look by itself; `None`: when it is told.
    pub(crate) looks_at: Option<Instant>,
}

impl Holds {
    pub(crate) const fn new() -> Self {
        Self { terms: BTreeMap::new(), generation: 0, timed: false, looks_at: None }
    }

    /// Drops what a forked child has inherited.
    pub(crate) fn of_this_process(&mut self) {
        let generation = generation::present();
        if self.generation != generation {
            *self = Self { generation, ..Self::new() };
        }
    }

    /// A key's holds.
    pub(crate) fn of(&self, key: &Key) -> &[Term] {
        self.terms.get(&key.address()).map_or(&[], |(_, terms)| terms)
    }

    /// Replaces a key's holds.
    pub(crate) fn set(&mut self, key: &'static Key, terms: Vec<Term>) {
        if terms.is_empty() {
            self.terms.remove(&key.address());
        } else {
            self.terms.insert(key.address(), (key, terms));
        }
    }

    fn each(&self) -> impl Iterator<Item = (&'static Key, &Term)> {
        self.terms.values().flat_map(|(key, terms)| terms.iter().map(move |term| (*key, term)))
    }

    /// Every hold, by key.
    pub(crate) fn list(&self, now: Instant) -> Vec<Hold> {
        let left = |term: &Term| term.until.saturating_duration_since(now);
        self.each().map(|(key, term)| Hold { key, holder: term.holder, left: left(term) }).collect()
    }

    /// What is to end now.
    pub(crate) fn due(&self, now: Instant) -> Vec<(&'static Key, Holder)> {
        self.each().filter(|(_, term)| term.end_at <= now).map(|(key, term)| (key, term.holder)).collect()
    }

    /// When the next hold is to end.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.each().map(|(_, term)| term.end_at).min()
    }

    /// Has the timer leave a hold alone until `at`, because its end was refused.
    pub(crate) fn postpone(&mut self, key: &Key, holder: Holder, at: Instant) {
        let terms = self.terms.get_mut(&key.address()).map(|(_, terms)| terms);
        for term in terms.into_iter().flatten().filter(|term| term.holder == holder) {
            term.end_at = at;
        }
    }
}
