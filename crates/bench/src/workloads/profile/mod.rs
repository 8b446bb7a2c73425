//! `bench profile`: the cost of a profile, and whether it is right.
//!
//! Peers: `pprof-rs` in both of its ways, by frame pointers (0.15) and by the tables of exceptions
//! (0.14), on which services build their own profiles.

pub(crate) mod frames;
pub(crate) mod handler;
mod right;
mod threads;

use crate::bench::Bench;
use crate::workloads::teaparty::profiled;

pub(crate) fn run(bench: &mut Bench) {
    bench.param("calls", frames::CALLS);
    bench.say("calibrating");
    handler::rows(bench);
    threads::rows(bench);
    bench.measure("reps", bench.plan(40, 3));
    right::rows(bench);
    threads::lossless(bench);
    bench.measure("profiles", bench.plan(3, 2));
    profiled::rows(bench);
    bench.measure("loads", bench.plan(10, 2));
    handler::compare(bench);
    threads::compare(bench);
    right::compare(bench);
    profiled::compare(bench, "handler-signal/dormouse");
    bench.explain(include_str!("notes.txt"));
}
