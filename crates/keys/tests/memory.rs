//! A process without memory: whatever allocation fails, keys refuse, and nothing ends the process.
#![cfg(not(dormouse_fallback))]
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

use dormouse_keys::{Batch, Error, Lease, Protocol, static_key, try_list, unlikely};
use dormouse_testkit::{fork, in_child};

/// Fails on request.
struct Scarce;

thread_local! {
    /// How many allocations the thread may make still.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    /// How many bytes it may have still.
    static ROOM: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn spend(bytes: usize) -> bool {
    let (left, room) = (LEFT.get(), ROOM.get());
    if left == 0 || room < bytes {
        return false;
    }
    LEFT.set(left - usize::from(left < usize::MAX));
    ROOM.set(if room < usize::MAX { room - bytes } else { room });
    true
}

fn give_back(bytes: usize) {
    ROOM.set(ROOM.get().saturating_add(bytes));
}

// SAFETY: as the system's, or null.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if spend(layout.size()) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !spend(size) {
            return std::ptr::null_mut();
        }
        give_back(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static MEMORY: Scarce = Scarce;

static_key! {
    static KEY: "memory.key" = false;
    static OTHER: "memory.other" = true;
}

#[inline(never)]
fn sites() -> [bool; 2] {
    [unlikely!(KEY), unlikely!(OTHER)]
}

/// Runs `act`, which may allocate `allocations` times.
fn with<T>(allocations: usize, act: impl FnOnce() -> T) -> T {
    LEFT.set(allocations);
    let done = act();
    LEFT.set(usize::MAX);
    done
}

/// Tries `act` with ever more allocations until it succeeds; before that it changes nothing.
fn refuses_until_it_succeeds<T>(what: &str, act: impl Fn() -> Result<T, Error>) -> T {
    for allocations in 0..1000 {
        let (before, baselines) = (sites(), [KEY.baseline(), OTHER.baseline()]);
        match with(allocations, &act) {
            Ok(done) => {
                assert!(allocations > 0, "{what} needs no memory: the test sees nothing");
                return done;
            }
            Err(error) => {
                assert!(matches!(error, Error::NoMemory), "{what}, {allocations}: {error}");
                assert_eq!((before, baselines), (sites(), [KEY.baseline(), OTHER.baseline()]), "{what}");
            }
        }
    }
    panic!("{what} never succeeds");
}

#[test]
fn without_memory_everything_is_refused_and_nothing_changes() {
    in_child(|| {
        // A fork's child, so that an abort is told from the failure of the test.
        let status = fork(|| {
            // The parts that are made once: the index, and the timer's thread.
            dormouse_keys::start_timer().unwrap();
            drop(Lease::of([KEY.key()]).unwrap());
            let second = Duration::from_secs(3600);
            refuses_until_it_succeeds("a batch", || Batch::new().enable(&KEY).disable(&OTHER).apply());
            assert_eq!(sites(), [true, false]);
            refuses_until_it_succeeds("a reset", || Batch::new().reset_all([KEY.key(), OTHER.key()]).apply());
            assert_eq!(sites(), [false, true]);
            refuses_until_it_succeeds("a hold", || KEY.enable_for(second));
            refuses_until_it_succeeds("its end", || Batch::new().end_all([KEY.key()], None).apply());
            let lease = refuses_until_it_succeeds("a lease", || Lease::of([KEY.key(), OTHER.key()]));
            assert_eq!((sites(), KEY.leases()), ([true, true], 1));
            let listed = refuses_until_it_succeeds("a list", || try_list(|used| used.sites));
            assert_eq!(listed, [1, 1]);
            let held = refuses_until_it_succeeds("a hold beside a lease", || KEY.enable_for(second));
            assert_eq!((held.keys, dormouse_keys::holds().len()), (0, 1));
            drop(lease);
            assert_eq!(KEY.leases(), 1);
        });
        assert!(status.success(), "{status}");
    });
}

/// Tries to switch `KEY` on with ever more bytes; gives how often it was refused.
fn enable_with_ever_more_bytes() -> usize {
    for refused in 0.. {
        ROOM.set(refused * 32);
        let switched = KEY.enable();
        ROOM.set(usize::MAX);
        match switched {
            Ok(_) => return refused,
            Err(error) => assert!(matches!(error, Error::NoMemory), "{refused}: {error}"),
        }
        assert_eq!((sites(), KEY.baseline()), ([false, true], false), "{refused}");
    }
    unreachable!()
}

#[test]
fn first_batches_are_refused_without_memory() {
    in_child(|| {
        // Read as `init` reads it, once in a process.
        assert_eq!(Protocol::config_error(), None);
        // A fork's child, so that an abort is told from the failure of the test.
        let status = fork(|| {
            let refused = enable_with_ever_more_bytes();
            assert!(refused > 0, "the first batch needs no memory: the test sees nothing");
            assert_eq!(sites(), [true, true]);
        });
        assert!(status.success(), "{status}");
    });
}
