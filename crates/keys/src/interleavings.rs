//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-keys --lib interleavings`.
//!
//! Every order in which threads can switch keys, give leases back and end holds. One site for each
//! key stands for the text (`primitive::ModelSite`). It is written without any ordering of its own:
//! only the publication of the state and the patch lock order it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::thread::spawn;

use crate::hold::Holder;
use crate::plan::{Change, Guards};
use crate::{Batch, Error, Key, Lease, StaticKey, clock, timer};

const HOUR: Duration = Duration::from_secs(3600);

/// Does what `loom::model` does, and checks that loom found something to reorder.
fn explore(test: impl Fn() + Sync + Send + 'static) {
    let executions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executions);
    loom::model(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        test();
    });
    assert!(executions.load(Ordering::Relaxed) > 1, "only one order was tried");
}

/// Keys of one execution; none outlives it by much. Side by side, because a batch takes keys in the
/// order of their addresses, and loom wants every execution alike.
fn keys<const N: usize>() -> [&'static Key; N] {
    let new = |_| StaticKey::<false>::new("a.key", file!(), line!());
    let keys: &'static [StaticKey<false>; N] = Box::leak(Box::new(std::array::from_fn(new)));
    keys.each_ref().map(|key| key.key())
}

/// A hold that the timer is to end now.
fn begin_hold_that_is_over(key: &'static Key) {
    Batch::new().change_all([key], Change::Acquire).apply().unwrap();
    Batch::new().change_all([key], Change::Release(Some(Duration::ZERO))).apply().unwrap();
}

fn is_on(key: &Key) -> bool {
    assert_eq!(key.is_enabled(), key.site.is_awake(), "state and text agree where nobody is at them");
    key.is_enabled()
}

#[test]
fn a_key_that_reads_on_is_awake() {
    explore(|| {
        let [key] = keys();
        // It reads and the other one writes, not the other way round: loom looks for another order
        // only from the last access before, and a switch reads the state that it then writes.
        let reader = spawn(move || {
            if key.is_enabled() {
                assert!(key.site.is_awake());
            }
        });
        key.enable().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn concurrent_switches_return_when_one_is_complete() {
    explore(|| {
        let [key] = keys();
        let other = spawn(move || {
            key.enable().unwrap();
            assert!(is_on(key));
        });
        let lease = key.acquire().unwrap();
        assert!(is_on(key));
        other.join().unwrap();
        drop(lease);
        assert!(is_on(key));
        assert_eq!(key.site.writes(), 1);
    });
}

#[test]
fn the_last_of_two_leases_switches_off() {
    explore(|| {
        let [key] = keys();
        let (first, second) = (key.acquire().unwrap(), key.acquire().unwrap());
        let other = spawn(move || drop(first));
        drop(second);
        other.join().unwrap();
        assert!(!is_on(key) && key.leases() == 0);
        assert_eq!(key.site.writes(), 2);
    });
}

#[test]
fn a_lease_beside_the_last_release_holds() {
    explore(|| {
        let [key] = keys();
        let last = key.acquire().unwrap();
        let other = spawn(move || drop(last));
        let lease = key.acquire().unwrap();
        assert!(key.is_enabled() && key.site.is_awake());
        other.join().unwrap();
        assert!(is_on(key) && key.leases() == 1);
        drop(lease);
        assert!(!is_on(key));
    });
}

#[test]
fn a_refused_batch_changes_nothing() {
    explore(|| {
        let [good, bad] = keys();
        bad.site.foreign.store(true, Ordering::Relaxed);
        let other = spawn(move || {
            let refused = Lease::of([good, bad]).unwrap_err();
            assert!(matches!(refused, Error::NotText { .. }));
        });
        let lease = good.acquire().unwrap();
        assert!(is_on(good));
        other.join().unwrap();
        assert_eq!((good.leases(), bad.leases(), bad.site.writes()), (1, 0, 0));
        drop(lease);
        assert!(!is_on(good) && !is_on(bad));
    });
}

#[test]
fn an_extended_hold_outlives_the_timer() {
    explore(|| {
        let [key] = keys();
        begin_hold_that_is_over(key);
        let timer = spawn(move || timer::end_due(&mut Guards::lock().unwrap(), clock::now()));
        let lease = key.acquire().unwrap();
        Batch::new().hold_all([key], Holder::Nobody, HOUR).apply().unwrap();
        timer.join().unwrap();
        assert!(is_on(key) && key.leases() == 2);
        drop(lease);
        assert!(is_on(key) && key.leases() == 1, "the timer has not ended what was extended");
        Batch::new().end_all([key], Some(Holder::Nobody)).apply().unwrap();
        assert!(!is_on(key) && key.leases() == 0);
    });
}

#[test]
fn a_hold_beside_a_sleepy_timer_ends() {
    explore(|| {
        let [long, short] = keys();
        let timer = spawn(move || {
            loop {
                let now = clock::now();
                timer::end_due(&mut Guards::lock().unwrap(), now);
                if short.site.writes() == 2 {
                    return;
                }
                timer::sleep(now);
            }
        });
        // It may sleep until it is woken, or for an hour, or may not sleep yet.
        long.enable_for(HOUR).unwrap();
        begin_hold_that_is_over(short);
        timer.join().unwrap();
        assert!(is_on(long) && !is_on(short));
    });
}
