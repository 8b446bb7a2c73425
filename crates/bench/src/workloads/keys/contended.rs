//! What it costs to branch on a flag whose cache line another processor writes all the time.
//!
//! That a flag is not written does not help it if its neighbours on the line are: counters, a lock, a length. The
//! line has to come from the other processor again and again. A site branches on nothing that could be written.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use super::loops::{self, Loop};
use super::neighbour::Neighbour;
use crate::affinity::Halves;
use crate::report::{Row, find};
use crate::runner::{Case, Spec};
use crate::workloads::Settings;

/// The rows that are compared with `none`.
const PEERS: [&str; 2] = ["dormouse", "atomic"];

pub(super) const NOTE: &str = "contended rows: the loop of off, CPU time of one thread an iteration, while a thread on \
    another processor writes the cache line of the flag that contended/atomic reads, as fast as it can (false: the \
    branch stays off); in all three rows. neighbour/contended rows: how much of the time that thread ran. Where the two processors are threads of \
    one core, as those of a virtual machine may be, the line is at hand for both and costs nothing";

/// The cases.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let halves = Halves::of_this_thread();
    // Not calibrated: alone, an iteration takes far less.
    let iterations = if settings.quick { 40_000 } else { 100_000 };
    let rows: [(&str, Loop); 3] = [
        ("none", loops::chain_none),
        ("dormouse", loops::chain_dormouse),
        ("atomic", loops::chain_contended),
    ];
    rows.into_iter()
        .map(|(name, run)| {
            let halves = halves.clone();
            let specs = vec![
                Spec::new(format!("contended/{name}"), "ns")
                    .with("per", "iteration")
                    .with("clock", "thread CPU time")
                    .with("iterations", iterations),
                Spec::new(format!("neighbour/contended/{name}"), "%").with("of", "wall time of the row"),
            ];
            Case::new(specs, move || {
                let neighbour = Neighbour::start(&halves, write)?;
                let (took, share) = neighbour.during(|| halves.on_first(|| run(iterations)))?;
                drop(neighbour);
                Ok(vec![took?.as_nanos() as f64 / iterations as f64, share])
            })
        })
        .collect()
}

/// What the flag and the site add to the loop.
pub(super) fn compare(rows: &[Row]) -> Vec<Row> {
    let none = find(rows, "contended/none");
    PEERS
        .iter()
        .map(|peer| {
            let row = find(rows, &format!("contended/{peer}"));
            Row::minus(&format!("contended-added/{peer}"), "ns", &row, &none)
        })
        .collect()
}

fn write() {
    for _ in 0..1000 {
        loops::CONTENDED.0.store(black_box(false), Ordering::Relaxed);
    }
}
