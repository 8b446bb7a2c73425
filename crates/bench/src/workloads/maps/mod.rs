//! `bench maps`: how often a cache can answer where an address lies, and the price of an answer.
//!
//! The look-ups are page faults of real programs, recorded with their mappings
//! (`traces/README.md`), and replayed through three schemes: the two of the origin, the per-thread
//! VMA cache of Linux (2014), and ours. Beside them one map is looked up and changed, alone and
//! contended, with sorted arrays, trees and `arc-swap` as peers; and addresses are resolved to
//! functions, with `blazesym` as the peer.

mod contended;
mod lookup;
mod lookups;
mod peers;
mod replay;
mod resolve;
mod schemes;
mod traces;
mod tree;

use crate::bench::Bench;
pub(crate) use traces::Recorded;

/// The origin's figures, with ours in their columns.
pub(crate) const ORIGIN: &str = include_str!("origin.txt");

/// Runs the workload; or replays one trace, for which the origin has no figures.
pub(crate) fn run(bench: &mut Bench, trace: Option<&Recorded>) {
    bench.say("reading traces");
    if let Some(trace) = trace {
        trace.rows(bench);
        bench.measure("reps", bench.plan(20, 4));
        trace.compare(bench);
        return bench.explain(include_str!("traces.txt"));
    }
    traces::rows(bench);
    bench.say("calibrating");
    lookup::rows(bench);
    contended::rows(bench);
    resolve::rows(bench);
    bench.measure("reps", bench.plan(20, 4));
    traces::compare(bench);
    lookup::compare(bench);
    contended::compare(bench);
    resolve::compare(bench);
    bench.explain(include_str!("traces.txt"));
    bench.explain(include_str!("notes.txt"));
}
