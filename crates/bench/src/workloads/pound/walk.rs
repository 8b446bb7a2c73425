//! `walk/{prefetch,no-prefetch}/N`: one walk over the records of N members, with the origin's prefetch and without.
//!
//! The members publish all the time on one half of the processors and this thread walks on the other, so that the lines
//! that it wants are in somebody else's cache, as in the kernel's own walk.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse::clock::{Refresh, ThreadGroup};

use super::drive::with_threads;
use crate::affinity::Halves;
use crate::clocks::cpu;
use crate::runner::{Case, Failure, Spec};
use crate::stats::midmean;
use crate::workloads::Settings;

/// The case of both rows for so many members.
pub(super) fn case(settings: &Settings, threads: usize) -> Case<'static> {
    let walks = if settings.quick { 10 } else { 100 };
    let halves = Halves::of_this_thread();
    let spec = |name| {
        Spec::new(format!("walk/{name}/{threads}"), "ns")
            .with("per", "walk")
            .with("members", threads)
            .with("walks", walks)
            .with("clock", "thread CPU time")
            .with("members_elsewhere", halves.are_two())
    };
    Case::new(vec![spec("prefetch"), spec("no-prefetch")], move || walk(&halves, threads, walks))
}

/// The middle of the times of `walks` walks of each sort.
fn walk(halves: &Halves, threads: usize, walks: usize) -> Result<Vec<f64>, Failure> {
    // Refreshed when told to, and by nobody else.
    let refresh = Refresh { tolerance: Duration::MAX, most: usize::MAX, prefetch: true };
    let group = ThreadGroup::with_refresh(refresh);
    let plain = ThreadGroup::with_refresh(Refresh { prefetch: false, ..refresh });
    let stop = AtomicBool::new(false);
    let publish = || {
        let _also = plain.join();
        while !stop.load(Ordering::Relaxed) {
            black_box(group.cpu_ns() + plain.cpu_ns());
            thread::yield_now();
        }
    };
    // Threads stay where they are started.
    let result = halves.on_second(|| {
        with_threads(
            threads,
            Some(&group),
            publish,
            || Ok(()),
            |release| {
                release();
                let timed = halves.on_first(|| {
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
                });
                stop.store(true, Ordering::Relaxed);
                timed
            },
        )
    })??;
    let middle = |times: &[f64]| midmean(times).ok_or_else(|| Failure::from("no walk"));
    Ok(vec![middle(&result[0])?, middle(&result[1])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sorts_of_walk_are_timed() {
        let times = walk(&Halves::of_this_thread(), 3, 4).unwrap();
        assert!(times.len() == 2 && times.iter().all(|&ns| ns > 0.0), "{times:?}");
    }
}
