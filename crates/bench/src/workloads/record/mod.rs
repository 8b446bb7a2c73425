//! `bench record`: the price of an awake probe, and of the flight recorder that keeps its records.
//!
//! | row | is |
//! |---|---|
//! | `probe/asleep` | a loop of a probe that sleeps |
//! | `probe/unread` | awake, and nobody reads: the ring is full, and loses its oldest records |
//! | `probe/traced` | awake, and read by a trace before the ring is full |
//! | `probe/recorded` | awake, with the recorder on, as fast as it goes |
//! | `recorder/idle` | the lookout's CPU time in a second, while nothing comes |
//! | `recorder/busy` | the same, while one thread goes as fast as it can |
//!
//! `traced` and `recorded` have no peer: a copy into memory of the thread's own is the floor
//! (`floor/copy`). There is no origin.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dormouse::keys::Selector;
use dormouse::{Lease, probe};
use dormouse_sys::process::threads;

use crate::bench::Bench;
use crate::clocks::wall;
use crate::row::Spec;
use crate::runner::Failure;

/// The glob of the probe.
const PROBE: &str = "bench.record";
/// Memory of the recorder.
const MEMORY: usize = 8 * 1024 * 1024;
/// Bytes of a record with one number.
const RECORD: usize = 48;
/// Records that fit a ring, amply.
const FIT: u64 = 1000;

#[inline(never)]
fn hit(number: u64) {
    probe!("bench.record", number);
}

pub(crate) fn run(bench: &mut Bench) {
    bench.param("record_bytes", RECORD);
    bench.param("recorder_bytes", MEMORY);
    bench.say("calibrating");
    let loop_of_probes = |count: u64| wall(|| (0..count).for_each(|n| hit(black_box(n)))).0;
    bench.per_iteration(Spec::new("probe/asleep", "ns"), move |count| Ok(loop_of_probes(count)));
    bench.per_iteration(Spec::new("probe/unread", "ns"), move |count| {
        let _awake = awake()?;
        (0..100 * FIT).for_each(hit);
        Ok(loop_of_probes(count))
    });
    bench.per_iteration(Spec::new("probe/traced", "ns"), move |count| {
        let mut trace = dormouse::trace(PROBE)?;
        let mut took = Duration::ZERO;
        let (mut left, mut seen) = (count, 0);
        while left > 0 {
            let part = left.min(FIT);
            took += loop_of_probes(part);
            trace.poll(|_, _, _| seen += 1);
            left -= part;
        }
        if seen == count { Ok(took) } else { Err(Failure::wrong(format!("{seen} of {count} records"))) }
    });
    bench.per_iteration(Spec::new("probe/recorded", "ns"), move |count| {
        let recorder = dormouse::recorder::start(PROBE, MEMORY)?;
        let took = loop_of_probes(count);
        drop(recorder);
        Ok(took)
    });
    bench.per_iteration(Spec::new("floor/copy", "ns"), |count| {
        let (from, mut to) = ([1_u8; RECORD], vec![0_u8; 64 * 1024]);
        let places = (to.len() / RECORD) as u64;
        let copied = wall(|| {
            for n in 0..count {
                let at = (n % places) as usize * RECORD;
                to[at..at + RECORD].copy_from_slice(black_box(&from));
            }
            black_box(&mut to);
        });
        Ok(copied.0)
    });
    bench.measure("reps", bench.plan(60, 5));
    let second = Duration::from_millis(bench.pick(2000, 300));
    bench.sample(Spec::new("recorder/idle", "us/s").wall(), move || lookouts_cpu(second, false));
    bench.sample(Spec::new("recorder/busy", "us/s").wall(), move || lookouts_cpu(second, true));
    bench.measure("seconds", bench.plan(8, 2));

    bench.minus("probe-added/recorded", "probe/recorded", "probe/unread");
    bench.at_most("a recorded probe takes at most 60 ns", "probe/recorded", 60.0);
    bench.at_most("an idle recorder takes at most 0.1 % of a CPU", "recorder/idle", 1000.0);
    bench.explain(include_str!("notes.txt"));
}

fn awake() -> Result<Lease, Failure> {
    let keys = Selector::parse(PROBE)?.try_keys()?;
    Ok(Lease::of(keys.iter().map(|used| used.key))?)
}

/// CPU time of the lookout in a second, while nothing comes, or very much does.
fn lookouts_cpu(length: Duration, is_busy: bool) -> Result<f64, Failure> {
    let recorder = dormouse::recorder::start(PROBE, MEMORY)?;
    // So that it has found its pace.
    std::thread::sleep(length / 4);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let writer = is_busy.then(|| {
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                (0..FIT).for_each(hit);
            }
        })
    });
    let lookout = lookout()?;
    let before = dormouse::clock::thread_cpu_ns_of(lookout);
    let began = Instant::now();
    std::thread::sleep(length);
    let after = dormouse::clock::thread_cpu_ns_of(lookout);
    let seconds = began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    let joined = writer.map_or(Ok(()), std::thread::JoinHandle::join);
    drop(recorder);
    joined.map_err(|_| Failure::from("a thread has failed".to_owned()))?;
    let (Some(before), Some(after)) = (before, after) else {
        return Err(Failure::from("the lookout's CPU time cannot be read".to_owned()));
    };
    Ok((after - before) as f64 / 1e3 / seconds)
}

/// The id of the thread that looks.
fn lookout() -> Result<u32, Failure> {
    let mut tids = Vec::new();
    threads::list(&mut tids)?;
    let name = |tid: &u32| std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
    let found = tids.into_iter().find(|tid| name(tid) == "dormouse-look\n");
    found.ok_or_else(|| Failure::from("there is no lookout".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_recorder_has_a_lookout() {
        // Longer than the longest tick.
        assert!(lookouts_cpu(Duration::from_millis(300), true).unwrap() > 0.0);
        assert!(!awake().unwrap().keys().is_empty());
    }
}
