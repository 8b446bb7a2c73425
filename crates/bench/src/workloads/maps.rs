//! `bench maps`: how often a cache answers where an address lies, and what an answer costs.
//!
//! The look-ups are page faults of real programs, recorded with their mappings (`traces/README.md`), and
//! replayed through three schemes: the two of the origin and ours.

mod replay;
mod schemes;
mod tree;

use std::rc::Rc;

use super::{Measured, Settings, goal};
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec, run as run_cases};
use crate::table::{Table, value};
use crate::trace;

use replay::{Replayed, Script};
use schemes::{Dormouse, Limit, Single, Vmacache};

/// Pages of the traces.
const PAGE_BITS: u32 = 12;

/// A trace and what the origin says of the workload that it stands for.
struct Workload {
    name: &'static str,
    trace: &'static [u8],
    origin: Origin,
}

/// Hit rate in percent and cycles in 10⁹, before and after.
struct Origin {
    what: &'static str,
    hits: [f64; 2],
    cycles: [f64; 2],
    /// The cycles' ratio in two digits, which is the goal.
    ratio: f64,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "boot",
        trace: include_bytes!("../../traces/boot.faults.gz"),
        origin: Origin { what: "system bootup", hits: [50.61, 73.45], cycles: [19.90, 13.58], ratio: 0.68 },
    },
    Workload {
        name: "build",
        trace: include_bytes!("../../traces/build.faults.gz"),
        origin: Origin { what: "kernel build", hits: [75.28, 88.09], cycles: [11.03, 9.31], ratio: 0.85 },
    },
    Workload {
        name: "mining",
        trace: include_bytes!("../../traces/mining.faults.gz"),
        origin: Origin {
            what: "Oracle 11g data mining",
            hits: [70.66, 91.15],
            cycles: [17.14, 12.57],
            ratio: 0.74,
        },
    },
    Workload {
        name: "ebizzy",
        trace: include_bytes!("../../traces/ebizzy.faults.gz"),
        origin: Origin {
            what: "ebizzy, 80 threads",
            hits: [1.06, 99.97],
            cycles: [91.54, 14.18],
            ratio: 0.16,
        },
    },
];

const SCHEMES: [&str; 3] = ["single", "vmacache", "dormouse"];

const NOTES: &[&str] = &[
    "the traces are page faults of programs that ran on Linux 6.18, each with the mappings known at the time; the \
     kernel tells of new mappings and not of removed ones, so only what is mapped over makes cached answers stale",
    "single: the mapping found last, one for all threads of a process; vmacache: the origin's four slots by page number \
     for each thread; both over one balanced tree, replayed by one thread and without the lock that they need, \
     which is to their advantage. dormouse: RangeMap and Cache as a service uses them",
    "limit: a cache for each thread without bounds, stale when the origin's is; what it misses is a first touch, and \
     faults are the first touches of a program that has just begun. The origin counted all look-ups of the kernel, \
     those of mmap and munmap too, on a kernel that took a fault for each page of a file",
    "in a replay look-ups follow one another at once and a tree of a hundred nodes stays in the first-level cache, where \
     walking it costs little more than missing it; between two faults of a kernel, thousands of cycles of other work push it out. So where \
     single hits often or the map is small, its cycles here are below the origin's proportion",
    "hit-rate: look-ups that the cache answered, of all look-ups, those that went round it included",
    "cycles: of the time stamp counter, a look-up, misses included; fenced around the look-ups between two changes \
     of mappings, less what an empty pair of fenced reads costs; of each such run the least of three, since the counter \
     runs on while the thread does not. The origin counts processor cycles in all look-ups; its \
     ratio is what can be compared",
];

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    let plan = settings.plan(20, 4);
    progress.say("reading traces");
    let cases = WORKLOADS.iter().flat_map(cases).collect();
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    compare(&mut measured);
    measured.tables.push(origin(&measured.rows));
    measured
}

/// The three schemes on one trace, or the reason why it cannot be read.
fn cases(workload: &Workload) -> Vec<Case<'static>> {
    let script = trace::read(workload.trace).map(|ops| Rc::new(Script::of(&ops)));
    let lookups = script.as_ref().map_or(0, |script| script.lookups());
    let specs = |scheme: &str| {
        let name = workload.name;
        vec![
            Spec::new(format!("hit-rate/{name}/{scheme}"), "%").with("lookups", lookups),
            Spec::new(format!("cycles/{name}/{scheme}"), "TSC cycles")
                .with("per", "look-up")
                .with("lookups", lookups),
        ]
    };
    let script = match script {
        Ok(script) => script,
        Err(error) => {
            let reason = error.to_string();
            return SCHEMES.map(|scheme| Case::unavailable(specs(scheme), reason.clone())).into();
        }
    };
    // What all schemes must answer.
    let right = script.replay::<Single>().answers;
    let case = |scheme: &str, replay: fn(&Script) -> Replayed| {
        let script = Rc::clone(&script);
        Case::new(specs(scheme), move || {
            let Replayed { hits, cycles, answers } = replay(&script);
            if answers != right {
                return Err(Failure::Wrong(
                    "an address was said to lie in another mapping than it did".to_owned(),
                ));
            }
            let lookups = script.lookups() as f64;
            Ok(vec![100.0 * hits as f64 / lookups, cycles as f64 / lookups])
        })
    };
    let limit = Rc::clone(&script);
    let of_limit = specs("limit").swap_remove(0);
    vec![
        Case::new(vec![of_limit], move || {
            Ok(vec![100.0 * limit.replay::<Limit>().hits as f64 / limit.lookups() as f64])
        }),
        case("single", Script::replay::<Single>),
        case("vmacache", Script::replay::<Vmacache>),
        case("dormouse", Script::replay::<Dormouse>),
    ]
}

/// Rows computed from the measured ones, and what to say of them.
fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let mut computed = Vec::new();
    for Workload { name, origin, .. } in &WORKLOADS {
        let single = find(rows, &format!("cycles/{name}/single"));
        for scheme in &SCHEMES[1..] {
            let row = find(rows, &format!("cycles/{name}/{scheme}"));
            computed.push(Row::times(&format!("cycles-over-single/{name}/{scheme}"), &row, &single));
        }
        let hits = find(rows, &format!("hit-rate/{name}/dormouse"));
        let wanted = origin.hits[1];
        measured.notes.push(goal(&format!("hit rate at least {wanted} %"), &hits, |x| x >= wanted));
        if let Some(ratio) = computed.last() {
            let wanted = origin.ratio;
            let text = format!("cycles a look-up at most {wanted} times those of single");
            measured.notes.push(goal(&text, ratio, |x| x <= wanted));
        }
    }
    measured.notes.extend(NOTES.iter().map(|&note| note.to_owned()));
    measured.rows.append(&mut computed);
}

/// The origin's figures beside ours.
fn origin(rows: &[Row]) -> Table {
    let mut table = Table::new(
        Some(
            "Origin: per-thread VMA cache, Linux 2014, 80 processors in 8 sockets; hit rate, cycles in 10^9 in all look-ups.\n\
             Here: this run's medians, page faults replayed; hit rate, TSC cycles a look-up.",
        ),
        &["", "baseline", "cached", "cycles", "cycles cached", "ratio"],
    );
    for Workload { name, origin, .. } in &WORKLOADS {
        let [before, after] = origin.cycles;
        table.row([
            format!("origin, {}", origin.what),
            format!("{} %", origin.hits[0]),
            format!("{} %", origin.hits[1]),
            format!("{before:.2}"),
            format!("{after:.2}"),
            format!("{:.2}", after / before),
        ]);
        let median = |kind: &str, scheme: &str| find(rows, &format!("{kind}/{name}/{scheme}")).median;
        let percent = |scheme| median("hit-rate", scheme).map_or("-".to_owned(), |x| format!("{x:.2} %"));
        let single = median("cycles", "single");
        for scheme in &SCHEMES[1..] {
            let cycles = median("cycles", scheme);
            table.row([
                format!("here, {name}, {scheme}"),
                percent("single"),
                percent(scheme),
                value(single),
                value(cycles),
                cycles
                    .zip(single)
                    .map_or("-".to_owned(), |(cycles, single)| format!("{:.2}", cycles / single)),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Op;

    #[test]
    fn every_trace_can_be_read_and_together_they_are_small() {
        let mut bytes = 0;
        for workload in &WORKLOADS {
            let ops = trace::read(workload.trace).unwrap();
            assert!(ops.iter().filter(|op| matches!(op, Op::Fault { .. })).count() > 10_000);
            bytes += workload.trace.len();
        }
        assert!(bytes <= 3 << 20, "{bytes} bytes of traces");
    }
}
