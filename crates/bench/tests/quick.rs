//! `keys`, `poll`, `clock` and `breakpoint` in quick mode, as continuous integration runs them: every row
//! that is promised is there, with values or with the reason why not, and nothing gave a wrong answer.

use dormouse_bench::report::Report;
use dormouse_bench::{Args, BreakpointArgs, Workload, run_to};

const KEYS: &[&str] = &[
    "off/none",
    "off/dormouse",
    "off/atomic",
    "off/tracing",
    "off/tracing-envfilter-span",
    "off/static-keys",
    "read/rdtsc",
    "update/one-by-one-int3",
    "update/batch-int3",
    "update/one-by-one-flip",
    "update/batch-flip",
    "update/batch-int3/busy",
    "update/batch-speedup-int3",
    "update/batch-speedup-flip",
    "peer/static-keys-update",
    "ipis/batch-int3/cal",
    "ipis/batch-flip/cal",
    "ipis/batch-flip/tlb",
    "ipis/one-by-one-flip/cal",
    "ipis/one-by-one-flip/tlb",
    "ipis/batch-flip/cal/busy",
    "ipis/idle-cpu",
    "ipis/idle-cpu/busy",
    "traps/batch-int3",
    "traps/one-by-one-int3/busy",
    "syncs/batch-int3",
    "syncs/batch-flip",
    "trap/1",
    "trap/56",
    "trap/56/busy",
    "trap/4096",
    "off-difference/dormouse",
];

const POLL: [&str; 10] = [
    "poll/bare",
    "poll/dormouse",
    "poll/tokio-metrics",
    "poll/clock_gettime",
    "read/rdtsc",
    "read/thread-clock",
    "read/clock_gettime-thread",
    "attribution/hog",
    "attribution/hog-outer",
    "poll-added/dormouse",
];

const CLOCK: [&str; 18] = [
    "read/rdtsc",
    "read/thread-rseq",
    "read/thread-page",
    "read/thread-gap",
    "read/thread-syscall",
    "read/clock_gettime-thread",
    "read/cpu-time-crate",
    "error/rseq/idle/p50",
    "error/page/competitor/p99.9",
    "error/gap/idle/max",
    "switch-cost/none",
    "switch-cost/rseq",
    "switch-cost/page",
    "switch-cost/gap",
    "poll/dormouse-rseq",
    "poll/dormouse-page",
    "poll/dormouse-gap",
    "poll/dormouse-syscall",
];

const BREAKPOINT: [&str; 14] = [
    "thread/none",
    "thread/list",
    "thread/hash",
    "thread/hash/per-cpu",
    "thread/hash/total",
    "thread/hash/waited",
    "accounting/list/100",
    "accounting/list/1000000",
    "accounting/hash/100",
    "accounting/hash/1000000",
    "waiting/hash",
    "kernel/thread/0",
    "kernel/thread/4",
    "kernel/enable",
];

/// The breakpoint workload at a size that a build for debugging can bear.
const SMALL: BreakpointArgs =
    BreakpointArgs { repeat: 3, breakpoints: 4, parallelism: 2, threads: 16, cpus: 4 };

/// One test for all: side by side they would measure each other.
#[test]
fn every_promised_row_has_values_or_a_reason() {
    let workloads = [
        (Workload::Keys, "keys", KEYS),
        (Workload::Poll, "poll", &POLL),
        (Workload::Clock, "clock", &CLOCK),
        (Workload::Breakpoint, "breakpoint", &BREAKPOINT),
    ];
    for (workload, name, rows) in workloads {
        let args = Args {
            workload,
            json: true,
            output: None,
            quick: true,
            reps: Some(2),
            seed: 1,
            breakpoint: SMALL,
        };
        let mut json = Vec::new();
        run_to(&args, &mut json).unwrap();
        let report: Report = serde_json::from_slice(&json).unwrap();
        assert_eq!((report.schema, report.bench.as_str()), (1, name));
        for expected in rows {
            let row = report.rows.iter().find(|row| row.name == *expected);
            let row = row.unwrap_or_else(|| panic!("no row {expected}"));
            assert_eq!(row.values.len(), row.n, "{expected}");
            assert_eq!(row.n == 0, row.unavailable.as_ref().is_some_and(|why| !why.is_empty()), "{expected}");
        }
    }
}
