//! `ipis/no-update/…` and `ipis/idle-cpu…`: interrupts that no update sent, and interrupts of a
//! processor that does not run this process.
//!
//! An operator who isolates a processor for one program wants all others to leave it alone. A
//! barrier interrupts only the processors that run this process. Here both our threads are kept off
//! one processor, and the interrupts in that processor's column are counted.

use std::hint::black_box;
use std::time::{Duration, Instant};

use dormouse_sys::interrupts::Ipis;

use super::sites::{SITES, run_sites};
use super::update::updates;
use super::ways::{NOT_PATCHED, WAYS};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::neighbour::Neighbour;
use crate::row::Spec;
use crate::runner::Failure;

/// Adds the rows; `suffix` names the other work of the machine.
pub(super) fn rows(bench: &mut Bench, suffix: &str) {
    let span = bench.target();
    let readable = Ipis::read().map(drop);
    let quiet = |name: &str| Spec::new(format!("ipis/{name}{suffix}"), "IPIs").per("millisecond");
    let (calls, flushes) = (quiet("no-update/cal"), quiet("no-update/tlb"));
    let counts_calls = bench.need(calls.clone(), readable.clone()).is_some();
    // arm64 flushes translations without interrupts.
    let counts_flushes = bench.need(flushes.clone(), Ipis::read().and_then(Ipis::flushes)).is_some();
    if counts_calls {
        let halves = Halves::of_this_thread();
        let rows: Vec<_> = std::iter::once(calls).chain(counts_flushes.then_some(flushes)).collect();
        bench.sample(rows, move || {
            let (ipis, millis) = during(&halves, Ipis::read, || Ok(idle(span)))?;
            let counts = std::iter::once(ipis.cal).chain(ipis.tlb);
            Ok(counts.map(|count| count as f64 / millis).collect::<Vec<_>>())
        });
    }
    let spared = quiet("idle-cpu/no-update");
    if bench.need(spared.clone(), readable.clone()).is_some() {
        bench.sample(spared, move || {
            let (ipis, millis) = beside(|| Ok(idle(span)))?;
            Ok(ipis.cal as f64 / millis)
        });
    }
    for way in WAYS {
        // The way that a process takes by itself needs no name.
        let name = if way.name == "batch-flip" { String::new() } else { format!("/{}", way.name) };
        let updates = updates(bench, way, "");
        let spec = Spec::new(format!("ipis/idle-cpu{name}{suffix}"), "IPIs")
            .per("update")
            .with("sites", SITES)
            .with("updates", updates);
        let patched = dormouse::keys::PATCHING.then_some(()).ok_or_else(|| NOT_PATCHED.to_owned());
        if bench.need(spec.clone(), readable.clone().and(patched)).is_some() {
            bench.sample(spec, move || {
                let (ipis, _) = beside(|| way.updates(updates))?;
                Ok(ipis.cal as f64 / f64::from(updates))
            });
        }
    }
}

/// Runs the sites for `span`; returns the milliseconds that it took.
fn idle(span: Duration) -> f64 {
    let begin = Instant::now();
    while begin.elapsed() < span {
        black_box(run_sites());
    }
    begin.elapsed().as_secs_f64() * 1e3
}

/// The result of `work`, and the interrupts of a processor that runs neither this thread nor the
/// other one.
fn beside<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<(Ipis, T), Failure> {
    let all = Halves::of_this_thread();
    all.sparing_one(|spared| during(&Halves::of_this_thread(), || Ipis::read_of(spared), work))?
}

/// The result of `work`, and the interrupts, as `read` counts them, while another thread runs the
/// sites.
fn during<T>(
    halves: &Halves,
    read: impl Fn() -> Result<Ipis, String>,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<(Ipis, T), Failure> {
    let neighbour = Neighbour::start(halves, run_sites)?;
    let before = read()?;
    let result = halves.on_first(work)??;
    let ipis = read()?.since(before);
    drop(neighbour);
    Ok((ipis, result))
}
