//! `arm/…`, `disarm/…` and `thread-start/…`: the cost of a watch in a process with many threads.

use std::thread;
use std::time::Duration;

use dormouse_sys::perf::{OpenEvent, Subject};
use dormouse_sys::process::threads;
use rustix::time::ClockId;

use super::watched;
use crate::affinity::Halves;
use crate::apart::{apart, beside_sleepers};
use crate::bench::Bench;
use crate::clocks::{kernel_ns, wall};
use crate::row::Spec;
use crate::runner::Failure;

/// Threads beside the one that arms.
pub(super) const SIZES: [u32; 3] = [16, 256, 1000];

pub(super) fn rows(bench: &mut Bench) {
    for count in SIZES {
        row(bench, "", count, watch);
        row(bench, "kernel/", count, open_all);
    }
    let starts = bench.pick(500, 100);
    for watches in [0, 1, 4] {
        let spec = Spec::new(format!("thread-start/{watches}-watches"), "us")
            .per("thread made and joined")
            .with("clock", "CPU time of the process")
            .with("threads", starts);
        bench.sample(spec, move || apart(|| Halves::of_this_thread().on_last(|| start(watches, starts))?));
    }
}

/// Microseconds to make and to join a thread.
fn start(watches: usize, threads: u32) -> Result<Vec<f64>, Failure> {
    let _armed = watched::arm(watches)?;
    let begin = kernel_ns(ClockId::ProcessCPUTime);
    for _ in 0..threads {
        thread::Builder::new().spawn(|| ())?.join().map_err(|_| "a thread panicked")?;
    }
    Ok(vec![(kernel_ns(ClockId::ProcessCPUTime) - begin) as f64 / 1e3 / f64::from(threads)])
}

/// Adds the time that it takes to arm and to disarm beside `count` sleeping threads.
fn row(bench: &mut Bench, whose: &str, count: u32, times: fn(u32) -> Result<[Duration; 2], Failure>) {
    let specs = ["arm", "disarm"]
        .map(|verb| Spec::new(format!("{whose}{verb}/{count}-threads"), "ms").wall().with("threads", count));
    bench.sample(specs, move || {
        let times = || times(count).map(|times| times.map(|time| time.as_secs_f64() * 1e3).into());
        apart(|| beside_sleepers(count, times))
    });
}

/// Our watch.
fn watch(count: u32) -> Result<[Duration; 2], Failure> {
    let (arming, watch) = wall(|| watched::first().arm());
    let watch = watch?;
    let coverage = watch.report().coverage;
    // The sleepers and the one that arms.
    if coverage.threads_armed <= count || coverage.threads_armed != coverage.threads_alive {
        return Err(Failure::wrong(format!("beside {count} threads: {coverage:?}")));
    }
    Ok([arming, wall(|| watch.close()).0])
}

/// The peer: an event for each thread that is there.
fn open_all(_: u32) -> Result<[Duration; 2], Failure> {
    let attr = watched::attr()?.inherited_by_threads().trapping(0);
    let (arming, events) = wall(|| -> Result<Vec<OpenEvent>, Failure> {
        let mut tids = Vec::new();
        threads::list(&mut tids)?;
        Ok(tids
            .into_iter()
            .map(|tid| OpenEvent::open(&attr, Subject::Thread(tid)))
            .collect::<Result<_, _>>()?)
    });
    let events = events?;
    Ok([arming, wall(|| drop(events)).0])
}
