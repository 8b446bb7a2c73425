//! The map against a slow, obvious one: an array of what lies at every address.

use dormouse_maps::{Cache, EditError, Overlap, RangeMap};
use proptest::prelude::*;

/// Addresses of the oracle, the last ones of the address space.
const SPACE: u64 = 96;
const BASE: u64 = u64::MAX - (SPACE - 1);

#[derive(Debug, Clone)]
enum Step {
    Insert(u64, u64, Overlap),
    Remove(u64, u64),
    Grow(u64, u64),
    Clear,
    Invalidate,
    Ask(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0..SPACE, 0..24_u64).prop_map(|(start, more)| (start, (start + more).min(SPACE - 1)));
    let overlap = prop_oneof![Just(Overlap::Reject), Just(Overlap::Replace), Just(Overlap::Split)];
    prop_oneof![
        4 => (range(), overlap).prop_map(|((start, last), overlap)| Step::Insert(start, last, overlap)),
        2 => range().prop_map(|(start, last)| Step::Remove(start, last)),
        2 => range().prop_map(|(start, last)| Step::Grow(start, last)),
        1 => Just(Step::Clear),
        1 => Just(Step::Invalidate),
        12 => (0..SPACE).prop_map(Step::Ask),
    ]
}

/// At each address the identity of the mapping there and its value: pieces of a cut mapping are mappings
/// of their own.
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
        // What was cut in the middle has become two.
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
    #[test]
    fn every_answer_is_that_of_the_oracle(steps in prop::collection::vec(step(), 1..120)) {
        let map = RangeMap::<u32, u8>::new();
        let cache = Cache::new();
        let mut oracle = Oracle { there: vec![None; SPACE as usize], identities: 0 };
        for (value, step) in (0..).zip(steps) {
            match step {
                Step::Insert(start, last, overlap) => {
                    let there = oracle.among(start, last);
                    let result = map.update(|e| e.insert(BASE + start..=BASE + last, value, overlap));
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
                    map.update(|e| e.remove(BASE + start..=BASE + last).map(|n| touched = n)).unwrap();
                    prop_assert_eq!(touched, oracle.among(start, last).len());
                    oracle.put(start, last, None);
                }
                Step::Grow(start, last) => {
                    let result = map.update(|e| e.grow(BASE + start..=BASE + last));
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
                Step::Clear => {
                    map.update(|e| { e.clear(); Ok::<_, EditError>(()) }).unwrap();
                    oracle.put(0, SPACE - 1, None);
                }
                Step::Invalidate => map.invalidate(),
                Step::Ask(at) => {
                    let right = oracle.find(at);
                    let found = map.find(BASE + at).unwrap();
                    prop_assert_eq!(found.map(|m| (m.start - BASE, m.last - BASE, m.value)), right);
                    let cached = map.find_cached(&cache, BASE + at).unwrap();
                    prop_assert_eq!(cached.map(|m| m.value), right.map(|(_, _, value)| value));
                    // Before it grew it was smaller, never larger.
                    if let (Some(cached), Some(found)) = (cached, found) {
                        prop_assert!(cached.contains(BASE + at));
                        prop_assert!(found.start <= cached.start && cached.last <= found.last);
                    }
                }
            }
        }
        let all: Vec<(u64, u64)> =
            map.mappings().unwrap().iter().map(|m| (m.start - BASE, m.last - BASE)).collect();
        let right: Vec<(u64, u64)> =
            oracle.among(0, SPACE - 1).into_iter().map(|id| oracle.bounds(id)).collect();
        prop_assert_eq!(all, right);
    }
}
