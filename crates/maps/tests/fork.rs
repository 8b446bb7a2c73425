//! A forked child has the map as it was and changes its own. No test harness: a fork wants few threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dormouse_maps::{Cache, Overlap, RangeMap};

const PAGE: u64 = 4096;
const FORKS: u64 = 50;

static MAP: RangeMap<u64> = RangeMap::new();

thread_local! {
    static CACHE: Cache<u64> = const { Cache::new() };
}

/// As the map and as the cache have it.
fn value(addr: u64) -> [Option<u64>; 2] {
    let cached = CACHE.with(|cache| MAP.find_cached(cache, addr)).expect("a slot");
    [MAP.find(addr).expect("a slot"), cached].map(|mapping| mapping.map(|mapping| mapping.value))
}

fn put(value: u64) {
    MAP.update(|edit| edit.insert(0..PAGE, value, Overlap::Replace)).expect("no overlap is refused");
}

/// What the child finds wrong, as its exit code.
fn child(number: u64) -> i32 {
    if value(7) != [Some(number); 2] {
        return 1;
    }
    // More than once: what the parent's threads were reading here is never given back, and that is all.
    for other in 1000..1010 {
        put(other);
        if value(7) != [Some(other); 2] {
            return 2;
        }
    }
    let new = RangeMap::<u64>::new();
    let made = new.update(|edit| edit.insert(.., 5, Overlap::Reject)).is_ok();
    let found = CACHE.with(|cache| new.find_cached(cache, u64::MAX)).ok().flatten();
    if made && found.is_some_and(|mapping| mapping.value == 5) { 0 } else { 3 }
}

fn main() {
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
            // SAFETY: the child is alone; the one lock that it takes, the writers', is this thread's to take, and the
            // allocator is whole after a fork.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "{}", std::io::Error::last_os_error());
            if pid == 0 {
                let code = child(number);
                // SAFETY: ends the child without the parent's exit handlers.
                unsafe { libc::_exit(code) };
            }
            let mut status = 0;
            // SAFETY: waits for the child made above.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert_eq!((waited, status), (pid, 0), "the child failed");
            assert_eq!(value(7), [Some(number); 2], "what a child changes is its own");
        }
        done.store(true, Ordering::Relaxed);
    });
    println!("{FORKS} passed, 0 failed");
}
