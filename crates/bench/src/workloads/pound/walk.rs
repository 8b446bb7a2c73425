//! `walk/{prefetch,no-prefetch}/N`: one walk over the records of N members, with the origin's
//! prefetch and without.
//!
//! The members publish all the time on one half of the processors and this thread walks on the
//! other, so that the lines of the records are in the cache of another processor, as in the
//! kernel's own walk.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_lab::{Refresh, ThreadGroup};
use dormouse_statistics::midmean;

use super::drive::with_threads;
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Adds both rows of this number of members.
pub(super) fn rows(bench: &mut Bench, threads: usize) {
    let walks = bench.pick(100, 10);
    let halves = Halves::of_this_thread();
    let specs = ["prefetch", "no-prefetch"].map(|name| {
        Spec::new(format!("walk/{name}/{threads}"), "ns")
            .per("walk")
            .with("members", threads)
            .with("walks", walks)
            .cpu()
            .with("members_elsewhere", halves.are_two())
    });
    bench.sample(specs, move || walk(&halves, threads, walks));
}

/// The middle of the times of `walks` walks of each sort.
fn walk(halves: &Halves, threads: usize, walks: usize) -> Result<[f64; 2], Failure> {
    // Refreshed by this thread's walks alone.
    let refresh = |prefetch| Refresh { tolerance: Duration::MAX, most: usize::MAX, prefetch };
    let [group, plain] = [true, false].map(|prefetch| ThreadGroup::with_refresh(refresh(prefetch)));
    let stop = AtomicBool::new(false);
    let publish = || {
        let _also = plain.join();
        while !stop.load(Ordering::Relaxed) {
            black_box(group.cpu_ns() + plain.cpu_ns());
            thread::yield_now();
        }
    };
    let timed = || {
        let mut times = [Vec::new(), Vec::new()];
        for turn in 0..2 * walks {
            // In turns, each of them first as often as the other.
            let which = (turn + turn / 2) % 2;
            // Until the members have published again.
            let began = Instant::now();
            while began.elapsed() < Duration::from_micros(2 * threads as u64) {
                std::hint::spin_loop();
            }
            let walked = [&group, &plain][which];
            let (took, _asked) = cpu(|| walked.refresh());
            times[which].push(took.as_nanos() as f64);
        }
        times
    };
    // Threads stay where they are started.
    let [prefetch, plain] = halves.on_second(|| {
        with_threads(threads, Some(&group), publish, |release| {
            release();
            let times = halves.on_first(timed);
            stop.store(true, Ordering::Relaxed);
            times
        })
    })??;
    let middle = |times: &[f64]| midmean(times).ok_or_else(|| Failure::from("no walk"));
    Ok([middle(&prefetch)?, middle(&plain)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sorts_of_walk_are_timed() {
        let times = walk(&Halves::of_this_thread(), 3, 4).unwrap();
        assert!(times.iter().all(|&ns| ns > 0.0), "{times:?}");
    }
}
