//! `hit-rate/…`, `cycles/…` and `cycles-evicted/…`: recorded page faults, replayed through all
//! schemes.

use std::fs;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, bail};
use dormouse_lab::faults::{self, FaultOp as Op};

use super::lookup::wrong;
use super::replay::{Evicted, Replayed, Script};
use super::schemes::{Dormouse, Limit, Single, Vmacache};
use crate::bench::Bench;
use crate::row::{Better, Spec};

/// A trace, and the origin's figures of the workload that it stands for: the hit rate in percent
/// after its change, and the cycles' ratio in two digits, which are the goals.
struct Trace {
    name: &'static str,
    bytes: &'static [u8],
    hits: f64,
    ratio: f64,
}

const TRACES: [Trace; 4] = [
    Trace { name: "boot", bytes: include_bytes!("../../../traces/boot.faults.gz"), hits: 73.45, ratio: 0.68 },
    Trace {
        name: "build",
        bytes: include_bytes!("../../../traces/build.faults.gz"),
        hits: 88.09,
        ratio: 0.85,
    },
    Trace {
        name: "mining",
        bytes: include_bytes!("../../../traces/mining.faults.gz"),
        hits: 91.15,
        ratio: 0.74,
    },
    Trace {
        name: "ebizzy",
        bytes: include_bytes!("../../../traces/ebizzy.faults.gz"),
        hits: 99.97,
        ratio: 0.16,
    },
];

type Replay = fn(&Script) -> Replayed;

/// Rows of each trace: the scheme, whether it has a hit rate that no other row has, and how to
/// replay it.
const ROWS: [(&str, bool, Replay); 6] = [
    ("single", true, Script::replay::<Single<false>>),
    ("single-locked", false, Script::replay::<Single<true>>),
    ("vmacache", true, Script::replay::<Vmacache<false>>),
    ("vmacache-locked", false, Script::replay::<Vmacache<true>>),
    ("dormouse", true, Script::replay::<Dormouse<true>>),
    ("dormouse-untold", true, Script::replay::<Dormouse<false>>),
];

type ReplayEvicted = fn(&Script, Evicted) -> Replayed;

/// Those with other memory in the caches: the scheme, and how to replay it.
const EVICTED: [(&str, ReplayEvicted); 3] = [
    ("single", Script::replay_evicted::<Single<false>>),
    ("vmacache", Script::replay_evicted::<Vmacache<false>>),
    ("dormouse", Script::replay_evicted::<Dormouse<true>>),
];

/// How much other memory that is: as a first-level cache has, a part of a second-level cache, and
/// all of one.
const BYTES: [(&str, usize); 3] = [("32k", 32 << 10), ("256k", 256 << 10), ("2m", 2 << 20)];

/// A trace that the user recorded.
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

    /// Adds all schemes on this trace.
    pub(super) fn rows(&self, bench: &mut Bench) {
        rows_of(bench, &self.name, &self.ops);
    }

    /// Adds the ratios of its rows.
    pub(super) fn compare(&self, bench: &mut Bench) {
        ratios(bench, &self.name);
    }
}

/// Adds all schemes on all traces.
pub(super) fn rows(bench: &mut Bench) {
    for Trace { name, bytes, .. } in &TRACES {
        let spec = Spec::new(format!("cycles/{name}/dormouse"), "TSC cycles");
        if let Some(ops) = bench.need(spec, faults::read(*bytes)) {
            rows_of(bench, name, &ops);
        }
    }
}

fn rows_of(bench: &mut Bench, name: &str, ops: &[Op]) {
    let script = Rc::new(Script::of(ops));
    let lookups = script.lookups();
    let spec = |kind: &str, scheme: &str, unit| {
        Spec::new(format!("{kind}/{name}/{scheme}"), unit).with("lookups", lookups)
    };
    let percent = move |hits: u64| 100.0 * hits as f64 / lookups as f64;
    let limit = Rc::clone(&script);
    bench.sample(spec("hit-rate", "limit", "%").better(Better::Higher), move || {
        Ok(percent(limit.replay::<Limit>().hits))
    });
    // Every scheme must give these answers.
    let right = script.replay::<Single<false>>().answers;
    for (scheme, has_hits, replay) in ROWS {
        let mut specs = vec![spec("cycles", scheme, "TSC cycles").per("look-up")];
        specs.extend(has_hits.then(|| spec("hit-rate", scheme, "%").better(Better::Higher)));
        let script = Rc::clone(&script);
        bench.sample(specs, move || {
            let Replayed { hits, cycles, answers } = replay(&script);
            if answers != right {
                return Err(wrong());
            }
            let each = cycles as f64 / lookups as f64;
            Ok(if has_hits { vec![each, percent(hits)] } else { vec![each] })
        });
    }
    let timed = bench.pick(1000, 100);
    for ((scheme, replay), (size, bytes)) in EVICTED.into_iter().flat_map(|of| BYTES.map(|size| (of, size))) {
        let spec = spec("cycles-evicted", &format!("{scheme}/{size}"), "TSC cycles").per("look-up");
        let script = Rc::clone(&script);
        bench.sample(spec, move || {
            let Replayed { cycles, answers, .. } = replay(&script, Evicted { bytes, timed });
            if answers != right {
                return Err(wrong());
            }
            Ok(cycles as f64 / lookups as f64)
        });
    }
}

/// Cycles of the other schemes over those of `single`, of all rows of one trace.
fn ratios(bench: &mut Bench, name: &str) {
    let mut over = |kind: &str, over: &str, of: &str, scheme: &str| {
        let [row, of] = [scheme, of].map(|scheme| format!("{kind}/{name}/{scheme}"));
        bench.times(format!("{kind}-over-{over}/{name}/{scheme}"), &row, &of);
    };
    over("cycles", "single", "single", "vmacache");
    over("cycles", "single", "single", "dormouse");
    over("cycles", "locked", "single-locked", "vmacache-locked");
    over("cycles", "locked", "single-locked", "dormouse");
    for (size, _) in BYTES {
        for scheme in ["vmacache", "dormouse"] {
            over("cycles-evicted", "single", &format!("single/{size}"), &format!("{scheme}/{size}"));
        }
    }
}

pub(super) fn compare(bench: &mut Bench) {
    for Trace { name, hits, ratio, .. } in &TRACES {
        ratios(bench, name);
        bench.at_least(&format!("hit rate at least {hits} %"), &format!("hit-rate/{name}/dormouse"), *hits);
        let text = format!("cycles a look-up at most {ratio} times those of single");
        bench.at_most(&text, &format!("cycles-over-single/{name}/dormouse"), *ratio);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trace_can_be_read_and_is_small() {
        let mut bytes = 0;
        for trace in &TRACES {
            let ops = faults::read(trace.bytes).unwrap();
            assert!(ops.iter().filter(|op| matches!(op, Op::Fault { .. })).count() > 10_000);
            bytes += trace.bytes.len();
        }
        assert!(bytes <= 3 << 20, "{bytes} bytes of traces");
    }

    #[test]
    fn a_recorded_trace_is_read_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let whole = [
            Op::Process { parent: None },
            Op::Thread { process: 0 },
            Op::Map { process: 0, page: 1, pages: 1 },
            Op::Fault { thread: 0, page: 1 },
        ];
        let write = |name, ops: &[Op]| {
            let mut writer = faults::FaultWriter::new(fs::File::create(path(name)).unwrap());
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
