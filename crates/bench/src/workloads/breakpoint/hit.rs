//! `hit/…`: the cost of a hit for the thread that writes.
//!
//! # Safety
//!
//! The unsafe code installs a handler of SIGTRAP that does nothing, in a child.
#![allow(unsafe_code)]

use std::num::NonZero;
use std::time::Duration;

use dormouse_breakpoints::WatchSpec;
use dormouse_sys::perf::{Buffer, OpenEvent, Sampling, Subject};

use super::watched;
use crate::apart::apart;
use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Writes between two readings of the ring, and the bytes of it that hold them: the kernel drops
/// what finds no room, which would be cheaper.
const BATCH: u64 = 500;
const RING: usize = 256 << 10;

pub(super) fn rows(bench: &mut Bench) {
    let spec = |name: &str| Spec::new(format!("hit/{name}"), "ns").per("write").cpu();
    bench.per_iteration(spec("count"), counted);
    bench.per_iteration(spec("ring"), recorded);
    bench.per_iteration(spec("empty-handler"), |hits| in_child(|| trapped(hits)));
    bench.per_iteration(spec("signal"), |hits| in_child(|| watched_by(&watched::first(), hits, hits)));
    bench.per_iteration(spec("signal-filtered"), |hits| {
        in_child(|| watched_by(&watched::first().equals(watched::NEVER_WRITTEN), hits, 0))
    });
}

fn in_child(work: impl FnOnce() -> Result<Duration, Failure>) -> Result<Duration, Failure> {
    let seconds = apart(|| Ok(vec![work()?.as_secs_f64()]))?;
    Ok(seconds.into_iter().map(Duration::from_secs_f64).sum())
}

/// The time of as many writes as hits; the hits counted by `event` have to be as many.
fn exact(hits: u64, event: &OpenEvent, work: impl FnOnce() -> Duration) -> Result<Duration, Failure> {
    let took = work();
    match event.read()?.value {
        counted if counted == hits => Ok(took),
        counted => Err(Failure::wrong(format!("{counted} hits counted of {hits}"))),
    }
}

fn counted(hits: u64) -> Result<Duration, Failure> {
    let event = OpenEvent::open(&watched::attr()?, Subject::ThisThread)?;
    exact(hits, &event, || cpu(|| watched::write(hits)).0)
}

/// Watched from outside: each hit is a record in the ring, with its callers.
fn recorded(hits: u64) -> Result<Duration, Failure> {
    let sampling = Sampling { every: NonZero::<u64>::MIN, life: false, callchain: true, stack_bytes: 0 };
    let mut ring = Buffer::open(&watched::attr()?, sampling, Subject::ThisThread, RING)?;
    let (mut took, mut records) = (Duration::ZERO, 0);
    for done in (0..hits).step_by(BATCH as usize) {
        took += cpu(|| watched::write(BATCH.min(hits - done))).0;
        ring.drain(|_| records += 1);
    }
    if records != hits {
        return Err(Failure::wrong(format!("{records} records of {hits} hits")));
    }
    exact(hits, ring.event(), || took)
}

/// The peer: the kernel's signal, and a handler that does nothing.
fn trapped(hits: u64) -> Result<Duration, Failure> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing; no thread of the child needs the one before.
    unsafe { libc::signal(libc::SIGTRAP, nothing as *const () as libc::sighandler_t) };
    let event = OpenEvent::open(&watched::attr()?.trapping(0), Subject::ThisThread)?;
    exact(hits, &event, || cpu(|| watched::write(hits)).0)
}

/// Our watch; as many hits as `passed` have to pass its filters.
fn watched_by(spec: &WatchSpec, hits: u64, passed: u64) -> Result<Duration, Failure> {
    let watch = spec.arm()?;
    let (took, ()) = cpu(|| watched::write(hits));
    let report = watch.close();
    if (report.hits, report.delivered, report.passed) != (hits, hits, passed) {
        return Err(Failure::wrong(format!("of {hits} hits: {report:?}")));
    }
    Ok(took)
}
