//! A forked child begins without leases.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::time::Duration;

use dormouse_keys::{Batch, holds, likely, static_key, unlikely};
use dormouse_testkit::{eventually, fork, in_child};

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

#[test]
fn a_child_takes_leases_of_its_own() {
    in_child(|| {
        const HOUR: Duration = Duration::from_secs(3600);
        assert_eq!(sites(), [false, false, false, false, true, true, false, false]);
        let lease = LEASED.acquire().unwrap();
        TIMED.enable_for(HOUR).unwrap();
        Batch::new().disable(&LINGERING).dwell(HOUR).enable(&KEPT).apply().unwrap();
        let before = [true, true, true, true, true, true, true, false];
        assert_eq!(sites(), before);
        let mut inherited = Some(lease);
        let status = fork(|| {
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
            eventually(|| !TIMED.is_enabled());
            assert!(!unlikely!(TIMED));
            // And a child of the child is another process again.
            let _own = NEVER.acquire().unwrap();
            let child = fork(|| assert!(!unlikely!(NEVER) && NEVER.leases() == 0 && unlikely!(KEPT)));
            assert!(child.success(), "{child}");
            assert!(unlikely!(NEVER) && NEVER.leases() == 1);
        });
        assert!(status.success(), "{status}");
        assert_eq!((sites(), LEASED.leases(), holds().len()), (before, 1, 2), "the parent notices nothing");
        drop(inherited);
        assert!(!unlikely!(LEASED) && unlikely!(TIMED));
    });
}
