//! Snapshots are given back: at most one stays for each reader that is in the middle of one.
//!
//! It is alone in its program, because it counts all allocations of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use dormouse_maps::{Cache, EditError, Overlap, RangeMap};

const READERS: usize = 3;
const MAPPINGS: u64 = 3000;
const UPDATES: u64 = 500;
/// Allocations of a snapshot that are as large as the map: its mappings and its tree.
const EACH: usize = 2;
/// Smaller ones are those of everything else.
const LARGE: usize = 16 << 10;

/// Large allocations that live.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: the system's allocator does all of it; the counts are beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(usize::from(layout.size() >= LARGE), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(usize::from(layout.size() >= LARGE), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

#[test]
fn replaced_snapshots_are_freed() {
    let ready = Barrier::new(READERS + 1);
    let done = AtomicBool::new(false);
    let map = RangeMap::<u64>::new();
    let before = live();
    map.update(|edit| {
        (0..MAPPINGS).try_for_each(|n| edit.insert(n * 10..n * 10 + 5, n, Overlap::Reject))?;
        Ok::<_, EditError>(())
    })
    .unwrap();
    assert_eq!(live(), before + EACH);
    thread::scope(|scope| {
        for reader in 0..READERS as u64 {
            let (map, done, ready) = (&map, &done, &ready);
            scope.spawn(move || {
                let cache = Cache::new();
                ready.wait();
                for n in (reader..).step_by(7).take_while(|_| !done.load(Ordering::Relaxed)) {
                    let addr = n % MAPPINGS * 10;
                    assert!(map.find(addr).unwrap().is_some());
                    assert!(map.find_cached(&cache, addr).unwrap().is_some());
                }
            });
        }
        ready.wait();
        let base = live();
        for update in 0..UPDATES {
            let at = update % MAPPINGS * 10;
            map.update(|edit| edit.insert(at..at + 5, update, Overlap::Replace)).unwrap();
            let kept = (live() - base) / EACH;
            assert!(kept <= READERS, "{kept} replaced snapshots live beside {READERS} readers");
        }
        done.store(true, Ordering::Relaxed);
    });
    map.update(|edit| edit.remove(..5).map(drop)).unwrap();
    assert_eq!(live(), before + EACH, "nobody reads: only the present one");
    drop(map);
    assert_eq!(live(), before);
}
