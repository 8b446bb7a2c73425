//! `arm/…`, `lost/…` and `thread/…`: a profile of many threads, and of threads that come and go.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use dormouse::Group;
use dormouse_profile::{Options, Profiling};
use rustix::time::ClockId;

use super::handler::sampler_cpu;
use crate::bench::Bench;
use crate::clocks::{kernel_ns, thread_cpu_ns, wall};
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// Threads that are armed at once.
const MANY: usize = 1000;
/// The stack of each.
const STACK: usize = 64 << 10;
/// CPU time that each of them uses: a tick or two.
const WORK_NS: u64 = 6_000_000;
/// Threads that come and go in a row.
const SHORT: u64 = 50;
/// How often they do without a profile and with one, in turn.
const TURNS: u64 = 4;
/// The time in which the sampler has noticed that threads have ended.
const NOTICED: Duration = Duration::from_millis(600);

pub(super) fn rows(bench: &mut Bench) {
    bench.sample(Spec::new("arm/1000-threads", "ms").wall(), || many(0).map(|[took, _]| took));
    let spec = |name: &str| Spec::new(name, "ns").per("thread");
    let but_for_it = |name| spec(name).with("clock", "CPU time of the process but for the sampler");
    let specs = [
        but_for_it("thread/asleep"),
        but_for_it("thread/profiled"),
        spec("thread-sampler/profiled").with("clock", "CPU time of the sampler"),
    ];
    bench.sample(specs, come_and_go);
}

/// Rows of few rounds, for each takes some seconds.
pub(super) fn lossless(bench: &mut Bench) {
    let spec = Spec::new("lost/1000-threads", "samples").better(Better::Lower).with("of", "dormouse");
    bench.sample(spec, || many(WORK_NS).map(|[_, dropped]| dropped));
}

pub(super) fn compare(bench: &mut Bench) {
    bench.minus("thread-added/profiled", "thread/profiled", "thread/asleep");
    bench.at_most("1,000 threads armed in 50 ms", "arm/1000-threads", 50.0);
    bench.at_most("no sample of 1,000 threads lost", "lost/1000-threads", 0.0);
    bench.at_most("a thread's start and end at most 5 us more", "thread-added/profiled", 5_000.0);
}

/// How long it takes to arm many threads, in milliseconds; and the samples that were dropped until
/// each has used some time.
fn many(work_ns: u64) -> Result<[f64; 2], Failure> {
    let (ready, armed, done) = (Barrier::new(MANY + 1), Barrier::new(MANY + 1), Barrier::new(MANY + 1));
    thread::scope(|scope| {
        for _ in 0..MANY {
            let work = || {
                ready.wait();
                armed.wait();
                let end = thread_cpu_ns() + work_ns;
                while work_ns > 0 && thread_cpu_ns() < end {}
                done.wait();
            };
            // A barrier that is short of a thread would hold all others.
            let builder = thread::Builder::new().stack_size(STACK);
            builder.spawn_scoped(scope, work).expect("a thousand threads");
        }
        ready.wait();
        let mut options = Options::default();
        options.hz = 1000;
        let (took, profiling) = wall(|| Profiling::start(&options));
        armed.wait();
        done.wait();
        let profile = profiling?.read();
        let seen = &profile.coverage;
        if seen.armed < MANY as u64 {
            return Err(Failure::wrong(format!("{} threads armed: {:?}", seen.armed, seen.notes)));
        }
        Ok([took.as_secs_f64() * 1e3, seen.dropped as f64])
    })
}

/// CPU time for a thread that enters a group and ends: of the process, without a profile and with
/// one; and of the sampler, until it has noticed the end.
fn come_and_go() -> Result<[f64; 3], Failure> {
    let group = Group::new("bench of short threads");
    let sampler = || sampler_cpu().ok_or_else(|| Failure::from("no thread named dormouse-profile"));
    // The kernel brings the sampler's time up to date first.
    let clocks = || sampler().map(|of_it| (as_ns(of_it), kernel_ns(ClockId::ProcessCPUTime)));
    let [mut asleep, mut profiled, mut of_sampler] = [0.0; 3];
    for _ in 0..TURNS {
        let before = kernel_ns(ClockId::ProcessCPUTime);
        start_and_end(group)?;
        asleep += (kernel_ns(ClockId::ProcessCPUTime) - before) as f64;
        let profiling = Profiling::start(&Options::default())?;
        let before = clocks()?;
        thread::sleep(NOTICED);
        let begun = clocks()?;
        start_and_end(group)?;
        let ended = clocks()?;
        thread::sleep(NOTICED);
        let noticed = clocks()?;
        drop(profiling);
        profiled += (ended.1 - begun.1) as f64 - (ended.0 - begun.0) as f64;
        of_sampler += (noticed.0 - begun.0) as f64 - (begun.0 - before.0) as f64;
    }
    Ok([asleep, profiled, of_sampler].map(|sum| sum / (TURNS * SHORT) as f64))
}

fn as_ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn start_and_end(group: Group) -> Result<(), Failure> {
    for _ in 0..SHORT {
        thread::spawn(move || drop(group.enter())).join().map_err(|_| Failure::wrong("a thread panicked"))?;
    }
    Ok(())
}
