//! The list of workloads, and the function that measures one.

use crate::args::{BenchArgs, Workload};
use crate::bench::Bench;
use crate::figures;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::{BenchReport, SCHEMA, WRONG};
use crate::row::Params;
use crate::workloads::maps::Recorded;
use crate::workloads::{
    alloc, breakpoint, clock, embed, groups, keys, latency, locks, maps, metrics, poll, pound, profile,
    record, stacks, switch, teaparty, waits,
};

/// The function that measures a workload.
type Run = fn(&mut Bench, &BenchArgs, Option<&Recorded>);

/// A workload.
pub(crate) struct Entry {
    pub(crate) workload: Workload,
    pub(crate) name: &'static str,
    /// Tables with the figures of its origin; empty where there is none.
    pub(crate) origin: &'static str,
    /// How many seconds it took on two processors, in full and quick. The estimate of the time
    /// left begins with these.
    pub(crate) seconds: [u32; 2],
    run: Run,
}

const fn entry(
    workload: Workload,
    name: &'static str,
    origin: &'static str,
    seconds: [u32; 2],
    run: Run,
) -> Entry {
    Entry { workload, name, origin, seconds, run }
}

/// In the order of `all`: short ones first, so that a run which is interrupted has results.
pub(crate) const ENTRIES: [Entry; 19] = [
    entry(Workload::Alloc, "alloc", "", [10, 3], |bench, _, _| alloc::run(bench)),
    entry(Workload::Poll, "poll", "", [20, 5], |bench, _, _| poll::run(bench)),
    entry(Workload::Keys, "keys", keys::ORIGIN, [100, 25], |bench, _, _| keys::run(bench)),
    entry(Workload::Clock, "clock", "", [30, 8], |bench, _, _| clock::run(bench)),
    entry(Workload::Breakpoint, "breakpoint", breakpoint::ORIGIN, [300, 40], |bench, args, _| {
        breakpoint::run(bench, &args.breakpoint);
    }),
    entry(Workload::Maps, "maps", maps::ORIGIN, [200, 30], |bench, _, trace| maps::run(bench, trace)),
    entry(Workload::Pound, "pound", pound::ORIGIN, [200, 30], |bench, _, _| pound::run(bench)),
    entry(Workload::Switch, "switch", switch::ORIGIN, [60, 30], |bench, _, _| switch::run(bench)),
    entry(Workload::Groups, "groups", "", [20, 5], |bench, _, _| groups::run(bench)),
    entry(Workload::Profile, "profile", "", [120, 60], |bench, _, _| profile::run(bench)),
    entry(Workload::Stacks, "stacks", "", [200, 60], |bench, _, _| stacks::run(bench)),
    entry(Workload::Record, "record", "", [40, 8], |bench, _, _| record::run(bench)),
    entry(Workload::Waits, "waits", "", [100, 20], |bench, _, _| waits::run(bench)),
    entry(Workload::Locks, "locks", "", [30, 8], |bench, _, _| locks::run(bench)),
    entry(Workload::Metrics, "metrics", "", [60, 20], |bench, _, _| metrics::run(bench)),
    entry(Workload::Latency, "latency", "", [170, 10], |bench, _, _| latency::run(bench)),
    entry(Workload::Teaparty, "teaparty", "", [400, 90], |bench, _, _| teaparty::run(bench)),
    entry(Workload::Own, "self", "", [120, 20], |bench, _, _| teaparty::own::run(bench)),
    entry(Workload::Embed, "embed", "", [900, 180], |bench, _, _| embed::run(bench)),
];

/// Measures a workload, in this process.
pub(crate) fn measure(entry: &Entry, args: &BenchArgs, trace: Option<&Recorded>) -> BenchReport {
    // Before the workload: the load average should be that of the machine, not ours.
    let mut machine = Machine::here();
    machine.load_1m = args.load_before.or(machine.load_1m);
    let mut bench = Bench::new(args.settings(), Progress::on_terminal());
    (entry.run)(&mut bench, args, trace);
    let mut notes: Vec<_> = bench.wrong.iter().map(|what| format!("{WRONG}{what}")).collect();
    notes.append(&mut bench.notes);
    notes.extend(machine.warnings());
    let mut params = Params::new();
    params.insert("quick".to_owned(), args.quick.into());
    params.insert("seed".to_owned(), args.seed.into());
    params.append(&mut bench.params);
    let report = BenchReport {
        schema: SCHEMA,
        bench: entry.name.to_owned(),
        machine,
        params,
        rows: bench.rows,
        notes,
    };
    if cfg!(debug_assertions) && trace.is_none() {
        let unknown = figures::unknown(entry.origin, &report.rows, &report.params);
        assert_eq!(unknown, Vec::<String>::new(), "tables name rows that do not exist");
    }
    report
}
