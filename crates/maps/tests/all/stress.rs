//! Readers beside a writer: every answer was true at some moment between call and return.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use dormouse_maps::{Cache, EditError, Overlap, RangeMap};
use dormouse_testkit::stress_rounds;

const READERS: usize = 3;
const PAGE: u64 = 4096;

fn updates() -> u64 {
    stress_rounds(20_000, 1_000_000)
}

/// The writer replaces two mappings in each update, by ones that bear the update's number. A reader
/// notes the update that had ended before it asked and the one that had begun when it was answered:
/// the answer must lie between.
fn answers_are_timely<const WIDTH: u32>() {
    let map = RangeMap::<u64, WIDTH>::with_width();
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
                    while asked == 0 || !done.load(Ordering::Relaxed) {
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
    answers_are_timely::<16>();
}

#[test]
fn answers_stay_true_while_generations_come_round() {
    answers_are_timely::<8>();
}

/// Cycle n maps a range with n as its value and takes it away again, beside mappings that stay.
/// Readers note as above which step had ended and which had begun: odd ones map, even ones unmap.
#[test]
fn no_stale_answer_over_many_mappings() {
    let map = RangeMap::<u64>::new();
    let (begun, ended, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let step = |number: u64, edit: &dyn Fn() -> Result<(), EditError>| {
        begun.store(number, Ordering::SeqCst);
        edit().unwrap();
        ended.store(number, Ordering::SeqCst);
    };
    let stay = [0, 4 << 20];
    map.update(|edit| stay.iter().try_for_each(|&at| edit.insert(at..at + PAGE, u64::MAX, Overlap::Reject)))
        .unwrap();
    let ready = Barrier::new(READERS + 1);
    let hits: Vec<u64> = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let (map, begun, ended, done, ready) = (&map, &begun, &ended, &done, &ready);
                scope.spawn(move || {
                    let cache = Cache::new();
                    ready.wait();
                    while !done.load(Ordering::Relaxed) {
                        let low = ended.load(Ordering::SeqCst);
                        let answer = map.find_cached(&cache, PAGE + 1).unwrap().map(|mapping| mapping.value);
                        let high = begun.load(Ordering::SeqCst);
                        let right = match answer {
                            Some(cycle) => (low..=high).contains(&(2 * cycle - 1)),
                            None => low.is_multiple_of(2) || high > low,
                        };
                        assert!(right, "{answer:?} was given between {low} and {high}");
                        for at in stay {
                            let value = map.find_cached(&cache, at).unwrap().map(|mapping| mapping.value);
                            assert_eq!(value, Some(u64::MAX));
                        }
                    }
                    cache.stats().hits
                })
            })
            .collect();
        let cache = Cache::new();
        ready.wait();
        let find = || map.find_cached(&cache, PAGE).unwrap().map(|mapping| mapping.value);
        for cycle in 1..=stress_rounds(100_000, 1_000_000) {
            let range = PAGE..2 * PAGE;
            step(2 * cycle - 1, &|| {
                map.update_cached(&cache, |edit| edit.insert(range.clone(), cycle, Overlap::Reject))
            });
            assert_eq!(find(), Some(cycle));
            step(2 * cycle, &|| map.update(|edit| edit.remove(range.clone()).map(drop)));
            assert_eq!(find(), None);
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert!(hits.iter().all(|&hits| hits > 0), "{hits:?}");
}

#[test]
fn the_changes_of_one_update_are_seen_together() {
    let map = RangeMap::<u64>::new();
    let done = AtomicBool::new(false);
    let put = |n: u64| {
        map.update(|edit| {
            edit.remove(..)?;
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
fn ended_threads_leave_no_slot_taken() {
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
fn caches_outlive_maps() {
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
