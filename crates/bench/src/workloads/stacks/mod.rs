//! `bench stacks`: the price of finding the callers of code that keeps no frame pointers, the
//! memories that make it low, and the size of the tables.
//!
//! Peers: `gimli`, which evaluates the same unwind tables as they are, and `pprof-rs` by tables
//! (0.14). There is no origin.

mod sizes;
mod walks;

use crate::bench::Bench;
use crate::workloads::profile::frames::{Built, CALLS};
use crate::workloads::profile::handler;
use crate::workloads::teaparty::replayed;
use crate::workloads::waits::placing;

pub(crate) fn run(bench: &mut Bench) {
    bench.param("calls", CALLS);
    bench.say("calibrating");
    walks::rows(bench);
    placing::rows(bench);
    handler::rows_by_form(bench);
    bench.measure("reps", bench.plan(40, 3));
    bench.say("reading whole tables");
    sizes::rows(bench);
    bench.measure("tables", bench.plan(1, 1));
    bench.say("the tea house");
    replayed::rows(bench);
    bench.measure("loads", bench.plan(3, 1));

    for built in Built::ALL.map(Built::name) {
        let of = |peer: &str| format!("sample-signal/{peer}/{built}");
        for peer in ["dormouse", "pprof-tables"] {
            bench.minus(format!("sample/{peer}/{built}"), &of(peer), &of("empty"));
        }
        let [ours, theirs] = ["dormouse", "pprof-tables"].map(|peer| format!("sample/{peer}/{built}"));
        bench.times(format!("sample-over-pprof-tables/{built}"), &ours, &theirs);
        for peer in ["gimli", "dormouse-unremembered"] {
            let [ours, theirs] = ["dormouse", peer].map(|peer| format!("walk/{peer}/{built}"));
            bench.times(format!("walk-over-{peer}/{built}"), &ours, &theirs);
        }
    }
    bench.at_most("a sample of 32 calls without frame pointers 0.6 us", "sample/dormouse/omitted", 600.0);
    bench.at_most("a sample of 32 calls with frame pointers 0.39 us", "sample/dormouse/kept", 390.0);
    placing::compare(bench);
    sizes::compare(bench);
    replayed::compare(bench);
    bench.explain(include_str!("notes.txt"));
}
