//! Objectives of groups, and the requests that meet or miss them.
//!
//! A group has room for a few objectives, in *slots* that are made with its first one. A request
//! that ends with a known age is compared with each of them, and counted in one of two counters. So
//! the counts are exact, and not read from buckets. While times of tasks are not taken no age is
//! known, and nothing is done here.
//!
//! A *lease* is an objective for all groups that a glob matches, held by a client or by the service
//! itself. Leases for the same objective share the slots, and so the counts. When the last lease of
//! a slot has ended, another objective may take it.
//!
//! # Invariants
//!
//! 1. Leases and slots are changed under the lock alone. Requests change counters, without it.
//! 2. The words of a slot begin with the *generation* of its objective. A request adds to a counter
//!    of the generation that it has compared with alone, so a thread that was preempted in between
//!    counts nothing for the objective that came next.
//! 3. A group that begins has its slots before the first request of the thread that makes it, or as
//!    soon as the thread that has the lock gives it back.
//!
//! # Locking
//!
//! One lock, which forks wait for, held for moments. A thread that makes a group does not wait for
//! it: it leaves word ([`PENDING`]) for the thread that has it.

use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use dormouse_keys::Selector;
use dormouse_protocol::{Objective, ObjectiveRow};
use dormouse_sys::Capability;
use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::sync::OnceBox;

use crate::core::ends::TaskOutcome;

/// How many objectives a group can have.
pub(crate) const MOST_OBJECTIVES: usize = 8;

/// Groups come with their first requests: globs that match none are told after this time.
pub(crate) const A_WHILE: Duration = Duration::from_secs(10);

/// The check of `doctor` for globs that match no group, and its advice.
pub(crate) const UNMATCHED: &str = "groups.unmatched";
pub(crate) const NAME_GROUPS: &str = "name groups as `dormouse stat` shows them, with `*` for any text";

/// How many leases a process can have.
const MOST_LEASES: usize = 64;

/// The bits of a word below its generation.
const BELOW: u32 = 48;
const VALUE: u64 = (1 << BELOW) - 1;

static LEASES: Mutex<Vec<ObjectiveLease>> = Mutex::with_child(Phase::Objectives, Vec::new(), forget);

/// How many leases there are, or are about to be: 0 for groups that begin where there are none.
static HELD: AtomicUsize = AtomicUsize::new(0);
/// Whether a group has begun that may lack some of its objectives.
static PENDING: AtomicBool = AtomicBool::new(false);
/// How often a group that began had no room for an objective.
static CROWDED: AtomicU64 = AtomicU64::new(0);
/// The number of the next lease.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The objectives of a group, and its requests by them.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct ObjectiveCounts {
    slots: [Slot; MOST_OBJECTIVES],
}

/// An objective and its requests. All words but `holders` and `target_ppm` begin with a generation.
#[derive(Debug, Default)]
#[repr(C)]
struct Slot {
    /// In nanoseconds; a limit of 0 if the slot is free, and the word 0 if it was never used.
    limit: AtomicU64,
    target_ppm: AtomicU32,
    /// The number of leases; read and changed under the lock alone.
    holders: AtomicU32,
    met: AtomicU64,
    missed: AtomicU64,
}

/// A group, as far as objectives are concerned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfGroup {
    pub(crate) id: u32,
    pub(crate) name: &'static str,
    pub(crate) counts: &'static OnceBox<ObjectiveCounts>,
}

/// The groups of a lease.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// The one with that number.
    One(u32),
    /// Those that globs match, also if they come later.
    Matching(Arc<Selector>),
}

#[derive(Debug)]
struct ObjectiveLease {
    number: u64,
    groups: Chosen,
    objective: Objective,
    begun: Instant,
    /// The slots that it holds.
    slots: Vec<(&'static ObjectiveCounts, usize)>,
}

/// Leases that are held as long as this lives. In a forked child it has no effect.
#[derive(Debug)]
pub(crate) struct ObjectiveLeases {
    numbers: Vec<u64>,
}

/// Why there is no room for objectives.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error(
        "the group {group} has {MOST_OBJECTIVES} objectives, so it cannot have `{objective}`, too: {}",
        has.join("; ")
    )]
    InGroup { group: &'static str, objective: Objective, has: Vec<String> },
    #[error("the process has {MOST_LEASES} objectives already, those of all clients together")]
    InProcess,
    #[error("this thread is changing objectives already, or is in the middle of a fork")]
    Reentrant,
}

impl ObjectiveCounts {
    /// Counts a request that has ended at that age.
    #[inline]
    pub(crate) fn count(&self, age_ns: u64, outcome: TaskOutcome) {
        for slot in &self.slots {
            // Acquire: pairs with the store in `begin`, after which the counters are of its
            // generation.
            match slot.limit.load(Ordering::Acquire) {
                // No slot behind one that was never used was used.
                0 => break,
                word if word & VALUE != 0 => slot.count(word, age_ns, outcome),
                _ => {}
            }
        }
    }

    /// The rows of the objectives that it has now.
    pub(crate) fn rows(&self) -> Vec<ObjectiveRow> {
        self.slots.iter().filter_map(Slot::row).collect()
    }

    /// Holds the slot of an objective; under the lock. `None`: all are taken.
    fn hold(&self, objective: Objective) -> Option<usize> {
        let known = self.slots.iter().position(|slot| slot.objective() == Some(objective));
        let at = known.or_else(|| self.slots.iter().position(|slot| slot.objective().is_none()))?;
        if known.is_none() {
            self.slots[at].begin(objective);
        }
        self.slots[at].holders.fetch_add(1, Ordering::Relaxed);
        Some(at)
    }

    /// Gives a slot back; under the lock.
    fn give_back(&self, at: usize) {
        if self.slots[at].holders.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.slots[at].end();
        }
    }
}

impl Slot {
    fn objective(&self) -> Option<Objective> {
        let limit_ns = self.limit.load(Ordering::Acquire) & VALUE;
        let target_ppm = self.target_ppm.load(Ordering::Relaxed);
        (limit_ns != 0).then_some(Objective { target_ppm, limit_ns })
    }

    fn begin(&self, objective: Objective) {
        let before = self.limit.load(Ordering::Relaxed) & !VALUE;
        // 0 is that of a slot that was never used.
        let generation = before.wrapping_add(1 << BELOW).max(1 << BELOW);
        // Pairs with the fence in `row`: a reader that sees one of these words sees that the
        // objective before has ended.
        fence(Ordering::Release);
        self.target_ppm.store(objective.target_ppm, Ordering::Relaxed);
        self.met.store(generation, Ordering::Relaxed);
        self.missed.store(generation, Ordering::Relaxed);
        // Release: pairs with the loads in `count` and `row`.
        self.limit.store(generation | objective.limit_ns.min(VALUE), Ordering::Release);
    }

    fn end(&self) {
        self.limit.fetch_and(!VALUE, Ordering::Relaxed);
    }

    #[inline]
    fn count(&self, word: u64, age_ns: u64, outcome: TaskOutcome) {
        let Some(is_met) = is_met(age_ns < word & VALUE, outcome) else { return };
        let counter = if is_met { &self.met } else { &self.missed };
        let more = |counted: u64| ((counted ^ word) & !VALUE == 0).then_some(counted + 1);
        // Refused: the objective has ended meanwhile.
        let _counted = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    fn row(&self) -> Option<ObjectiveRow> {
        let word = self.limit.load(Ordering::Acquire);
        let target_ppm = self.target_ppm.load(Ordering::Relaxed);
        let [met, missed] = [&self.met, &self.missed].map(|counter| counter.load(Ordering::Relaxed) & VALUE);
        // Pairs with the fence in `begin`: the words before are of the generation that is found.
        fence(Ordering::Acquire);
        let is_same = self.limit.load(Ordering::Relaxed) == word;
        let objective = Objective { target_ppm, limit_ns: word & VALUE };
        (is_same && objective.limit_ns != 0).then_some(ObjectiveRow { objective, met, missed })
    }
}

/// Whether a request has met an objective; `None` if it does not count. A request that failed has
/// missed it. So has one that was given up after the time; one that was given up before it might
/// have been answered in time.
#[inline]
fn is_met(is_in_time: bool, outcome: TaskOutcome) -> Option<bool> {
    if outcome.is_failed() {
        return Some(false);
    }
    (!outcome.is_cancelled() || !is_in_time).then_some(is_in_time && !outcome.is_cancelled())
}

impl Chosen {
    fn has(&self, group: OfGroup) -> bool {
        match self {
            Self::One(id) => *id == group.id,
            Self::Matching(globs) => globs.matches_at(group.name, "", 0),
        }
    }
}

impl ObjectiveLease {
    /// Holds a slot of the group, if that is one of its groups. False: the group has no room.
    fn attach(&mut self, group: OfGroup) -> bool {
        if !self.groups.has(group) {
            return true;
        }
        let counts = group.counts.get_or_init(Box::default);
        if self.slots.iter().any(|(held, _)| ptr::eq(*held, counts)) {
            return true;
        }
        let slot = counts.hold(self.objective);
        self.slots.extend(slot.map(|at| (counts, at)));
        slot.is_some()
    }

    fn end(&self) {
        self.slots.iter().for_each(|(counts, at)| counts.give_back(*at));
    }
}

/// Begins to count requests by these objectives, all or none. Returns how many of the groups that
/// exist have one of them; `groups` lists these.
pub(crate) fn begin(
    wanted: Vec<(Chosen, Objective)>,
    groups: impl Fn() -> Vec<OfGroup>,
) -> Result<(ObjectiveLeases, u64), NoRoom> {
    let count = wanted.len();
    HELD.fetch_add(count, Ordering::SeqCst);
    // Pairs with the fence in `group_begins`: either that sees that there are leases, or the group
    // is in the list.
    fence(Ordering::SeqCst);
    let begun = begin_all(wanted, &groups());
    if begun.is_err() {
        HELD.fetch_sub(count, Ordering::SeqCst);
    }
    settle(groups);
    begun
}

fn begin_all(wanted: Vec<(Chosen, Objective)>, groups: &[OfGroup]) -> Result<(ObjectiveLeases, u64), NoRoom> {
    let begun = Instant::now();
    let mut leases = LEASES.lock().map_err(|_| NoRoom::Reentrant)?;
    if leases.len() + wanted.len() > MOST_LEASES {
        return Err(NoRoom::InProcess);
    }
    let mut new: Vec<ObjectiveLease> = Vec::with_capacity(wanted.len());
    for (chosen, objective) in wanted {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut lease = ObjectiveLease { number, groups: chosen, objective, begun, slots: Vec::new() };
        let full = groups.iter().find(|group| !lease.attach(**group));
        new.push(lease);
        if let Some(full) = full {
            let has = full.counts.get().map_or_else(Vec::new, ObjectiveCounts::rows);
            let has = has.iter().map(|row| row.objective.to_string()).collect();
            new.iter().for_each(ObjectiveLease::end);
            return Err(NoRoom::InGroup { group: full.name, objective, has });
        }
    }
    let is_chosen = |group: &&OfGroup| {
        let counts = group.counts.get();
        let is_its = |held: &ObjectiveCounts| counts.is_some_and(|counts| ptr::eq(held, counts));
        new.iter().any(|lease| lease.slots.iter().any(|(held, _)| is_its(held)))
    };
    let with = groups.iter().filter(is_chosen).count() as u64;
    let numbers = new.iter().map(|lease| lease.number).collect();
    leases.append(&mut new);
    Ok((ObjectiveLeases { numbers }, with))
}

/// A group has just begun: it gets the objectives that match its name. `groups` lists all.
pub(crate) fn group_begins(group: OfGroup, groups: impl Fn() -> Vec<OfGroup>) {
    // Pairs with the fence in `begin`.
    fence(Ordering::SeqCst);
    if HELD.load(Ordering::SeqCst) == 0 {
        return;
    }
    let attach = || LEASES.try_lock().map(|mut leases| attach_all(&mut leases, &[group]));
    if attach().is_none() {
        // The thread that has the lock looks at this once it has given it back; or it has done so
        // already, and the lock is free.
        PENDING.store(true, Ordering::SeqCst);
        let _attached = attach();
    }
    // Another group may have begun while this thread had the lock.
    settle(groups);
}

/// Gives groups the objectives that they lack, if there are such groups. Called by each thread that
/// has had the lock, once it has given it back.
pub(crate) fn settle(groups: impl Fn() -> Vec<OfGroup>) {
    while PENDING.swap(false, Ordering::SeqCst) {
        // Memory is not taken under a lock for which a fork waits.
        let groups = groups();
        let attach = || LEASES.try_lock().map(|mut leases| attach_all(&mut leases, &groups));
        if attach().is_none() {
            PENDING.store(true, Ordering::SeqCst);
            // A thread that has the lock now does it then.
            if LEASES.try_lock().is_none() {
                return;
            }
        }
    }
}

fn attach_all(leases: &mut [ObjectiveLease], groups: &[OfGroup]) {
    for lease in leases {
        let crowded = groups.iter().filter(|group| !lease.attach(**group)).count();
        CROWDED.fetch_add(crowded as u64, Ordering::Relaxed);
    }
}

/// The most objectives that a group may have now.
pub(crate) fn most() -> usize {
    HELD.load(Ordering::Relaxed).min(MOST_OBJECTIVES)
}

/// The objectives whose globs match none of the groups, though there are some and the objectives
/// were set a while ago; each once. `groups` is not called where all have matched and none began.
pub(crate) fn unmatched(now: Instant, groups: impl Fn() -> Vec<OfGroup>) -> Vec<(Arc<Selector>, Objective)> {
    if HELD.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    // Memory is not taken under a lock for which a fork waits.
    let mut found: Vec<(Arc<Selector>, Objective)> = Vec::with_capacity(MOST_LEASES);
    if let Ok(leases) = LEASES.lock() {
        for lease in leases.iter().filter(|lease| lease.slots.is_empty()) {
            if let Chosen::Matching(globs) = &lease.groups
                && now.saturating_duration_since(lease.begun) >= A_WHILE
                && !found.iter().any(|it| it.0.as_str() == globs.as_str() && it.1 == lease.objective)
            {
                found.push((Arc::clone(globs), lease.objective));
            }
        }
    }
    // A group that began meanwhile left it to the holder of the lock.
    settle(&groups);
    if found.is_empty() {
        return found;
    }
    let groups = groups();
    // A group that matches may have had no room for it.
    let is_matched = |globs: &Selector| {
        groups.is_empty() || groups.iter().any(|group| globs.matches_at(group.name, "", 0))
    };
    found.retain(|(globs, _)| !is_matched(globs));
    found
}

/// A line of `dormouse doctor` if something is wrong, otherwise `None`.
pub(crate) fn capability() -> Option<Capability> {
    let crowded = CROWDED.load(Ordering::Relaxed);
    let detail = || {
        format!(
            "{crowded} times a group that began had no room for an objective: it has {MOST_OBJECTIVES} at most"
        )
    };
    (crowded > 0).then(|| Capability::limited("groups.objectives", detail()))
}

/// In a forked child nobody holds a lease. It frees nothing, as a signal handler.
fn forget(leases: &mut Vec<ObjectiveLease>) {
    for (counts, at) in leases.iter().flat_map(|lease| &lease.slots) {
        counts.slots[*at].holders.store(0, Ordering::Relaxed);
        counts.slots[*at].end();
    }
    HELD.store(0, Ordering::SeqCst);
    PENDING.store(false, Ordering::SeqCst);
    mem::forget(mem::take(leases));
}

impl Drop for ObjectiveLeases {
    fn drop(&mut self) {
        // Refused in the middle of a fork: then the objectives stay.
        let Ok(mut leases) = LEASES.lock() else { return };
        let before = leases.len();
        leases.retain(|lease| {
            let is_held = !self.numbers.contains(&lease.number);
            if !is_held {
                lease.end();
            }
            is_held
        });
        HELD.fetch_sub(before - leases.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
