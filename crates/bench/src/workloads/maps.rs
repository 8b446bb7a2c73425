//! `bench maps`: how often a cache answers where an address lies, and what an answer costs.
//!
//! The look-ups are page faults of real programs, recorded with their mappings (`traces/README.md`), and
//! replayed through three schemes: the two of the origin and ours.

mod contended;
mod lookup;
mod peers;
mod replay;
mod schemes;
mod tree;

use std::fs;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, bail};
use dormouse_maps::faults::{self, Op};

use super::{Measured, Settings, goal};
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec, run as run_cases};
use crate::table::{Table, value};

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

type Replay = fn(&Script) -> Replayed;

/// The schemes and how to replay them; those that bear `false` have the hit rate of another one.
const SCHEMES: [(&str, bool, Replay); 6] = [
    ("single", true, Script::replay::<Single<false>>),
    ("single-locked", false, Script::replay::<Single<true>>),
    ("vmacache", true, Script::replay::<Vmacache<false>>),
    ("vmacache-locked", false, Script::replay::<Vmacache<true>>),
    ("dormouse", true, Script::replay::<Dormouse<true>>),
    ("dormouse-untold", true, Script::replay::<Dormouse<false>>),
];

/// Look-ups are timed apart in traces of no more of them; one of ebizzy's length would take a minute.
const MOST_APART: u64 = 500_000;

/// The schemes there.
const SCHEMES_APART: [(&str, Replay); 3] = [
    ("single", Script::replay_apart::<Single<false>>),
    ("vmacache", Script::replay_apart::<Vmacache<false>>),
    ("dormouse", Script::replay_apart::<Dormouse<true>>),
];

const NOTES: &[&str] = &[
    "the traces are page faults of programs that ran on Linux 6.18, each with the mappings known at the time; the \
     kernel tells of new mappings and not of removed ones, so only what is mapped over makes cached answers stale",
    "single: the mapping found last, one for all threads of a process; vmacache: the origin's four slots by page number \
     for each thread; both over one balanced tree. The kernel held the reader's side of a lock around each of their \
     look-ups, which the origin's cycles leave out; so do ours, and so they are no way to look something up while another thread changes \
     the map. With std's RwLock they are one: X-locked. dormouse is one as it stands; what it does for that is in its cycles",
    "dormouse: RangeMap and Cache as a service uses them; a thread that maps something gives its cache along, where the trace \
     leaves no doubt which thread that was (a process with one). dormouse-untold: no thread does",
    "limit: a cache for each thread without bounds, stale when the origin's is; what it misses is a \
     first touch, and faults are the first touches of a program that has just begun. The origin counted all look-ups of the kernel, \
     those of mmap and munmap too, on a kernel that took a fault for each page of a file",
    "cycles: of the time stamp counter, a look-up, misses included; fenced around the look-ups between two changes \
     of mappings, less what an empty pair of fenced reads costs; of each such run the least of three, since the counter \
     runs on while the thread does not. The origin counts processor cycles in all look-ups; its \
     ratio is what can be compared",
    "in a replay look-ups follow one another at once and a tree of a hundred nodes stays in the first-level cache, where \
     walking it costs little more than missing a cached answer; between two faults of a kernel, thousands of cycles of other work \
     push it out. cycles-apart: look-ups timed alone, one of four, each after 64 KiB of other memory have been written to",
    "hit-rate: look-ups that the cache answered, of all look-ups, those that went round it included",
];

/// Runs the workload; or replays one trace, of which the origin says nothing.
pub(crate) fn run(settings: &Settings, trace: Option<&Recorded>, progress: &mut Progress) -> Measured {
    let plan = settings.plan(20, 4);
    let notes = match trace {
        Some(_) => NOTES.to_vec(),
        None => [NOTES, lookup::NOTES, &[contended::NOTE]].concat(),
    };
    progress.say("reading traces");
    let mut cases = Vec::new();
    if let Some(Recorded { name, ops }) = trace {
        cases.extend(replays(name, ops));
    } else {
        cases.extend(WORKLOADS.iter().flat_map(|workload| match faults::read(workload.trace) {
            Ok(ops) => replays(workload.name, &ops),
            Err(error) => {
                let spec = Spec::new(format!("cycles/{}/dormouse", workload.name), "TSC cycles");
                vec![Case::unavailable(vec![spec], error.to_string())]
            }
        }));
        progress.say("calibrating");
        cases.extend(lookup::cases(settings));
        cases.extend(contended::cases(settings));
    }
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    if let Some(Recorded { name, .. }) = trace {
        let mut ratios = ratios(&measured.rows, name);
        measured.rows.append(&mut ratios);
    } else {
        compare(&mut measured);
        lookup::compare(&mut measured);
        contended::compare(&mut measured);
        measured.tables.push(origin(&measured.rows));
    }
    measured.notes.extend(notes.into_iter().map(str::to_owned));
    measured
}

/// A trace that was recorded by whoever runs the bench.
#[derive(Debug)]
pub(crate) struct Recorded {
    name: String,
    ops: Vec<Op>,
}

impl Recorded {
    /// Reads the trace in `path`, which gives its rows their name.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let ops = faults::read(&bytes[..]).with_context(|| format!("cannot replay {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('.').next().unwrap_or_default().to_owned();
        if !ops.iter().any(|op| matches!(op, Op::Fault { .. })) {
            bail!("cannot replay {}: there is no page fault in it", path.display());
        }
        Ok(Self { name, ops })
    }
}

/// All schemes on one trace.
fn replays(name: &str, ops: &[Op]) -> Vec<Case<'static>> {
    let script = Rc::new(Script::of(ops));
    let lookups = script.lookups();
    let spec = |kind: &str, scheme: &str, unit| {
        Spec::new(format!("{kind}/{name}/{scheme}"), unit).with("lookups", lookups)
    };
    let cycles = |kind: &str, scheme: &str| spec(kind, scheme, "TSC cycles").with("per", "look-up");
    // What all schemes must answer.
    let right = script.replay::<Single<false>>().answers;
    let case = |specs: Vec<Spec>, replay: Replay| {
        let script = Rc::clone(&script);
        Case::new(specs.clone(), move || {
            let Replayed { hits, cycles, answers } = replay(&script);
            if answers != right {
                return Err(Failure::Wrong(
                    "an address was said to lie in another mapping than it did".to_owned(),
                ));
            }
            let lookups = script.lookups() as f64;
            let values = [cycles as f64 / lookups, 100.0 * hits as f64 / lookups];
            Ok(values[..specs.len()].to_vec())
        })
    };
    let limit = Rc::clone(&script);
    let mut cases = vec![Case::new(vec![spec("hit-rate", "limit", "%")], move || {
        Ok(vec![100.0 * limit.replay::<Limit>().hits as f64 / limit.lookups() as f64])
    })];
    for (scheme, hits, replay) in SCHEMES {
        let mut specs = vec![cycles("cycles", scheme)];
        specs.extend(hits.then(|| spec("hit-rate", scheme, "%")));
        cases.push(case(specs, replay));
    }
    if lookups <= MOST_APART {
        let apart = SCHEMES_APART.map(|(scheme, replay)| case(vec![cycles("cycles-apart", scheme)], replay));
        cases.extend(apart);
    }
    cases
}

/// Cycles of the other schemes over those of `single`, of all there are of one trace.
fn ratios(rows: &[Row], name: &str) -> Vec<Row> {
    let over = |kind: &str, over: &str, of: &str, scheme: &str| {
        let [row, of] = [scheme, of].map(|scheme| find(rows, &format!("{kind}/{name}/{scheme}")));
        Row::times(&format!("{kind}-over-{over}/{name}/{scheme}"), &row, &of)
    };
    let mut ratios = vec![
        over("cycles", "single", "single", "vmacache"),
        over("cycles", "single", "single", "dormouse"),
        over("cycles", "locked", "single-locked", "vmacache-locked"),
        over("cycles", "locked", "single-locked", "dormouse"),
    ];
    if find(rows, &format!("cycles-apart/{name}/single")).n > 0 {
        ratios
            .extend(["vmacache", "dormouse"].map(|scheme| over("cycles-apart", "single", "single", scheme)));
    }
    ratios
}

/// Rows computed from the measured ones, and what to say of them.
fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let mut computed = Vec::new();
    for Workload { name, origin, .. } in &WORKLOADS {
        let ratios = ratios(rows, name);
        let hits = find(rows, &format!("hit-rate/{name}/dormouse"));
        let wanted = origin.hits[1];
        measured.notes.push(goal(&format!("hit rate at least {wanted} %"), &hits, |x| x >= wanted));
        let wanted = origin.ratio;
        let ours = find(&ratios, &format!("cycles-over-single/{name}/dormouse"));
        let text = format!("cycles a look-up at most {wanted} times those of single");
        measured.notes.push(goal(&text, &ours, |x| x <= wanted));
        computed.extend(ratios);
    }
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
        for scheme in ["vmacache", "dormouse"] {
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

    #[test]
    fn every_trace_can_be_read_and_together_they_are_small() {
        let mut bytes = 0;
        for workload in &WORKLOADS {
            let ops = faults::read(workload.trace).unwrap();
            assert!(ops.iter().filter(|op| matches!(op, Op::Fault { .. })).count() > 10_000);
            bytes += workload.trace.len();
        }
        assert!(bytes <= 3 << 20, "{bytes} bytes of traces");
    }

    #[test]
    fn a_trace_of_ones_own_is_read_by_its_name_or_refused_by_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let whole = [
            Op::Process { parent: None },
            Op::Thread { process: 0 },
            Op::Map { process: 0, page: 1, pages: 1 },
            Op::Fault { thread: 0, page: 1 },
        ];
        let write = |name, ops: &[Op]| {
            let mut writer = faults::Writer::new(fs::File::create(path(name)).unwrap());
            for op in ops {
                writer.put(op).unwrap();
            }
            writer.finish().unwrap();
        };
        write("mine.faults.gz", &whole);
        write("idle.gz", &whole[..3]);
        fs::write(path("text"), "no trace").unwrap();
        let read = Recorded::read(&path("mine.faults.gz")).unwrap();
        assert_eq!((read.name.as_str(), read.ops.as_slice()), ("mine", whole.as_slice()));
        for refused in ["idle.gz", "text", "absent"] {
            let error = Recorded::read(&path(refused)).unwrap_err();
            assert!(format!("{error:#}").contains(refused), "{error:#}");
        }
    }
}
