//! Interrupts that no update sent, and those that reach a processor which does not run us.
//!
//! Who isolates a processor for one program wants it left alone by all others. A barrier interrupts the
//! processors that run this process, and no more. Here both our threads are kept off one processor, and what
//! reaches that one is counted, in its own column.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::SITES;
use super::neighbour::Neighbour;
use super::sites::run_sites;
use super::update::{NOT_PATCHED, updates};
use super::ways::WAYS;
use crate::affinity::Halves;
use crate::interrupts::Ipis;
use crate::runner::{Case, Failure, Spec};
use crate::workloads::Settings;

pub(super) const NOTES: &[&str] = &[
    "ipis rows: from /proc/interrupts, summed over processors and divided by updates; of the whole \
     machine, so other work on it adds; CAL includes what TLB counts. ipis/no-update is the same machine \
     for the same setting with nothing switched, in interrupts a millisecond",
    "ipis/idle-cpu rows: CAL in the column of the last processor alone, while the patching thread and the \
     other one are kept on the rest (of two: both on the first); ipis/idle-cpu is batch-flip, \
     ipis/idle-cpu/no-update what reaches that processor with nothing switched, in interrupts a \
     millisecond",
];

/// The cases; `suffix` tells what else the machine does.
pub(super) fn cases(settings: &Settings, suffix: &str) -> Vec<Case<'static>> {
    let (halves, span) = (Halves::of_this_thread(), settings.target());
    let quiet = |name: &str| Spec::new(format!("ipis/{name}{suffix}"), "IPIs").with("per", "millisecond");
    let machine = vec![quiet("no-update/cal"), quiet("no-update/tlb")];
    let spared = vec![quiet("idle-cpu/no-update")];
    let of_ways = WAYS.map(|way| {
        // The way that a process takes by itself needs no name.
        let name = if way.name == "batch-flip" { String::new() } else { format!("/{}", way.name) };
        let spec = Spec::new(format!("ipis/idle-cpu{name}{suffix}"), "IPIs")
            .with("per", "update")
            .with("sites", SITES)
            .with("updates", updates(settings, way, ""));
        (way, vec![spec])
    });
    if let Err(reason) = Ipis::read() {
        let specs = [machine, spared].into_iter().chain(of_ways.map(|(_, specs)| specs));
        return specs.map(|specs| Case::unavailable(specs, reason.clone())).collect();
    }
    let here = halves.clone();
    let mut cases = vec![Case::new(machine, move || {
        let (ipis, millis) = during(&here, Ipis::read, || Ok(idle(span)))?;
        Ok(vec![ipis.cal as f64 / millis, ipis.tlb as f64 / millis])
    })];
    let here = halves.clone();
    cases.push(Case::new(spared, move || {
        let (ipis, millis) = beside(&here, || Ok(idle(span)))?;
        Ok(vec![ipis.cal as f64 / millis])
    }));
    for (way, specs) in of_ways {
        if !dormouse::keys::PATCHING {
            cases.push(Case::unavailable(specs, NOT_PATCHED));
            continue;
        }
        let (here, updates) = (halves.clone(), updates(settings, way, ""));
        cases.push(Case::new(specs, move || {
            let (ipis, _) = beside(&here, || way.updates(updates))?;
            Ok(vec![ipis.cal as f64 / f64::from(updates)])
        }));
    }
    cases
}

/// Runs the sites for `span`; the milliseconds that it took.
fn idle(span: Duration) -> f64 {
    let begin = Instant::now();
    while begin.elapsed() < span {
        black_box(run_sites());
    }
    begin.elapsed().as_secs_f64() * 1e3
}

/// What `work` gives and the interrupts of a processor that runs neither us nor the other thread meanwhile.
fn beside<T>(halves: &Halves, work: impl FnOnce() -> Result<T, Failure>) -> Result<(Ipis, T), Failure> {
    halves.sparing_one(|spared| during(&Halves::of_this_thread(), || Ipis::read_of(spared), work))?
}

/// What `work` gives and the interrupts, as `read` counts them, while another thread runs the sites.
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
