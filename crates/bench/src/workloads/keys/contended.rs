//! `contended/…`: a branch on a flag whose cache line another processor writes all the time.
//!
//! A flag that is never written still suffers if its neighbours on the line are written: counters,
//! a lock, a length. The line has to come from the other processor again and again. A site reads no
//! data that could be written.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use super::loops::{self, Loop};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::neighbour::Neighbour;
use crate::row::Spec;

const ROWS: [(&str, Loop); 3] =
    [("none", loops::chain_none), ("dormouse", loops::chain_dormouse), ("atomic", loops::chain_contended)];

pub(super) fn rows(bench: &mut Bench) {
    // Not calibrated: alone, an iteration takes far less.
    let iterations = bench.pick(100_000, 40_000);
    for (name, run) in ROWS {
        let halves = Halves::of_this_thread();
        let row = Spec::new(format!("contended/{name}"), "ns").per("iteration").cpu();
        let neighbour =
            Spec::new(format!("neighbour/contended/{name}"), "%").with("of", "wall time of the row");
        bench.sample([row.with("iterations", iterations), neighbour], move || {
            let neighbour = Neighbour::start(&halves, write)?;
            let (took, share) = neighbour.during(|| halves.on_first(|| run(iterations)))?;
            drop(neighbour);
            Ok([took?.as_nanos() as f64 / iterations as f64, share])
        });
    }
}

/// The price that the flag and the site add to the loop.
pub(super) fn compare(bench: &mut Bench) {
    bench.added("contended", "none", &["dormouse", "atomic"]);
}

fn write() {
    for _ in 0..1000 {
        loops::CONTENDED.0.store(black_box(false), Ordering::Relaxed);
    }
}
