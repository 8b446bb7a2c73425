//! `bench keys`: the price of a sleeping static key, the price of an update, and which processors
//! an update interrupts.
//!
//! The origin is the batching of jump-label updates in Linux (2019): 56 sites switched one after
//! the other and in one batch, while another thread runs them. Peers: an atomic flag, the crate
//! `static-keys`, and `tracing` below its level and under a dynamic filter.

mod cold;
mod compile;
mod contended;
mod filter;
mod ipis;
mod loops;
mod off;
mod scale;
mod sites;
mod trap;
mod update;
mod ways;

use std::rc::Rc;

use crate::bench::Bench;
use crate::yardsticks;
use compile::Compile;
use sites::SITES;
use ways::BUSY;

/// The origin's figures, with ours in their columns.
pub(crate) const ORIGIN: &str = include_str!("origin.txt");

pub(crate) fn run(bench: &mut Bench) {
    static_keys::global_init();
    let filter = filter::install();
    bench.say("calibrating");
    off::rows(bench, &filter);
    cold::rows(bench);
    contended::rows(bench);
    yardsticks::rdtsc(bench);
    update::rows(bench, "");
    ipis::rows(bench, "");
    update::rows_alone(bench);
    trap::rows(bench, trap::MOST, "");
    bench.measure("reps", bench.plan(100, 6));
    loops::disarm();
    let load = under_a_compile(bench);
    if loops::was_taken() {
        bench.wrong.push("off/…: a branch that was off was taken".to_owned());
    }
    // Last, so that no other row has these sites about: the object that holds them stays.
    bench.say("assembling");
    scale::rows(bench);
    bench.measure("scale_reps", bench.plan(30, 6));

    off::compare(bench);
    cold::compare(bench);
    contended::compare(bench);
    update::compare(bench);
    trap::compare(bench);
    scale::compare(bench);
    bench.explain(include_str!("notes.txt"));
    bench.notes.extend(load);
}

/// The rows that the origin measured, under the load that it had; returns a note about the load.
fn under_a_compile(bench: &mut Bench) -> Option<String> {
    bench.say("calibrating");
    update::rows(bench, BUSY);
    ipis::rows(bench, BUSY);
    trap::rows(bench, SITES, BUSY);
    let load = Rc::new(Compile::start());
    let guard = Rc::clone(&load);
    bench.guard(move || guard.as_ref().as_ref()?.check());
    // Fewer rounds, because each lasts longer.
    bench.measure("busy_reps", bench.plan(30, 6));
    let load = load.as_ref().as_ref().ok()?;
    Some(format!("…{BUSY}: the same in a run of its own, while the machine compiles: {}", load.description))
}
