//! A forked child begins without leases.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

mod child;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use child::in_child;
use dormouse_keys::{Batch, holds, likely, static_key, unlikely};

static_key! {
    static LEASED: "fork.leased" = false;
    static TIMED: "fork.timed" = false;
    static LINGERING: "fork.lingering" = true;
    static KEPT: "fork.kept" = false;
    static NEVER: "fork.never" = false;
}

fn sites() -> [bool; 8] {
    [
        unlikely!(LEASED),
        likely!(LEASED),
        unlikely!(TIMED),
        likely!(TIMED),
        unlikely!(LINGERING),
        likely!(LINGERING),
        unlikely!(KEPT),
        unlikely!(NEVER),
    ]
}

/// Runs `body` in a forked child, which must not fail.
fn fork(body: impl FnOnce()) {
    // SAFETY: what the child does beyond a handler's means (it allocates, it panics when it fails) works after a
    // fork of the C libraries that this is tested with.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let failed = catch_unwind(AssertUnwindSafe(body)).is_err();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child failed");
}

#[test]
fn a_forked_child_has_none_of_its_parents_leases_and_takes_its_own() {
    in_child("a_forked_child_has_none_of_its_parents_leases_and_takes_its_own", || {
        const HOUR: Duration = Duration::from_secs(3600);
        assert_eq!(sites(), [false, false, false, false, true, true, false, false]);
        let lease = LEASED.acquire().unwrap();
        TIMED.enable_for(HOUR).unwrap();
        Batch::new().disable(&LINGERING).dwell(HOUR).enable(&KEPT).apply().unwrap();
        let before = [true, true, true, true, true, true, true, false];
        assert_eq!(sites(), before);
        let mut inherited = Some(lease);
        fork(|| {
            assert_eq!(sites(), [false, false, false, false, false, false, true, false]);
            assert!(!LEASED.is_enabled() && !TIMED.is_enabled() && !LINGERING.is_enabled());
            assert_eq!((LEASED.leases(), TIMED.leases(), holds().len()), (0, 0, 0));
            // A lease of its own is not touched by the end of an inherited one.
            let own = LEASED.acquire().unwrap();
            let inherited = inherited.take().unwrap();
            assert_eq!((inherited.keys().len(), own.keys().len()), (0, 1));
            assert_eq!(inherited.release().unwrap().keys, 0);
            assert!(unlikely!(LEASED) && LEASED.leases() == 1);
            drop(own);
            assert!(!unlikely!(LEASED));
            // Nor is there a thread of the parent's to end what begins here.
            TIMED.enable_for(Duration::from_millis(1)).unwrap();
            let start = Instant::now();
            while TIMED.is_enabled() {
                assert!(start.elapsed() < Duration::from_secs(60));
                std::thread::yield_now();
            }
            assert!(!unlikely!(TIMED));
            // And a child of the child is another process again.
            let _own = NEVER.acquire().unwrap();
            fork(|| assert!(!unlikely!(NEVER) && NEVER.leases() == 0 && unlikely!(KEPT)));
            assert!(unlikely!(NEVER) && NEVER.leases() == 1);
        });
        assert_eq!((sites(), LEASED.leases(), holds().len()), (before, 1, 2), "the parent notices nothing");
        drop(inherited);
        assert!(!unlikely!(LEASED) && unlikely!(TIMED));
    });
}
