//! Holds and dwell times, with a clock that the tests move.

use super::*;
use crate::clock::fake::pass;
use crate::hold::Holder;
use crate::hold::LONGEST_HOLD;
use crate::{Batch, Lease, PATCHING, static_key, unlikely};
use dormouse_testkit::in_child;

static_key! {
    static KEY: "timer.key" = false;
    static OTHER: "timer.other" = true;
}

const SECOND: Duration = Duration::from_secs(1);

#[inline(never)]
fn awake() -> (bool, bool) {
    (unlikely!(KEY), unlikely!(OTHER))
}

/// Lets time pass, and the timer look.
fn after(time: Duration) -> (bool, bool) {
    pass(time);
    end_due(&mut Guards::lock().unwrap(), clock::now());
    awake()
}

fn left() -> Vec<(Holder, Duration)> {
    holds().into_iter().map(|hold| (hold.holder, hold.left)).collect()
}

#[test]
fn the_thread_ends_holds_in_time() {
    in_child(|| {
        KEY.enable_for(SECOND * 3600).unwrap();
        // Earlier than what it waits for at that moment.
        Batch::new().hold_all([OTHER.key()], Holder::Program, SECOND).disable(&OTHER).apply().unwrap();
        assert_eq!(awake(), (true, true));
        for (time, expected) in [(SECOND, (true, false)), (SECOND * 3599, (false, false))] {
            pass(time);
            let start = Instant::now();
            while awake() != expected {
                // In real time the wait ends by itself.
                hold::wake_timer();
                assert!(start.elapsed() < Duration::from_secs(60), "{:?}", holds());
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn a_hold_ends_in_time_and_not_before() {
    in_child(|| {
        let report = KEY.enable_for(3 * SECOND).unwrap();
        assert_eq!((report.keys, report.sites), (1, 1));
        assert_eq!((KEY.leases(), left()), (1, vec![(Holder::Program, 3 * SECOND)]));
        assert_eq!(after(Duration::from_nanos(2_999_999_999)), (true, true));
        assert_eq!(after(Duration::from_nanos(1)), (false, true));
        assert_eq!((KEY.leases(), left()), (0, vec![]));
    });
}

#[test]
fn a_hold_is_extended_and_never_shortened() {
    in_child(|| {
        KEY.enable_for(3 * SECOND).unwrap();
        KEY.enable_for(SECOND).unwrap();
        assert_eq!(left(), [(Holder::Program, 3 * SECOND)]);
        let report = KEY.enable_for(5 * SECOND).unwrap();
        assert_eq!((report.keys, report.barriers, KEY.leases()), (0, 0, 1));
        assert_eq!(after(4 * SECOND), (true, true));
        assert_eq!(after(SECOND), (false, true));
    });
}

#[test]
fn holders_leave_one_anothers_holds_alone() {
    in_child(|| {
        let (root, user) = (Holder::User { uid: 0 }, Holder::User { uid: 1000 });
        Batch::new().hold_all([KEY.key()], root, 3 * SECOND).apply().unwrap();
        Batch::new().hold_all([KEY.key()], user, SECOND).apply().unwrap();
        assert_eq!(KEY.leases(), 2);
        assert_eq!(after(SECOND), (true, true));
        assert_eq!(left(), [(root, 2 * SECOND)]);
        Batch::new().end_all([KEY.key()], Some(user)).apply().unwrap();
        assert_eq!(awake(), (true, true));
        Batch::new().end_all([KEY.key()], None).apply().unwrap();
        assert_eq!((awake(), KEY.leases()), ((false, true), 0));
    });
}

#[test]
fn a_lease_becomes_a_hold_without_patching() {
    in_child(|| {
        KEY.acquire().unwrap().keep_for(2 * SECOND).unwrap();
        assert_eq!((awake(), KEY.leases()), ((true, true), 1));
        assert_eq!(after(SECOND), (true, true));
        assert_eq!(after(SECOND), (false, true));
        // Refused, it is held as before.
        let refused = KEY.acquire().unwrap().keep_for(LONGEST_HOLD + SECOND).unwrap_err();
        assert!(matches!(refused.error, Error::HoldLength { .. }));
        assert_eq!((awake(), KEY.leases(), refused.lease.keys().len()), ((true, true), 1, 1));
        drop(refused);
        assert_eq!((awake(), KEY.leases()), ((false, true), 0));
    });
}

#[test]
fn a_key_that_dwells_is_taken_again_unpatched() {
    in_child(|| {
        let lease = || KEY.acquire().unwrap().dwell(2 * SECOND).unwrap();
        let first = lease();
        assert_eq!(first.report().barriers, usize::from(PATCHING));
        assert_eq!(first.release().unwrap().keys, 0);
        assert_eq!((awake(), left()), ((true, true), vec![(Holder::Nobody, 2 * SECOND)]));
        for _ in 0..1000 {
            pass(Duration::from_millis(1));
            let again = lease();
            assert_eq!((again.report().keys, again.report().barriers, KEY.leases()), (0, 0, 2));
            drop(again);
            assert_eq!(KEY.leases(), 1, "it lingers once, however often it is given back");
        }
        // From the last time on.
        assert_eq!(after(Duration::from_nanos(1_999_999_999)), (true, true));
        assert_eq!(after(Duration::from_nanos(1)), (false, true));
    });
}

#[test]
fn a_leased_key_outlives_its_dwell_time() {
    in_child(|| {
        drop(KEY.acquire().unwrap().dwell(SECOND).unwrap());
        let plain = KEY.acquire().unwrap();
        assert_eq!(after(SECOND), (true, true));
        assert_eq!((KEY.leases(), left()), (1, vec![]));
        drop(plain);
        assert_eq!(awake(), (false, true));
        // And one that is given back without a dwell time does not end the lingering of others.
        drop(KEY.acquire().unwrap().dwell(SECOND).unwrap());
        drop(KEY.acquire().unwrap());
        assert_eq!(awake(), (true, true));
        assert_eq!(after(SECOND), (false, true));
    });
}

#[test]
fn a_batch_with_a_dwell_time_switches_later() {
    in_child(|| {
        let off = || Batch::new().disable(&OTHER).disable(&KEY).dwell(SECOND).apply().unwrap();
        assert_eq!(off().keys, 0);
        assert_eq!((awake(), OTHER.baseline()), ((false, true), false), "what was off does not go on");
        pass(SECOND / 2);
        assert_eq!(OTHER.enable().unwrap().keys, 0, "on again meanwhile");
        assert_eq!(after(SECOND / 2), (false, true));
        off();
        assert_eq!(after(SECOND), (false, false));
    });
}

#[test]
fn a_dwell_time_is_ended_alone() {
    in_child(|| {
        drop(KEY.acquire().unwrap().dwell(SECOND).unwrap());
        assert_eq!(Batch::new().end_all([KEY.key()], Some(Holder::Nobody)).apply().unwrap().keys, 1);
        assert_eq!((awake(), left()), ((false, true), vec![]));
        KEY.enable_for(SECOND).unwrap();
        assert_eq!(Batch::new().end_all([KEY.key()], Some(Holder::Nobody)).apply().unwrap().keys, 0);
        assert_eq!(awake(), (true, true));
        let mut lingers = KEY.acquire().unwrap().dwell(SECOND).unwrap();
        // A key that a batch gives back without its dwell time is off after it.
        let batch = Batch::new().end_all([KEY.key()], None);
        batch.apply_releasing(&mut [&mut lingers], |_| true).unwrap();
        assert_eq!((awake(), left(), lingers.keys().len()), ((false, true), vec![], 0));
    });
}

#[test]
fn a_time_out_of_bounds_is_refused() {
    in_child(|| {
        let too_long = LONGEST_HOLD + Duration::from_nanos(1);
        for error in [
            KEY.enable_for(Duration::ZERO).unwrap_err(),
            KEY.enable_for(too_long).unwrap_err(),
            KEY.enable_for(Duration::MAX).unwrap_err(),
            Batch::new().enable(&KEY).dwell(too_long).apply().unwrap_err(),
            KEY.acquire().unwrap().dwell(too_long).unwrap_err(),
        ] {
            assert!(error.to_string().contains("at most 31 days"), "{error}");
        }
        assert_eq!((awake(), KEY.leases(), left()), ((false, true), 0, vec![]));
        KEY.enable_for(LONGEST_HOLD).unwrap();
        // No dwell time is none.
        drop(Lease::of([OTHER.key()]).unwrap().dwell(Duration::ZERO).unwrap());
        assert_eq!(left(), [(Holder::Program, LONGEST_HOLD)]);
    });
}
