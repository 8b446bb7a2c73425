//! The map against a slow, obvious one: an array with the mapping at every address.

use std::ops::RangeInclusive;

use dormouse_maps::{Cache, EditError, Overlap, RangeMap};
use dormouse_testkit::stress_rounds;
use proptest::prelude::*;

/// Addresses of the oracle: each stands for so many of the map's that places of the cache share and
/// do not share mappings, and they are the last ones of the address space.
const SPACE: u64 = 96;
const EACH: u64 = 1 << 19;
const BASE: u64 = u64::MAX - (SPACE * EACH - 1);

#[derive(Debug, Clone)]
enum Step {
    /// The cache is told, or not.
    Insert(u64, u64, Overlap, bool),
    Remove(u64, u64),
    Grow(u64, u64),
    Ask(u64, Which),
}

/// Which of the addresses that one of the oracle's stands for.
#[derive(Debug, Clone, Copy)]
enum Which {
    First,
    Last,
}

fn cases() -> u32 {
    // Of sixty operations each, on average.
    stress_rounds(15_000_u32, 1_000_000).div_ceil(50)
}

fn addrs(start: u64, last: u64) -> RangeInclusive<u64> {
    BASE + start * EACH..=BASE + last * EACH + (EACH - 1)
}

fn addr(at: u64, which: Which) -> u64 {
    let all = addrs(at, at);
    match which {
        Which::First => *all.start(),
        Which::Last => *all.end(),
    }
}

/// A mapping in the oracle's form.
fn shown<V>(mapping: dormouse_maps::Mapping<V>) -> (u64, u64, V) {
    ((mapping.start - BASE) / EACH, (mapping.last - BASE) / EACH, mapping.value)
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..SPACE, 0..24_u64).prop_map(|(start, more)| (start, (start + more).min(SPACE - 1)));
    let overlap = prop_oneof![Just(Overlap::Reject), Just(Overlap::Replace), Just(Overlap::Split)];
    prop_oneof![
        4 => (range(), overlap, any::<bool>())
            .prop_map(|((start, last), overlap, told)| Step::Insert(start, last, overlap, told)),
        2 => range().prop_map(|(start, last)| Step::Remove(start, last)),
        2 => range().prop_map(|(start, last)| Step::Grow(start, last)),
        12 => (0..SPACE, prop_oneof![Just(Which::First), Just(Which::Last)])
            .prop_map(|(at, which)| Step::Ask(at, which)),
    ]
}

/// At each address the identity of the mapping there and its value: pieces of a cut mapping are
/// mappings of their own.
#[derive(Debug, Clone, Default)]
struct Oracle {
    there: Vec<Option<(u32, u32)>>,
    identities: u32,
}

impl Oracle {
    fn identity(&mut self) -> u32 {
        self.identities += 1;
        self.identities
    }

    /// The identities in a range.
    fn among(&self, start: u64, last: u64) -> Vec<u32> {
        let mut all: Vec<u32> =
            self.there[start as usize..=last as usize].iter().flatten().map(|&(id, _)| id).collect();
        all.dedup();
        all
    }

    fn bounds(&self, id: u32) -> (u64, u64) {
        let is = |at: &usize| self.there[*at].is_some_and(|(other, _)| other == id);
        let first = (0..SPACE as usize).find(is).unwrap();
        let last = (0..SPACE as usize).rev().find(is).unwrap();
        (first as u64, last as u64)
    }

    fn put(&mut self, start: u64, last: u64, what: Option<u32>) {
        let id = self.identity();
        let after = self.there.get(last as usize + 1).copied().flatten();
        self.there[start as usize..=last as usize].fill(what.map(|value| (id, value)));
        // A mapping that was cut in the middle has become two.
        if let Some((cut, value)) = after {
            let before = (start as usize).checked_sub(1).and_then(|at| self.there[at]);
            if before.is_some_and(|(id, _)| id == cut) {
                let new = self.identity();
                for place in &mut self.there[last as usize + 1..] {
                    if place.is_some_and(|(id, _)| id == cut) {
                        *place = Some((new, value));
                    }
                }
            }
        }
    }

    fn find(&self, at: u64) -> Option<(u64, u64, u32)> {
        let (id, value) = self.there[at as usize]?;
        let (start, last) = self.bounds(id);
        Some((start, last, value))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn map_and_cache_answer_like_the_oracle(steps in prop::collection::vec(step(), 1..120)) {
        let map = RangeMap::<u32, 2>::with_width();
        // Shares the cache, and never changes.
        let other = RangeMap::<u32>::new();
        other.update(|e| e.insert(addrs(0, SPACE / 2), u32::MAX, Overlap::Reject)).unwrap();
        let cache = Cache::new();
        let mut asked = 0;
        let mut oracle = Oracle { there: vec![None; SPACE as usize], identities: 0 };
        for (value, step) in (0..).zip(steps) {
            match step {
                Step::Insert(start, last, overlap, told) => {
                    let there = oracle.among(start, last);
                    let result = if told {
                        map.update_cached(&cache, |e| e.insert(addrs(start, last), value, overlap))
                    } else {
                        map.update(|e| e.insert(addrs(start, last), value, overlap))
                    };
                    prop_assert_eq!(result.is_err(), overlap == Overlap::Reject && !there.is_empty());
                    if result.is_ok() {
                        if overlap == Overlap::Replace {
                            for id in there {
                                let (start, last) = oracle.bounds(id);
                                oracle.put(start, last, None);
                            }
                        }
                        oracle.put(start, last, Some(value));
                    }
                }
                Step::Remove(start, last) => {
                    let mut touched = 0;
                    map.update(|e| e.remove(addrs(start, last)).map(|n| touched = n)).unwrap();
                    prop_assert_eq!(touched, oracle.among(start, last).len());
                    oracle.put(start, last, None);
                }
                Step::Grow(start, last) => {
                    let result = map.update(|e| e.grow(addrs(start, last)));
                    let there = oracle.among(start, last);
                    let inside: Vec<u32> = there
                        .iter()
                        .copied()
                        .filter(|&id| oracle.bounds(id).0 >= start && oracle.bounds(id).1 <= last)
                        .collect();
                    let right = match (there.len(), inside.as_slice()) {
                        (1, [id]) => {
                            let value = oracle.there[oracle.bounds(*id).0 as usize].unwrap().1;
                            oracle.put(start, last, Some(value));
                            result.is_ok()
                        }
                        (_, []) => matches!(result, Err(EditError::Absent { .. })),
                        _ => matches!(result, Err(EditError::Overlaps { .. })),
                    };
                    prop_assert!(right, "{:?}", result);
                }
                Step::Ask(at, which) => {
                    let right = oracle.find(at);
                    let addr = addr(at, which);
                    let found = map.find(addr).unwrap();
                    prop_assert_eq!(found.map(shown), right);
                    let cached = map.find_cached(&cache, addr).unwrap();
                    prop_assert_eq!(cached.map(|m| m.value), right.map(|(_, _, value)| value));
                    // Before it grew it was smaller, never larger.
                    if let (Some(cached), Some(found)) = (cached, found) {
                        prop_assert!(cached.contains(addr));
                        prop_assert!(found.start <= cached.start && cached.last <= found.last);
                    }
                    let others = other.find_cached(&cache, addr).unwrap().map(|m| m.value);
                    prop_assert_eq!(others, (at <= SPACE / 2).then_some(u32::MAX));
                    asked += 2;
                }
            }
        }
        let stats = cache.stats();
        prop_assert_eq!(stats.hits + stats.misses + stats.bypassed, asked);
        prop_assert!(stats.stale <= stats.misses);
        let all: Vec<(u64, u64)> =
            map.mappings().unwrap().into_iter().map(shown).map(|(start, last, _)| (start, last)).collect();
        let right: Vec<(u64, u64)> =
            oracle.among(0, SPACE - 1).into_iter().map(|id| oracle.bounds(id)).collect();
        prop_assert_eq!(all, right);
    }
}
