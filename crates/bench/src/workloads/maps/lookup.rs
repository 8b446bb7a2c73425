//! `lookup/…`: the price of looking an address up in a map for one thread, beside other maps; and
//! `update/…`, the price of changing ours.

use std::hint::black_box;
use std::time::Duration;

use dormouse_maps::Overlap;

use super::lookups::{Fault, Lookup};
use super::peers::{Entry, PATTERNS, PEERS, entries, faults, range_map, sorted};
use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Mappings.
const SIZES: [usize; 3] = [32, 1_000, 10_000];

pub(super) fn rows(bench: &mut Bench) {
    for size in SIZES {
        let entries = entries(size);
        for (name, pattern) in PATTERNS {
            let faults = faults(pattern, &entries);
            let right = sorted(&entries)(&faults, 0);
            for (peer, new) in PEERS {
                let spec = Spec::new(format!("lookup/{name}/{size}/{peer}"), "ns").per("look-up").cpu();
                row(bench, spec, faults.clone(), right, new(&entries));
            }
        }
        update(bench, size, &entries);
    }
}

/// Adds a row of a loop over `faults`, which comes to `right` if all is found.
fn row(bench: &mut Bench, spec: Spec, faults: Vec<Fault>, right: u64, mut look_up: Lookup<'static>) {
    let found = if look_up(&faults, 0) == right { Ok(()) } else { Err(wrong()) };
    if bench.need(spec.clone(), found).is_none() {
        return;
    }
    bench.per_iteration(spec, move |lookups| {
        let (took, answers) = cpu(|| {
            let (mut left, mut answers) = (lookups as usize, 0);
            while left > 0 {
                let part = &faults[..left.min(faults.len())];
                answers = look_up(part, answers);
                left -= part.len();
            }
            answers
        });
        black_box(answers);
        Ok(took)
    });
}

/// The failure of a map or scheme that gave another answer than the first one.
pub(super) fn wrong() -> Failure {
    Failure::wrong("an address was said to lie in another mapping than it did")
}

fn update(bench: &mut Bench, size: usize, entries: &[Entry]) {
    let spec = Spec::new(format!("update/{size}"), "us").per("update").cpu();
    let (map, range) = (range_map(entries), entries[size / 2].range.clone());
    let target = bench.target();
    let mut value = 0;
    bench.sample(spec, move || {
        let (mut updates, mut took) = (0, Duration::ZERO);
        while took < target {
            let (time, result) = cpu(|| {
                (0..16).try_for_each(|_| {
                    value += 1;
                    map.update(|edit| edit.insert(range.clone(), value, Overlap::Replace))
                })
            });
            result?;
            updates += 16;
            took += time;
        }
        Ok(took.as_secs_f64() * 1e6 / f64::from(updates))
    });
}

pub(super) fn compare(bench: &mut Bench) {
    for size in SIZES {
        bench.at_most("a look-up in a run at most 4 ns", &format!("lookup/run/{size}/dormouse"), 4.0);
        let [ours, sorted] = ["dormouse", "sorted"].map(|peer| format!("lookup/uniform/{size}/{peer}"));
        let added = format!("lookup-minus-sorted/uniform/{size}");
        bench.minus(added.as_str(), &ours, &sorted);
        bench.at_most("uniform at most 2 ns above sorted", &added, 2.0);
    }
    let mut over = Vec::new();
    for (size, (pattern, _)) in SIZES.into_iter().flat_map(|size| PATTERNS.map(|pattern| (size, pattern))) {
        for peer in ["arc-swap", "arc-swap-cache"] {
            let [ours, theirs] = ["dormouse", peer].map(|peer| format!("lookup/{pattern}/{size}/{peer}"));
            let name = format!("lookup-over-{peer}/{pattern}/{size}");
            bench.times(name.as_str(), &ours, &theirs);
            over.extend((peer == "arc-swap").then_some(name));
        }
    }
    let worst = bench.largest(over);
    bench.at_most("nowhere slower than arc-swap by more than 10 %, and worst", &worst, 1.1);
}
