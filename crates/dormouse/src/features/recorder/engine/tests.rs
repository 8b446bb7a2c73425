//! One recorder, its keys, and how often it reads the rings.
#![allow(unsafe_code, reason = "a thread that ends in the midst")]

use dormouse_keys::Selector;
use dormouse_testkit::in_child;

use super::*;

dormouse_keys::static_key! { static FLAG: "recording.flag" = false; }

/// The probe that is recorded.
fn awake() {
    crate::probe!("recording.awake");
}

fn keys(glob: &str) -> Result<Vec<KeyUse>, TraceError> {
    awake();
    Ok(Selector::parse(glob)?.try_keys()?)
}

fn is_on() -> bool {
    keys("recording.awake").is_ok_and(|keys| keys.iter().all(|used| used.key.is_enabled()))
}

fn begin() -> Result<(u64, BatchReport), RecorderError> {
    start("recording.*", || keys("recording.*"), LEAST_MEMORY, None)
}

#[test]
fn flags_of_the_service_stay_as_they_are() {
    in_child(|| {
        begin().unwrap();
        assert!(is_on() && !dormouse_keys::unlikely!(FLAG));
        assert_eq!(stat().map(|stat| stat.keys), Some(1));
        assert!(stop(None).is_some());
        let refused = start("recording.flag", || keys("recording.flag"), LEAST_MEMORY, None);
        assert!(matches!(refused, Err(RecorderError::Trace(TraceError::NoProbe { .. }))), "{refused:?}");
    });
}

#[test]
fn a_killed_lookout_leaves_no_key_on() {
    in_child(|| {
        let (first, _) = begin().unwrap();
        let refused = begin();
        assert!(is_on() && matches!(refused, Err(RecorderError::Running { .. })), "{refused:?}");
        // SAFETY: ends the lookout's thread alone, as a filter would.
        let killed = LOOKOUT.ask(|_| unsafe { libc::syscall(libc::SYS_exit, 0) });
        assert!(killed.is_err(), "{killed:?}");
        assert!(stat().is_none() && !is_on());
        assert!(stop(Some(first)).is_none());
        let (second, _) = begin().unwrap();
        assert!(second != first && is_on() && stat().is_some());
        assert_eq!(stop(None).map(|stat| stat.number), Some(second));
        assert!(!is_on());
    });
}

#[test]
fn lent_keys_go_off_with_their_recorder() {
    in_child(|| {
        begin().unwrap();
        drop(lend());
        assert!(is_on() && held_keys().0.len() == 1, "it has gone back");
        let lent = lend();
        assert!(lent.is_some() && held_keys().0.is_empty());
        assert!(stop(None).is_some() && is_on());
        drop(lent);
        assert!(!is_on());
    });
}

#[test]
fn looks_follow_the_fullest_ring() {
    // Nothing comes: as seldom as it may, but not at once.
    let mut tick = OFTEN;
    for _ in 0..20 {
        let next = next_tick(tick, 0);
        assert!(next <= 2 * tick && next <= SELDOM);
        tick = next;
    }
    assert_eq!(tick, SELDOM);
    // A full ring may have lost more than it holds.
    assert_eq!(next_tick(SELDOM, RING_BYTES), SELDOM / 4);
    let mut tick = SELDOM;
    for _ in 0..10 {
        tick = next_tick(tick, RING_BYTES);
    }
    assert_eq!(tick, OFTEN);
    // As full as it is meant to be.
    assert_eq!(next_tick(10 * OFTEN, AIM), 10 * OFTEN);
}
