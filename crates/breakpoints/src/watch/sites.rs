//! The places in the code that hit, each with its count: filled by signal handlers, read by any
//! thread.
//!
//! A fixed hash table with open addressing. A place belongs for good to the pair of instruction and
//! group that came first. Its counts are added up by atomics; its last hit is several words, which
//! one handler at a time writes.
//!
//! # Invariants
//!
//! 1. The key of a place, once set, never changes: first the instruction, then the group. A handler
//!    that finds only the instruction may set the group to its own.
//! 2. The last hit is written by one handler at a time ([`Sequence`]). Meanwhile other handlers
//!    skip the last hit, so no handler waits.
//!
//! # Async-signal-safety
//!
//! [`Sites::add`] is signal-safe.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dormouse_sys::sync::Sequence;

use super::report::{WatchHit, WatchSite};

/// How many places are kept apart.
const PLACES: usize = 64;

/// How far from its hash a pair may lie.
const REACH: usize = 16;

/// The most return addresses of a stack.
pub(super) const DEPTH: usize = 16;

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
    pub(super) depth: usize,
    pub(super) stack: [usize; DEPTH],
    /// Nothing had been learned about a function of the stack: some callers may be missing.
    pub(super) is_missed: bool,
}

impl From<&Hit> for WatchHit {
    fn from(hit: &Hit) -> Self {
        let &Hit { ip, group, tid, task, mono_ns, old, new, has_values, depth, stack, .. } = hit;
        let [old, new] = [old, new].map(|value| has_values.then_some(value));
        Self { ip, group, tid, task, mono_ns, old, new, stack: stack[..depth.min(DEPTH)].to_vec() }
    }
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
    /// Over the last hit, in the fields from here to `stack`.
    last: Sequence,
    tid: AtomicU32,
    task: AtomicU64,
    mono_ns: AtomicU64,
    old: AtomicU64,
    new: AtomicU64,
    has_values: AtomicBool,
    /// The length of the first hit's stack, and the stack; of a later hit's, where functions of the
    /// first had to be learned.
    depth: AtomicUsize,
    stack: [AtomicUsize; DEPTH],
    /// A later hit shall leave its stack.
    is_short: AtomicBool,
}

impl Sites {
    pub(super) fn new() -> Self {
        Self { places: (0..PLACES).map(|_| Place::default()).collect(), others: AtomicU64::new(0) }
    }

    /// Counts a hit in its place. `stack` fills in the stack of the first one there.
    pub(super) fn add(&self, hit: &mut Hit, stack: impl FnOnce(&mut Hit)) {
        let Some((place, is_first)) = self.place(hit.ip, hit.group) else {
            self.others.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let nth = place.hits.fetch_add(1, Ordering::Relaxed) + 1;
        // Ever more rarely: nothing is learned before somebody reads, and some code never is.
        let is_short = nth.is_power_of_two() && place.is_short.load(Ordering::Relaxed);
        let with_stack = is_first || is_short && place.is_short.swap(false, Ordering::Relaxed);
        if with_stack {
            stack(hit);
        }
        let is_written = place.set_last(hit, with_stack);
        if with_stack && (hit.is_missed || !is_written) {
            place.is_short.store(true, Ordering::Relaxed);
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
    /// Returns false if another handler is at it.
    fn set_last(&self, hit: &Hit, with_stack: bool) -> bool {
        let write = || {
            self.tid.store(hit.tid, Ordering::Relaxed);
            self.task.store(hit.task, Ordering::Relaxed);
            self.mono_ns.store(hit.mono_ns, Ordering::Relaxed);
            self.old.store(hit.old, Ordering::Relaxed);
            self.new.store(hit.new, Ordering::Relaxed);
            self.has_values.store(hit.has_values, Ordering::Relaxed);
            if with_stack {
                let depth = hit.depth.min(DEPTH);
                self.depth.store(depth, Ordering::Relaxed);
                for (word, address) in self.stack.iter().zip(&hit.stack[..depth]) {
                    word.store(*address, Ordering::Relaxed);
                }
            }
        };
        self.last.try_write(write).is_some()
    }

    fn site(&self) -> Option<WatchSite> {
        let ip = self.ip.load(Ordering::Relaxed).checked_sub(1)?;
        let group = self.group.load(Ordering::Relaxed).checked_sub(1)? as u32;
        let hits = self.hits.load(Ordering::Relaxed);
        let (mut site, is_whole) = self.last.read(|| {
            let has_values = self.has_values.load(Ordering::Relaxed);
            let value = |word: &AtomicU64| has_values.then_some(word.load(Ordering::Relaxed));
            WatchSite {
                tid: self.tid.load(Ordering::Relaxed),
                task: self.task.load(Ordering::Relaxed),
                mono_ns: self.mono_ns.load(Ordering::Relaxed),
                old: value(&self.old),
                new: value(&self.new),
                stack: self.stack[..self.depth.load(Ordering::Relaxed).min(DEPTH)]
                    .iter()
                    .map(|word| word.load(Ordering::Relaxed))
                    .collect(),
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

    use super::*;

    fn hit(ip: usize, group: u32, new: u64) -> Hit {
        Hit { ip, group, new, old: !new, tid: new as u32, has_values: true, ..Hit::default() }
    }

    #[test]
    fn places_are_told_apart_by_code_and_group() {
        let sites = Sites::new();
        for (ip, group, stack) in [(0x1000, 0, 1), (0x1000, 1, 2), (0, 0, 3), (0x1000, 0, 4)] {
            sites.add(&mut hit(ip, group, 7), |hit| {
                hit.stack[0] = stack;
                hit.depth = 1;
            });
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
            sites.add(&mut hit(0x1000, 0, 7), |hit| {
                (hit.stack[0], hit.depth, hit.is_missed) = (address, 1, is_missed);
            });
        }
        assert_eq!(sites.read().0[0].stack, [2]);
    }

    #[test]
    fn hits_without_room_are_counted() {
        let sites = Sites::new();
        (0..1000).for_each(|ip| sites.add(&mut hit(ip, 0, 0), |_| {}));
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
                        sites.add(&mut hit(0x1000, 0, thread * 1_000_000 + n), |_| {});
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
