//! Hits, misses and stale answers; caches that rest, and caches that are shared.

use super::*;
use crate::{EditError, Overlap};

const PAGE: u64 = 4096;

/// Every second page is a mapping that bears its number.
fn map<const WIDTH: u32>(pages: u64) -> RangeMap<u64, WIDTH> {
    let map = RangeMap::with_width();
    map.update(|edit| {
        (0..pages).step_by(2).try_for_each(|n| edit.insert(n * PAGE..(n + 1) * PAGE, n, Overlap::Reject))
    })
    .unwrap();
    map
}

fn value<const WIDTH: u32>(map: &RangeMap<u64, WIDTH>, cache: &Cache<u64>, addr: u64) -> Option<u64> {
    map.find_cached(cache, addr).unwrap().map(|mapping| mapping.value)
}

#[test]
fn second_look_up_of_mapping_is_hit() {
    let (map, cache) = (map::<16>(4), Cache::new());
    assert_eq!(value(&map, &cache, 2 * PAGE), Some(2));
    assert_eq!(value(&map, &cache, 3 * PAGE - 1), Some(2));
    assert_eq!(value(&map, &cache, 0), Some(0));
    assert_eq!(value(&map, &cache, 2 * PAGE), Some(2));
    assert_eq!(cache.stats(), CacheStats { hits: 2, misses: 2, stale: 0, bypassed: 0 });
}

#[test]
fn absence_is_never_remembered() {
    let (map, cache) = (map::<16>(2), Cache::new());
    assert_eq!(value(&map, &cache, PAGE), None);
    map.update(|edit| edit.insert(PAGE..2 * PAGE, 1, Overlap::Reject)).unwrap();
    assert_eq!(value(&map, &cache, PAGE), Some(1));
}

#[test]
fn untouched_stale_answer_is_taken_up_again() {
    let (map, cache) = (map::<16>(8), Cache::new());
    for n in [0, 2, 4] {
        assert_eq!(value(&map, &cache, n * PAGE), Some(n));
    }
    map.update(|edit| edit.remove(2 * PAGE..3 * PAGE).map(drop)).unwrap();
    // Places hold two; that of page 0 was given up.
    for (n, right) in [(4, Some(4)), (2, None)] {
        assert_eq!(value(&map, &cache, n * PAGE), right);
    }
    assert_eq!(cache.stats(), CacheStats { hits: 1, misses: 4, stale: 1, bypassed: 0 });
}

#[test]
fn answer_older_than_growth_goes_with_its_mapping() {
    let (map, cache) = (map::<16>(2), Cache::new());
    assert_eq!(value(&map, &cache, 0), Some(0));
    map.update(|edit| edit.grow(0..2 * PAGE)).unwrap();
    // Next to the mapping that is in the cache.
    map.update(|edit| edit.insert(PAGE..2 * PAGE, 7, Overlap::Replace)).unwrap();
    assert_eq!((value(&map, &cache, 0), value(&map, &cache, PAGE)), (None, Some(7)));
}

#[test]
fn own_insertion_is_a_hit() {
    let (map, cache) = (map::<16>(4), Cache::new());
    assert_eq!(value(&map, &cache, 0), Some(0));
    // Ends in another place than it begins in.
    let large = 2 * PAGE..=(5 << PLACE_BITS);
    map.update_cached(&cache, |edit| edit.insert(large.clone(), 7, Overlap::Split)).unwrap();
    for addr in [*large.start(), *large.end(), 0] {
        assert!(value(&map, &cache, addr).is_some());
    }
    assert_eq!(cache.stats(), CacheStats { hits: 3, misses: 1, stale: 0, bypassed: 0 });
    // Refused: nothing is remembered of it.
    let refused = map.update_cached(&cache, |edit| {
        edit.insert(1 << 40..1 << 41, 8, Overlap::Reject)?;
        edit.insert(.., 9, Overlap::Reject)
    });
    assert!(matches!(refused, Err(EditError::Overlaps { .. })));
    assert_eq!(value(&map, &cache, 1 << 40), None);
    // Inserted and taken away again.
    map.update_cached(&cache, |edit| {
        edit.insert(1 << 40..1 << 41, 8, Overlap::Reject)?;
        edit.remove(1 << 40..1 << 41).map(drop)
    })
    .unwrap();
    assert_eq!(value(&map, &cache, 1 << 40), None);
}

#[test]
fn one_update_makes_all_entries_stale_untouched() {
    let (map, cache) = (map::<16>(4), Cache::new());
    for n in [0, 2] {
        assert_eq!(value(&map, &cache, n * PAGE), Some(n));
    }
    let tags = || cache.entries().map(Entry::tag).collect::<Vec<_>>();
    let before = (tags(), cache.stats().stale);
    map.update(|edit| {
        [0, 2].iter().try_for_each(|n| edit.insert(n * PAGE..(n + 1) * PAGE, n + 10, Overlap::Replace))
    })
    .unwrap();
    assert_eq!((tags(), cache.stats().stale), before);
    for n in [0, 2] {
        assert_eq!(value(&map, &cache, n * PAGE), Some(n + 10));
    }
    assert_eq!(cache.stats(), CacheStats { hits: 0, misses: 4, stale: 2, bypassed: 0 });
}

#[test]
fn no_old_answer_returns_when_bits_come_round() {
    let (map, old, used) = (RangeMap::<u64, 8>::with_width(), Cache::new(), Cache::new());
    let put = |value| map.update(|edit| edit.insert(0..PAGE, value, Overlap::Replace)).unwrap();
    put(0);
    // Of every generation of the first round one entry is left in a cache that is not asked again
    // until that generation has come round.
    let kept: Vec<Cache<u64>> = (0..255)
        .map(|n| {
            put(n);
            let cache = Cache::new();
            assert_eq!(value(&map, &cache, 0), Some(n));
            cache
        })
        .collect();
    assert_eq!(value(&map, &old, 0), Some(254));
    for n in 255_u64..1024 {
        put(n);
        assert_eq!(value(&map, &used, 0), Some(n));
        for cache in &kept {
            // Only a peek: a look-up would fill it anew.
            let hit = cache.entries().any(|entry| entry.answer(0, map.tag()).is_some());
            assert!(!hit, "an answer of an earlier round counts again in update {n}");
        }
    }
    assert_eq!(value(&map, &old, 0), Some(1023));
}

#[test]
fn maps_sharing_a_cache_get_own_answers() {
    let cache = Cache::<u64>::new();
    let maps: Vec<RangeMap<u64>> = (0..5)
        .map(|n| {
            let map = RangeMap::new();
            map.update(|edit| edit.insert(0..PAGE, n, Overlap::Reject)).unwrap();
            map
        })
        .collect();
    for _ in 0..3 {
        for (n, map) in (0..).zip(&maps) {
            assert_eq!(value(map, &cache, 7), Some(n));
            assert_eq!(value(map, &cache, 8), Some(n));
        }
    }
    assert!(cache.stats().hits >= 15);
}

#[test]
fn entries_of_a_dropped_map_never_answer() {
    let cache = Cache::<u64>::new();
    for n in 0..100 {
        // Likely at the address of the one before.
        let map = Box::new(RangeMap::new());
        map.update(|edit| edit.insert(0..PAGE, n, Overlap::Reject)).unwrap();
        assert_eq!(value(&map, &cache, 0), Some(n));
    }
    assert_eq!(cache.stats().hits, 0);
}

#[test]
fn nested_look_up_goes_round_the_cache() {
    let (map, cache) = (map::<16>(2), Cache::new());
    value(&map, &cache, 0);
    let before: Vec<Tag> = cache.entries().map(Entry::tag).collect();
    // As in a signal handler that has interrupted a look-up.
    cache.turn.set(Turn::BUSY);
    assert_eq!(value(&map, &cache, 0), Some(0));
    assert_eq!((cache.stats().bypassed, cache.stats().hits), (1, 0));
    assert_eq!(cache.turn.get(), Turn::BUSY);
    assert_eq!(cache.entries().map(Entry::tag).collect::<Vec<_>>(), before);
}

#[test]
fn lost_counts_are_never_negative() {
    let cache = Cache::<u64>::new();
    cache.turn.set(Turn(5));
    assert_eq!(cache.stats().bypassed, 0);
}

#[test]
fn useless_cache_rests_and_is_tried_again() {
    let (map, cache) = (map::<16>(20_000), Cache::new());
    let mut random = 1_u64;
    let mut ask = |count| {
        for _ in 0..count {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = (random >> 33) % 10_000 * 2;
            assert_eq!(value(&map, &cache, n * PAGE), Some(n));
        }
    };
    ask(100_000);
    let scattered = cache.stats();
    assert!(scattered.bypassed > 90_000, "{scattered:?}");
    for _ in 0..200_000 {
        value(&map, &cache, 0);
    }
    assert!(cache.stats().hits - scattered.hits > 50_000, "{:?}", cache.stats());
}

#[test]
fn the_last_address_is_cached_like_any_other() {
    let (map, cache) = (RangeMap::<u64>::new(), Cache::new());
    map.update(|edit| {
        edit.insert(.., 1, Overlap::Reject)?;
        edit.insert(u64::MAX..=u64::MAX, 2, Overlap::Split)?;
        Ok::<_, EditError>(())
    })
    .unwrap();
    for _ in 0..2 {
        assert_eq!(value(&map, &cache, u64::MAX), Some(2));
        assert_eq!(value(&map, &cache, u64::MAX - 1), Some(1));
        assert_eq!(value(&map, &cache, 0), Some(1));
    }
    assert!(cache.stats().hits >= 2);
}
