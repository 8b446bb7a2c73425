//! A [`RangeMap`] and a [`Cache`] do what a `BTreeMap` does, at the end of the address space too.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use dormouse_maps::{Cache, Overlap, RangeMap};

use crate::Supply;

/// Each address of the oracle stands for this many of the map's: places of the cache are shared,
/// and are not.
const EACH: u64 = 1 << 18;
/// The last of the oracle's 256 addresses ends with the address space.
const BASE: u64 = u64::MAX - (256 * EACH - 1);

/// By first address: last one and value. An address here is a byte.
type Oracle = BTreeMap<u8, (u8, u32)>;

fn addrs(start: u8, last: u8) -> RangeInclusive<u64> {
    let first = |at: u8| BASE + u64::from(at) * EACH;
    first(start)..=first(last) + (EACH - 1)
}

/// The mappings in a range, in order.
fn among(oracle: &Oracle, start: u8, last: u8) -> Vec<(u8, u8, u32)> {
    let all = oracle.range(..=last).map(|(&first, &(end, value))| (first, end, value));
    all.filter(|&(_, end, _)| end >= start).collect()
}

/// Takes away what lies in a range: all of each mapping, or what of it is inside.
fn cut(oracle: &mut Oracle, start: u8, last: u8, whole: bool) {
    for (first, end, value) in among(oracle, start, last) {
        oracle.remove(&first);
        if !whole && first < start {
            oracle.insert(first, (start - 1, value));
        }
        if !whole && end > last {
            oracle.insert(last + 1, (end, value));
        }
    }
}

/// Bytes are operations of two numbers each.
///
/// # Panics
///
/// When map or cache say something else than the oracle.
pub fn check(bytes: &[u8]) {
    // Two bits of generations: they come round all the time.
    let map = RangeMap::<u32, 2>::with_width();
    let cache = Cache::new();
    let mut oracle = Oracle::new();
    let mut supply = Supply(bytes);
    let mut value = 0;
    while let (Some(op), Some(one), Some(two)) = (supply.next(), supply.next(), supply.next()) {
        let (start, last) = (one.min(two), one.max(two));
        let there = among(&oracle, start, last);
        value += 1;
        match op % 8 {
            kind @ 0..=2 => {
                let overlap = [Overlap::Reject, Overlap::Replace, Overlap::Split][usize::from(kind)];
                let insert =
                    |edit: &mut dormouse_maps::Edit<u32>| edit.insert(addrs(start, last), value, overlap);
                let result =
                    if op & 0x80 == 0 { map.update(insert) } else { map.update_cached(&cache, insert) };
                assert_eq!(result.is_err(), kind == 0 && !there.is_empty());
                if result.is_ok() {
                    cut(&mut oracle, start, last, kind == 1);
                    oracle.insert(start, (last, value));
                }
            }
            3 => {
                let mut touched = 0;
                map.update(|edit| edit.remove(addrs(start, last)).map(|n| touched = n)).unwrap();
                assert_eq!(touched, there.len());
                cut(&mut oracle, start, last, false);
            }
            4 => {
                let result = map.update(|edit| edit.grow(addrs(start, last)));
                let grows = matches!(there[..], [(first, end, _)] if start <= first && end <= last);
                assert_eq!(result.is_ok(), grows);
                if let ([(first, _, value)], true) = (&there[..], grows) {
                    oracle.remove(first);
                    oracle.insert(start, (last, *value));
                }
            }
            _ => {
                for at in [one, two] {
                    let right = among(&oracle, at, at).pop();
                    for addr in [*addrs(at, at).start(), *addrs(at, at).end()] {
                        let found = map.find(addr).unwrap();
                        let shown = found.map(|m| (m.start..=m.last, m.value));
                        assert_eq!(shown, right.map(|(first, end, value)| (addrs(first, end), value)));
                        let cached = map.find_cached(&cache, addr).unwrap();
                        assert_eq!(cached.map(|m| m.value), right.map(|(_, _, value)| value));
                        // Before it grew it was smaller, never larger.
                        if let (Some(cached), Some(found)) = (cached, found) {
                            assert!(cached.contains(addr));
                            assert!(found.start <= cached.start && cached.last <= found.last);
                        }
                    }
                }
            }
        }
    }
    let all: Vec<_> = map.mappings().unwrap().iter().map(|m| (m.start..=m.last, m.value)).collect();
    let right: Vec<_> = oracle.iter().map(|(&first, &(end, value))| (addrs(first, end), value)).collect();
    assert_eq!(all, right);
}
