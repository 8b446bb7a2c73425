//! The places in the code that hit, each with its count: filled by signal handlers, read by any
//! thread.
//!
//! A fixed hash table with open addressing. A place belongs for good to the pair of instruction and
//! group that came first. Its counts are added up by atomics; its last hit and its stack are many
//! words, which one thread at a time writes: a handler walks its stack right into its place.
//!
//! # Invariants
//!
//! 1. The key of a place, once set, never changes: first the instruction, then the group. A handler
//!    that finds only the instruction may set the group to its own.
//! 2. The last hit and the stack are written by one thread at a time ([`Sequence`]). Meanwhile
//!    other handlers skip them, so no handler waits.
//!
//! # Async-signal-safety
//!
//! [`Sites::add`] is signal-safe.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dormouse_sys::sync::Sequence;

use super::report::WatchSite;
use super::stack::{DEPTH, HitStack, Walked};

/// How many places are kept apart.
const PLACES: usize = 64;

/// How far from its hash a pair may lie.
const REACH: usize = 16;

/// One hit, as the handler has it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Hit {
    pub(super) ip: usize,
    pub(super) group: u32,
    pub(super) tid: u32,
    pub(super) task: u64,
    pub(super) mono_ns: u64,
    pub(super) old: u64,
    pub(super) new: u64,
    /// Whether the two were read.
    pub(super) has_values: bool,
}

#[derive(Debug)]
pub(super) struct Sites {
    places: Box<[Place]>,
    others: AtomicU64,
}

#[derive(Debug, Default)]
struct Place {
    /// The instruction and one; 0: free.
    ip: AtomicUsize,
    /// The group and one; 0: not set yet.
    group: AtomicU64,
    hits: AtomicU64,
    /// Over the fields from here to `stack`.
    last: Sequence,
    tid: AtomicU32,
    task: AtomicU64,
    mono_ns: AtomicU64,
    old: AtomicU64,
    new: AtomicU64,
    has_values: AtomicBool,
    /// How the walk of the first hit's stack ended ([`Walked`]), and the stack; of a later hit's,
    /// where functions of the first had to be learned.
    walked: AtomicU64,
    stack: Stack,
    /// A later hit shall leave its stack.
    is_short: AtomicBool,
}

/// Room for the return addresses of a stack.
#[derive(Debug)]
struct Stack([AtomicUsize; DEPTH]);

impl Default for Stack {
    fn default() -> Self {
        Self([const { AtomicUsize::new(0) }; DEPTH])
    }
}

impl Sites {
    pub(super) fn new() -> Self {
        Self { places: (0..PLACES).map(|_| Place::default()).collect(), others: AtomicU64::new(0) }
    }

    /// Counts a hit in its place. `walk` passes the callers of the first one there to its argument,
    /// each with its place in a stack of [`DEPTH`]; `None`: it leaves the stack as it is.
    pub(super) fn add(&self, hit: &Hit, walk: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Option<Walked>) {
        let Some((place, is_first)) = self.place(hit.ip, hit.group) else {
            self.others.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let nth = place.hits.fetch_add(1, Ordering::Relaxed) + 1;
        // Ever more rarely: nothing is learned before somebody reads, and some code never is.
        let is_short = nth.is_power_of_two() && place.is_short.load(Ordering::Relaxed);
        let with_stack = is_first || is_short && place.is_short.swap(false, Ordering::Relaxed);
        let is_whole = place.last.try_write(|| {
            place.set_last(hit);
            !with_stack || place.set_stack(walk)
        });
        if with_stack && is_whole != Some(true) {
            place.is_short.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the place of a pair, which has had a hit, a stack that was found later.
    pub(super) fn set_stack(&self, ip: usize, group: u32, callers: &[usize], walked: Walked) {
        let Some((place, _)) = self.place(ip, group) else { return };
        let put = |put: &mut dyn FnMut(usize, usize)| {
            callers.iter().enumerate().for_each(|(at, &caller)| put(at, caller));
            Some(walked)
        };
        if place.last.try_write(|| place.set_stack(put)) == Some(true) {
            place.is_short.store(false, Ordering::Relaxed);
        }
    }

    /// The place of a pair, and whether this hit has taken it.
    fn place(&self, ip: usize, group: u32) -> Option<(&Place, bool)> {
        let key = ip.wrapping_add(1);
        let named = u64::from(group) + 1;
        // Fibonacci's multiplier spreads neighbours.
        let hash = (key as u64 ^ u64::from(group) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (hash >> 32) as usize;
        for place in (0..REACH).map(|step| &self.places[(first + step) % PLACES]) {
            // Relaxed: nothing about a place is read before its counts except the pair, and the
            // counts order themselves.
            match place.ip.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                Err(other) if other != key => continue,
                _ => {}
            }
            match place.group.compare_exchange(0, named, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some((place, true)),
                Err(other) if other == named => return Some((place, false)),
                Err(_) => {}
            }
        }
        None
    }

    /// All places so far, the most hits first; and the hits that found none.
    pub(super) fn read(&self) -> (Vec<WatchSite>, u64) {
        let mut sites: Vec<_> = self.places.iter().filter_map(Place::site).collect();
        sites.sort_by(|one, other| other.hits.cmp(&one.hits).then(one.ip.cmp(&other.ip)));
        (sites, self.others.load(Ordering::Relaxed))
    }
}

impl Place {
    fn set_last(&self, hit: &Hit) {
        self.tid.store(hit.tid, Ordering::Relaxed);
        self.task.store(hit.task, Ordering::Relaxed);
        self.mono_ns.store(hit.mono_ns, Ordering::Relaxed);
        self.old.store(hit.old, Ordering::Relaxed);
        self.new.store(hit.new, Ordering::Relaxed);
        self.has_values.store(hit.has_values, Ordering::Relaxed);
    }

    /// Returns whether all functions of the stack are known.
    fn set_stack(&self, walk: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Option<Walked>) -> bool {
        let mut put = |at: usize, caller: usize| {
            if let Some(word) = self.stack.0.get(at) {
                word.store(caller, Ordering::Relaxed);
            }
        };
        let Some(walked) = walk(&mut put) else { return false };
        self.walked.store(walked.word(), Ordering::Relaxed);
        !walked.is_missed
    }

    fn site(&self) -> Option<WatchSite> {
        let ip = self.ip.load(Ordering::Relaxed).checked_sub(1)?;
        let group = self.group.load(Ordering::Relaxed).checked_sub(1)? as u32;
        let hits = self.hits.load(Ordering::Relaxed);
        let (mut site, is_whole) = self.last.read(|| {
            let has_values = self.has_values.load(Ordering::Relaxed);
            let value = |word: &AtomicU64| has_values.then_some(word.load(Ordering::Relaxed));
            let walked = Walked::of(self.walked.load(Ordering::Relaxed));
            let stack = walked.map(|walked| walked.stack(|at| self.stack.0[at].load(Ordering::Relaxed)));
            let HitStack { callers: stack, inner, end } = stack.unwrap_or_default();
            WatchSite {
                tid: self.tid.load(Ordering::Relaxed),
                task: self.task.load(Ordering::Relaxed),
                mono_ns: self.mono_ns.load(Ordering::Relaxed),
                old: value(&self.old),
                new: value(&self.new),
                stack,
                inner,
                end,
                ..WatchSite::default()
            }
        });
        if !is_whole {
            // Either hits come all the time, or a handler never came back: the words may be from
            // several hits, each true by itself. A change of values is reported as a whole or not
            // at all.
            (site.old, site.new) = (None, None);
        }
        Some(WatchSite { ip, group, hits, ..site })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use dormouse_unwind::WalkEnd;

    use super::super::stack::HitStackEnd;
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "as a walk")]
    fn stack_of(caller: usize, is_missed: bool, put: &mut dyn FnMut(usize, usize)) -> Option<Walked> {
        put(0, caller);
        Some(Walked { depth: 1, end: WalkEnd::Outermost, is_missed })
    }

    fn hit(ip: usize, group: u32, new: u64) -> Hit {
        Hit { ip, group, new, old: !new, tid: new as u32, has_values: true, ..Hit::default() }
    }

    #[test]
    fn places_are_told_apart_by_code_and_group() {
        let sites = Sites::new();
        for (ip, group, stack) in [(0x1000, 0, 1), (0x1000, 1, 2), (0, 0, 3), (0x1000, 0, 4)] {
            sites.add(&hit(ip, group, 7), |put| stack_of(stack, false, put));
        }
        let (found, others) = sites.read();
        let mut found: Vec<_> =
            found.iter().map(|site| (site.ip, site.group, site.hits, site.stack[0])).collect();
        found.sort_unstable();
        assert_eq!(found, [(0, 0, 1, 3), (0x1000, 0, 2, 1), (0x1000, 1, 1, 2)]);
        assert_eq!(others, 0);
    }

    #[test]
    fn a_short_stack_is_replaced() {
        let sites = Sites::new();
        for (address, is_missed) in [(1, true), (2, false), (3, false)] {
            sites.add(&hit(0x1000, 0, 7), |put| stack_of(address, is_missed, put));
        }
        assert_eq!(sites.read().0[0].stack, [2]);
    }

    #[test]
    fn a_stack_that_is_found_later_stays() {
        let sites = Sites::new();
        // Nothing was walked, at the first hit and at the second.
        (0..2).for_each(|_| sites.add(&hit(0x1000, 0, 7), |_| None));
        assert_eq!(sites.read().0[0].end, HitStackEnd::Unknown);
        let walked = Walked { depth: 2, end: WalkEnd::Outermost, is_missed: false };
        sites.set_stack(0x1000, 0, &[5, 6], walked);
        (0..8).for_each(|_| sites.add(&hit(0x1000, 0, 7), |put| stack_of(9, false, put)));
        let found = &sites.read().0[0];
        assert_eq!((found.hits, &found.stack[..], found.end), (10, &[5, 6][..], HitStackEnd::Whole));
    }

    #[test]
    fn hits_without_room_are_counted() {
        let sites = Sites::new();
        (0..1000).for_each(|ip| sites.add(&hit(ip, 0, 0), |_| None));
        let (found, others) = sites.read();
        assert_eq!(found.iter().map(|site| site.hits).sum::<u64>() + others, 1000);
        assert!(found.len() > PLACES / 2 && others > 0);
    }

    #[test]
    fn last_hits_are_whole_under_many_writers() {
        let sites = Sites::new();
        thread::scope(|scope| {
            let sites = &sites;
            for thread in 1..=3 {
                scope.spawn(move || {
                    for n in 0..20_000 {
                        sites.add(&hit(0x1000, 0, thread * 1_000_000 + n), |_| None);
                    }
                });
            }
            for _ in 0..2000 {
                for site in sites.read().0 {
                    let is_whole = site.new.is_none_or(|new| new == 0 || site.old == Some(!new));
                    assert!(is_whole, "{site:?}");
                }
            }
        });
        assert_eq!(sites.read().0[0].hits, 60_000);
    }
}
