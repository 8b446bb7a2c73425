//! A forked child has the map as it was and changes its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dormouse_maps::{Cache, Overlap, RangeMap};

const PAGE: u64 = 4096;
const FORKS: u64 = 50;

static MAP: RangeMap<u64> = RangeMap::new();

thread_local! {
    static CACHE: Cache<u64> = const { Cache::new() };
}

/// The value in the map, and in the cache.
fn value(addr: u64) -> [Option<u64>; 2] {
    let cached = CACHE.with(|cache| MAP.find_cached(cache, addr)).expect("a slot");
    [MAP.find(addr).expect("a slot"), cached].map(|mapping| mapping.map(|mapping| mapping.value))
}

fn put(value: u64) {
    MAP.update(|edit| edit.insert(0..PAGE, value, Overlap::Replace)).expect("no overlap is refused");
}

fn child(number: u64) {
    assert_eq!(value(7), [Some(number); 2]);
    // More than once: a snapshot that the parent's threads were reading is never given back, no
    // more.
    for other in 1000..1010 {
        put(other);
        assert_eq!(value(7), [Some(other); 2]);
    }
    let new = RangeMap::<u64>::new();
    new.update(|edit| edit.insert(.., 5, Overlap::Reject)).expect("an empty map");
    let found = CACHE.with(|cache| new.find_cached(cache, u64::MAX)).expect("a slot");
    assert_eq!(found.expect("a mapping").value, 5);
}

#[test]
fn a_fork_has_a_map_of_its_own() {
    dormouse_testkit::in_child(storm);
}

fn storm() {
    let done = AtomicBool::new(false);
    MAP.update(|edit| edit.insert(PAGE..2 * PAGE, 1, Overlap::Reject)).expect("an empty map");
    thread::scope(|scope| {
        // They are in the middle of a search, mostly; the child has their slots and not them.
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(value(PAGE), [Some(1); 2]);
                }
            });
        }
        for number in 0..FORKS {
            put(number);
            assert_eq!(value(7), [Some(number); 2]);
            let status = dormouse_testkit::fork(|| child(number));
            assert!(status.success(), "{status}");
            assert_eq!(value(7), [Some(number); 2], "what a child changes is its own");
        }
        done.store(true, Ordering::Relaxed);
    });
}
