//! `kernel/…`: the same on the running kernel, through `perf_event_open`: threads that inherit
//! breakpoints which are never hit, and one breakpoint that is switched off and on.

use dormouse_sys::perf::{Access, Attr, Breakpoint, OpenEvent, Subject, WatchLen};

use super::params::BreakpointArgs;
use super::threads;
use crate::apart::beside_sleepers;
use crate::bench::Bench;
use crate::clocks::wall;
use crate::row::Spec;
use crate::runner::Failure;

/// The most breakpoints of a thread.
const MOST: u32 = 4;

/// The watched bytes, one a breakpoint. No code reads or writes them.
static WATCHED: [u8; MOST as usize] = [0; MOST as usize];

pub(super) fn rows(bench: &mut Bench, args: &BreakpointArgs) {
    for breakpoints in 0..=MOST {
        let spec = |column: &str, unit| {
            Spec::new(format!("kernel/thread/{breakpoints}{column}"), unit)
                .per("thread made and joined")
                .with("breakpoints", breakpoints)
                .with("population", args.population())
        };
        let args = args.clone();
        bench.sample([spec("", "us"), spec("/per-cpu", "us"), spec("/total", "s")], move || {
            let _events = open(breakpoints)?;
            let took = threads::run(&args, |_| Ok(()))?.as_secs_f64();
            let each = took * 1e6 / args.operations();
            Ok([each, each * f64::from(args.parallelism), took])
        });
    }
    let pairs = bench.pick(1000, 200);
    // Threads that sleep while the breakpoint that they inherited is switched.
    for (name, asleep) in [("kernel/enable", 0), ("kernel/enable/256", 256)] {
        let spec = Spec::new(name, "us").per("pair").with("pairs", pairs).with("threads_asleep", asleep);
        bench.sample(spec, move || switch(asleep, pairs));
    }
}

/// Breakpoints of this thread and of the threads that it will start.
fn open(breakpoints: u32) -> Result<Vec<OpenEvent>, Failure> {
    let watched = WATCHED.iter().take(breakpoints as usize);
    watched
        .map(|byte| {
            let addr = std::ptr::from_ref(byte).addr();
            let watch = Breakpoint::watch(addr, WatchLen::One, Access::ReadWrite)?;
            Ok(OpenEvent::open(&Attr::breakpoint(watch).inherited(), Subject::ThisThread)?)
        })
        .collect()
}

/// Microseconds for each switch off and on.
fn switch(asleep: u32, pairs: u32) -> Result<f64, Failure> {
    let events = open(1)?;
    beside_sleepers(asleep, || {
        let (took, switched) = wall(|| {
            (0..pairs).flat_map(|_| &events).try_for_each(|event| {
                event.disable()?;
                event.enable()
            })
        });
        switched?;
        Ok(took.as_secs_f64() * 1e6 / f64::from(pairs))
    })
}
