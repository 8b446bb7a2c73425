//! Who ends holds: one thread, started by the first.
//!
//! It waits with the holds' lock for the next hold's end, or, when there is none, until it is told. So it costs
//! nothing while there is nothing to do. To end holds it takes its turn like everybody. Each copy of dormouse in a
//! process that has holds has such a thread, and so stays.
//!
//! # Promises to the host
//!
//! The thread blocks all signals that are sent to the process. It keeps no process from its end. A forked child has
//! no such thread, and no holds; its first hold starts another.

#[cfg(not(all(test, loom)))]
use std::io;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::batch::{Change, Turn, lock_holds};
use crate::hold::{Hold, Holder, Holds};
use crate::key::Key;
use crate::primitive::{Condvar, shared};
use crate::{Error, Protocol, clock, plan};

/// How often a hold whose end was refused is tried again: something else has patched a site, and may leave it.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

shared! {
    static SOONER: Condvar = Condvar::new();
}

/// What is held on for a time, by whom and for how long, through this copy of the library.
///
/// # Cost
///
/// Waits for a batch that is under way.
pub fn holds() -> Vec<Hold> {
    // From a signal handler inside a batch there is no answer.
    Turn::take().map(|turn| turn.holds.list(clock::now())).unwrap_or_default()
}

/// Sees to it that the thread runs. Not in anybody's turn: a thread that is started, and a copy that is to stay for
/// it, ask the loader.
#[cfg(not(all(test, loom)))]
pub(crate) fn start() -> Result<(), Error> {
    if std::mem::replace(&mut Turn::take()?.holds.timed, true) {
        return Ok(());
    }
    let started = dormouse_sys::rendezvous::stay().map_err(Error::from).and_then(|()| {
        spawn().map_err(|source| Error::Denied {
            what: "starting the thread that switches keys off",
            source,
            setting: "raise the limit of threads (ulimit -u, pids.max)",
        })
    });
    if started.is_err() {
        // Who has relied on the thread meanwhile is served by the next that starts.
        Turn::take()?.holds.timed = false;
    }
    started
}

/// A thread without an end is none of a model's.
#[cfg(all(test, loom))]
#[expect(clippy::unnecessary_wraps, reason = "the same shape as where there is a thread")]
pub(crate) fn start() -> Result<(), Error> {
    Ok(())
}

#[cfg(not(all(test, loom)))]
fn spawn() -> io::Result<()> {
    dormouse_sys::signals::with_all_blocked(|| {
        let thread = std::thread::Builder::new().name("dormouse-timer".into()).stack_size(512 * 1024);
        thread.spawn(run).map(drop)
    })
}

/// Has the thread look by `at`.
pub(crate) fn expect(holds: &Holds, at: Instant) {
    if holds.looks_at.is_none_or(|looks_at| at < looks_at) {
        SOONER.notify_one();
    }
}

#[cfg(not(all(test, loom)))]
fn run() {
    // It was started by somebody who had a turn, so there is one; without, nobody can be served.
    while let Ok(mut turn) = Turn::take() {
        let now = clock::now();
        look(&mut turn, now);
        drop(turn);
        sleep(now);
    }
}

/// Waits for the end of the next hold, or for word of an earlier one. Not at all, if one has begun since the thread
/// looked (at `now`) and is over.
pub(crate) fn sleep(now: Instant) {
    let mut holds = lock_holds();
    holds.looks_at = holds.next();
    match holds.looks_at {
        None => drop(SOONER.wait(holds).unwrap_or_else(PoisonError::into_inner)),
        Some(at) if at <= now => {}
        Some(at) => drop(SOONER.wait_timeout(holds, at - now).unwrap_or_else(PoisonError::into_inner)),
    }
}

/// Ends what is to end now, all in one batch. Keys that cannot be switched off do not keep the others on.
pub(crate) fn look(turn: &mut Turn, now: Instant) {
    let mut due = turn.holds.due(now);
    while !due.is_empty() {
        let changes = due.iter().map(|&(key, holder)| (key, Change::End(Some(holder)))).collect();
        let Err(error) = plan::commit(turn, changes, None, Protocol::of_process()) else { return };
        let in_the_way = |&mut (key, _): &mut (&'static Key, Holder)| {
            error.key().is_none_or(|in_the_way| key.name() == in_the_way)
        };
        for (key, holder) in due.extract_if(.., in_the_way) {
            turn.holds.postpone(key, holder, now + RETRY);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(unsafe_code, reason = "a site of this crate's own is")]
mod tests {
    use super::*;
    use crate::clock::fake::pass;
    use crate::hold::LONGEST_HOLD;
    use crate::tests::in_child;
    use crate::{Batch, Lease, PATCHING, static_key, unlikely};

    static_key! {
        static KEY: "timer.key" = false;
        static OTHER: "timer.other" = true;
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn awake() -> (bool, bool) {
        (unlikely!(KEY), unlikely!(OTHER))
    }

    /// Lets time pass, and the timer look.
    fn after(time: Duration) -> (bool, bool) {
        pass(time);
        look(&mut Turn::take().unwrap(), clock::now());
        awake()
    }

    fn left() -> Vec<(Holder, Duration)> {
        holds().into_iter().map(|hold| (hold.holder, hold.left)).collect()
    }

    #[test]
    fn the_thread_ends_holds_when_the_clock_says_so() {
        in_child("timer::tests::the_thread_ends_holds_when_the_clock_says_so", || {
            KEY.enable_for(SECOND * 3600).unwrap();
            // Sooner than what it waits for by then.
            Batch::new().hold_all([OTHER.key()], Holder::Program, SECOND).disable(&OTHER).apply().unwrap();
            assert_eq!(awake(), (true, true));
            for (time, expected) in [(SECOND, (true, false)), (SECOND * 3599, (false, false))] {
                pass(time);
                let start = Instant::now();
                while awake() != expected {
                    // In real time the wait ends by itself.
                    SOONER.notify_one();
                    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", holds());
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn what_is_enabled_for_a_time_goes_off_at_its_end_and_not_before() {
        in_child("timer::tests::what_is_enabled_for_a_time_goes_off_at_its_end_and_not_before", || {
            let report = KEY.enable_for(3 * SECOND).unwrap();
            assert_eq!((report.keys, report.sites), (1, 1));
            assert_eq!((KEY.leases(), left()), (1, vec![(Holder::Program, 3 * SECOND)]));
            assert_eq!(after(Duration::from_nanos(2_999_999_999)), (true, true));
            assert_eq!(after(Duration::from_nanos(1)), (false, true));
            assert_eq!((KEY.leases(), left()), (0, vec![]));
        });
    }

    #[test]
    fn a_hold_is_extended_never_shortened_and_counts_once() {
        in_child("timer::tests::a_hold_is_extended_never_shortened_and_counts_once", || {
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
    fn holders_do_not_shorten_or_end_one_anothers_holds() {
        in_child("timer::tests::holders_do_not_shorten_or_end_one_anothers_holds", || {
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
    fn a_lease_kept_for_a_time_needs_nobody_to_hold_it_and_patches_nothing_meanwhile() {
        in_child(
            "timer::tests::a_lease_kept_for_a_time_needs_nobody_to_hold_it_and_patches_nothing_meanwhile",
            || {
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
            },
        );
    }

    #[test]
    fn a_key_given_back_lingers_and_is_taken_again_without_patching() {
        in_child("timer::tests::a_key_given_back_lingers_and_is_taken_again_without_patching", || {
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
    fn a_key_that_is_held_when_its_lingering_ends_stays_on() {
        in_child("timer::tests::a_key_that_is_held_when_its_lingering_ends_stays_on", || {
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
    fn a_batch_with_a_dwell_time_defers_what_it_would_switch_off() {
        in_child("timer::tests::a_batch_with_a_dwell_time_defers_what_it_would_switch_off", || {
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
    fn flushing_ends_lingering_and_nothing_else() {
        in_child("timer::tests::flushing_ends_lingering_and_nothing_else", || {
            drop(KEY.acquire().unwrap().dwell(SECOND).unwrap());
            assert_eq!(KEY.flush().unwrap().keys, 1);
            assert_eq!((awake(), left()), ((false, true), vec![]));
            KEY.enable_for(SECOND).unwrap();
            assert_eq!(KEY.flush().unwrap().keys, 0);
            assert_eq!(awake(), (true, true));
            let mut lingers = KEY.acquire().unwrap().dwell(SECOND).unwrap();
            // What a batch gives back and flushes is off after it.
            let batch = Batch::new().end_all([KEY.key()], None);
            batch.apply_releasing(&mut [&mut lingers], |_| true).unwrap();
            assert_eq!((awake(), left(), lingers.keys().len()), ((false, true), vec![], 0));
        });
    }

    #[test]
    fn a_time_that_is_none_or_too_long_is_refused_and_changes_nothing() {
        in_child("timer::tests::a_time_that_is_none_or_too_long_is_refused_and_changes_nothing", || {
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
}
