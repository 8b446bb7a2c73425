//! Readers beside a writer: every answer was true at some moment between call and return.
//!
//! Short by default; `DORMOUSE_STRESS` gives the number of updates.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dormouse_maps::{Cache, EditError, Generation, Overlap, RangeMap};

const READERS: usize = 3;
const PAGE: u64 = 4096;

fn updates() -> u64 {
    std::env::var("DORMOUSE_STRESS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

/// The writer replaces two mappings in each update, by ones that bear the update's number. A reader notes the
/// update that had ended before it asked and the one that had begun when it was answered: the answer
/// must lie between.
fn answers_are_timely<G: Generation>() {
    let map = RangeMap::<u64, G>::new();
    let (begun, ended, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let put = |number: u64| {
        begun.store(number, Ordering::SeqCst);
        map.update(|edit| {
            edit.insert(0..PAGE, number, Overlap::Replace)?;
            edit.insert(PAGE..2 * PAGE, number, Overlap::Split)?;
            // Bounds that move with the number, so that a torn answer would show.
            edit.insert(4 * PAGE..=4 * PAGE + number, number, Overlap::Replace)
        })
        .unwrap();
        ended.store(number, Ordering::SeqCst);
    };
    put(1);
    let asked: Vec<u64> = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS as u64)
            .map(|reader| {
                let (map, begun, ended, done) = (&map, &begun, &ended, &done);
                scope.spawn(move || {
                    let cache = Cache::new();
                    let mut asked = 0_u64;
                    while !done.load(Ordering::Relaxed) {
                        asked += 1;
                        let addr = [0, PAGE, 4 * PAGE][(asked % 3) as usize] + reader % 2;
                        let low = ended.load(Ordering::SeqCst);
                        let answer = if asked.is_multiple_of(5) {
                            map.find(addr)
                        } else {
                            map.find_cached(&cache, addr)
                        };
                        let high = begun.load(Ordering::SeqCst);
                        let mapping = answer.unwrap().expect("always mapped");
                        assert!(mapping.contains(addr));
                        assert!(
                            low <= mapping.value && mapping.value <= high,
                            "{} was given between {low} and {high}",
                            mapping.value
                        );
                        if addr >= 4 * PAGE {
                            assert_eq!(mapping.last, 4 * PAGE + mapping.value);
                        }
                    }
                    asked
                })
            })
            .collect();
        for number in 2..=updates() {
            put(number);
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert!(asked.iter().all(|&asked| asked > 0));
}

#[test]
fn every_answer_was_true_between_call_and_return() {
    answers_are_timely::<u64>();
}

#[test]
fn so_it_was_where_generations_come_round_all_the_time() {
    answers_are_timely::<u8>();
}

#[test]
fn the_changes_of_one_update_are_seen_together() {
    let map = RangeMap::<u64>::new();
    let done = AtomicBool::new(false);
    let put = |n: u64| {
        map.update(|edit| {
            edit.clear();
            (0..8).try_for_each(|at| edit.insert(at * PAGE..(at + 1) * PAGE, n, Overlap::Reject))
        })
        .unwrap();
    };
    put(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let all = map.mappings().unwrap();
                assert_eq!(all.len(), 8);
                assert!(all.iter().all(|mapping| mapping.value == all[0].value));
            }
        });
        (1..updates() / 4).for_each(put);
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn threads_that_come_and_go_leave_no_slot_taken() {
    thread_local! {
        static CACHE: Cache<u64> = const { Cache::new() };
    }
    let map = RangeMap::<u64>::new();
    map.update(|edit| edit.insert(.., 7, Overlap::Reject)).unwrap();
    // More threads than there are slots.
    for _ in 0..40 {
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    for addr in 0..10 {
                        let found = CACHE.with(|cache| map.find_cached(cache, addr)).unwrap();
                        assert_eq!(found.unwrap().value, 7);
                    }
                    assert_eq!(CACHE.with(Cache::stats).hits, 9);
                });
            }
        });
    }
    assert_eq!(map.find(0).unwrap().unwrap().value, 7);
}

#[test]
fn maps_come_and_go_under_threads_that_keep_their_caches() {
    thread::scope(|scope| {
        for reader in 0..READERS as u64 {
            scope.spawn(move || {
                let cache = Cache::<u64>::new();
                for round in 0..300 {
                    let maps: Vec<RangeMap<u64>> = (0..4)
                        .map(|n| {
                            let map = RangeMap::new();
                            map.update(|edit| {
                                edit.insert(0..PAGE, reader << 32 | round << 8 | n, Overlap::Reject)?;
                                Ok::<_, EditError>(())
                            })
                            .unwrap();
                            map
                        })
                        .collect();
                    for (n, map) in (0..).zip(&maps).cycle().take(16) {
                        let found = map.find_cached(&cache, n).unwrap().unwrap();
                        assert_eq!(found.value, reader << 32 | round << 8 | n);
                    }
                }
            });
        }
    });
}
