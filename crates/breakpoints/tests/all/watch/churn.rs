//! Threads that start and end all the time: every write is counted once, on every thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::support::{VALUE, in_child, of_value};
use dormouse_testkit::short_or_long;

/// Whether writes count: set before the first counted write and after the watch is armed.
static IS_ARMED: AtomicBool = AtomicBool::new(false);
static WRITES: AtomicU64 = AtomicU64::new(0);
/// Threads that have looked whether writes count, and may still write.
static WRITERS: AtomicU64 = AtomicU64::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Writes now and then, and has others do so: each thread starts another one before it ends.
fn live(mut seed: u64) {
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 33) % below
    };
    for _ in 0..random(4) {
        WRITERS.fetch_add(1, Ordering::SeqCst);
        if IS_ARMED.load(Ordering::SeqCst) {
            VALUE.fetch_add(1, Ordering::Relaxed);
            WRITES.fetch_add(1, Ordering::Relaxed);
        }
        WRITERS.fetch_sub(1, Ordering::SeqCst);
        if random(3) == 0 {
            thread::yield_now();
        }
    }
    if !IS_OVER.load(Ordering::Relaxed) {
        let seed = random(u64::MAX) | 1;
        let next = thread::Builder::new().stack_size(64 * 1024).spawn(move || live(seed));
        // A chain breaks where the machine has no room for another thread.
        drop(next);
    }
}

#[test]
fn every_write_of_every_thread_counts_once() {
    in_child(|| {
        let (writes, most) = short_or_long((5000, 2), (1_000_000, 60));
        let most = Duration::from_secs(most);
        for seed in 1..=6_u64 {
            thread::spawn(move || live(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        }
        // Half of the watches end before the last one begins, so that arming is tried often.
        for _ in 0..20 {
            let watch = of_value().arm().unwrap();
            drop(watch);
        }
        let begun = Instant::now();
        let mut rounds = 0;
        while WRITES.load(Ordering::Relaxed) < writes && begun.elapsed() < most {
            let before = WRITES.load(Ordering::SeqCst);
            let watch = of_value().arm().unwrap();
            IS_ARMED.store(true, Ordering::SeqCst);
            let round = Instant::now();
            let length = Duration::from_millis(if rounds < 20 { 20 } else { 2000 });
            while round.elapsed() < length {
                thread::sleep(Duration::from_millis(5));
            }
            IS_ARMED.store(false, Ordering::SeqCst);
            // A thread may stand between its look and its write. From the first moment without one,
            // all see that writes do not count.
            dormouse_testkit::eventually(|| WRITERS.load(Ordering::SeqCst) == 0);
            let report = watch.close();
            let written = WRITES.load(Ordering::SeqCst) - before;
            assert_eq!(
                (written, report.hits, report.delivered),
                (written, written, written),
                "round {rounds}: {report:?}"
            );
            rounds += 1;
        }
        IS_OVER.store(true, Ordering::Relaxed);
        assert!(WRITES.load(Ordering::Relaxed) > 1000);
        println!("{} writes in {rounds} rounds, {:?}", WRITES.load(Ordering::Relaxed), begun.elapsed());
    });
}
