//! The price of an update of 56 sites, and the interrupts that it sends.
//!
//! One other thread runs the sites all the time, as the origin's machine did: who patches alone pays for
//! nobody's interrupt.
//!
//! The peer `static-keys` switches 56 sites of one key, and only while there is no other thread: its
//! documentation forbids anything else.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::neighbour::Neighbour;
use super::sites::{PEER, run_peer_sites, run_sites};
use super::ways::{WAYS, Way, check};
use super::{BUSY, SITES};
use crate::affinity::Halves;
use crate::clocks::wall;
use crate::interrupts::Ipis;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec};
use crate::stats::ratio_of_medians;
use crate::table::value;
use crate::workloads::{Settings, goal};

pub(super) const NOTES: &[&str] = &[
    "update rows: wall time of switching 56 sites of 56 keys (building the batch included), half the \
     updates on, half off; a value is the mean over the updates of a round; one other thread runs the \
     sites meanwhile",
    "neighbour rows: how much of that time the other thread really ran, on another processor than the \
     patching one where there are two; where it did not, there was nobody to interrupt and the update was \
     cheaper",
    "traps rows: how often a thread ran into an int3; syncs rows: barriers, 3 for each queue of at most 256 \
     sites by int3 and 1 by flip, anything else being a wrong answer",
    "update/…-alone: the same in a process of one thread, where there is nobody to interrupt: the \
     condition of the peer's row",
    "peer/static-keys-update: 56 sites of one key, switched while this process has one thread, as that \
     crate demands; it replaces each page by a copy, which from then on is anonymous memory",
];

pub(super) const NOT_PATCHED: &str = "sites are not patched in this build: they load the key";

/// Updates that a value is the mean of. Where processors are shared, as many as last for several time slices: for
/// less, the other thread runs either all the time or not at all.
pub(super) fn updates(settings: &Settings, way: Way, suffix: &str) -> u32 {
    let few = if settings.quick { 10 } else { 20 };
    match suffix {
        BUSY if way.batched => 40 * few,
        BUSY => 2 * few,
        _ => few,
    }
}

/// The cases with another thread; `suffix` tells what else the machine does.
pub(super) fn cases(settings: &Settings, suffix: &str) -> Vec<Case<'static>> {
    let halves = Halves::of_this_thread();
    WAYS.iter().flat_map(|&way| way_cases(way, updates(settings, way, suffix), &halves, suffix)).collect()
}

/// The cases of a process that has but one thread.
pub(super) fn alone_cases(settings: &Settings) -> Vec<Case<'static>> {
    let mut cases: Vec<_> = WAYS.iter().map(|&way| alone_case(way, updates(settings, way, ""))).collect();
    cases.push(peer_case(if settings.quick { 10 } else { 20 }));
    cases
}

/// How many times faster the batches are, idle and under a compile.
pub(super) fn compare(rows: &[Row]) -> Vec<Row> {
    let times = |name: String, single: String, batch: String| {
        Row::times(&name, &find(rows, &single), &find(rows, &batch))
    };
    let mut computed = Vec::new();
    for suffix in ["", BUSY] {
        for protocol in ["int3", "flip"] {
            let row = |way: &str| format!("update/{way}-{protocol}{suffix}");
            computed.push(times(row("batch-speedup"), row("one-by-one"), row("batch")));
        }
        let row = |way: &str| format!("update/batch-{way}{suffix}");
        computed.push(times(row("int3-to-flip"), row("int3"), row("flip")));
    }
    computed
}

/// What was asked of an update, and whether the machine let it be measured.
pub(super) fn goals(rows: &[Row], computed: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    for (protocol, factor) in [("int3", 40.0), ("flip", 20.0)] {
        let [single, batch] =
            ["one-by-one", "batch"].map(|way| find(rows, &format!("update/{way}-{protocol}")));
        let text = format!("update/batch-{protocol} at least {factor} times faster than one by one");
        let speedup = find(computed, &format!("update/batch-speedup-{protocol}"));
        notes.push(format!(
            "{}; the ratio of the medians is {}",
            goal(&text, &speedup, |x| x >= factor),
            value(ratio_of_medians(&single.values, &batch.values))
        ));
    }
    for way in WAYS {
        let name = format!("neighbour/{}", way.name);
        if let Some(share) = find(rows, &name).median.filter(|&share| share < 90.0) {
            notes.push(format!(
                "the machine was too busy for the update rows: {name} has median {} %",
                value(Some(share))
            ));
        }
    }
    notes
}

/// `update/NAME`, the share of the time that the other thread ran, and, of the same updates, `traps/NAME`,
/// `syncs/NAME`, `ipis/NAME/cal` and `ipis/NAME/tlb`. Where interrupts cannot be counted only those are
/// unavailable.
fn way_cases(way: Way, updates: u32, halves: &Halves, suffix: &str) -> Vec<Case<'static>> {
    let name = way.name;
    let spec = |name: String, unit| {
        Spec::new(format!("{name}{suffix}"), unit)
            .with("per", "update")
            .with("sites", SITES)
            .with("updates", updates)
    };
    let mut specs = vec![
        spec(format!("update/{name}"), "us").with("clock", "wall time"),
        spec(format!("traps/{name}"), "traps"),
        spec(format!("syncs/{name}"), "barriers"),
        Spec::new(format!("neighbour/{name}{suffix}"), "%").with("of", "wall time of the updates"),
    ];
    let ipis = ["cal", "tlb"].map(|kind| spec(format!("ipis/{name}/{kind}"), "IPIs"));
    if !dormouse::keys::PATCHING {
        specs.extend(ipis);
        return vec![Case::unavailable(specs, NOT_PATCHED)];
    }
    let (mut cases, counting) = (Vec::new(), Ipis::read());
    let counted = counting.is_ok();
    match counting {
        Ok(_) => specs.extend(ipis),
        Err(reason) => cases.push(Case::unavailable(ipis.into(), reason)),
    }
    let halves = halves.clone();
    cases.push(Case::new(specs, move || {
        let count = || counted.then(Ipis::read).transpose();
        let neighbour = Neighbour::start(&halves, run_sites)?;
        let before = count()?;
        let (took, share) = neighbour.during(|| halves.on_first(|| way.updates(updates)))?;
        let ipis = before.zip(count()?).map(|(before, after)| after.since(before));
        drop(neighbour);
        let took = took??;
        let per_update = |sum: f64| sum / f64::from(updates);
        let mut values = vec![
            per_update(took.time.as_secs_f64() * 1e6),
            per_update(took.traps as f64),
            per_update(took.barriers as f64),
            share,
        ];
        values
            .extend(ipis.iter().flat_map(|ipis| [ipis.cal, ipis.tlb]).map(|count| per_update(count as f64)));
        Ok(values)
    }));
    cases
}

/// `update/NAME-alone`: in a process of one thread, as the peer demands it.
fn alone_case(way: Way, updates: u32) -> Case<'static> {
    let spec = Spec::new(format!("update/{}-alone", way.name), "us")
        .with("per", "update")
        .with("clock", "wall time")
        .with("sites", SITES)
        .with("updates", updates)
        .with("threads", 1);
    if !dormouse::keys::PATCHING {
        return Case::unavailable(vec![spec], NOT_PATCHED);
    }
    Case::new(vec![spec], move || {
        alone("to be compared with static-keys it takes")?;
        Ok(vec![way.updates(updates)?.time.as_secs_f64() * 1e6 / f64::from(updates)])
    })
}

/// The peer, while there is no other thread.
fn peer_case(updates: u32) -> Case<'static> {
    let spec = Spec::new("peer/static-keys-update", "us")
        .with("per", "update")
        .with("clock", "wall time")
        .with("sites", SITES)
        .with("updates", updates)
        .with("threads", 1);
    Case::new(vec![spec], move || {
        alone("static-keys may only be switched in")?;
        let mut elapsed = Duration::ZERO;
        for number in 0..updates {
            let on = number % 2 == 0;
            // SAFETY: `global_init` has run, and this is the process's only thread.
            let (took, ()) = wall(|| unsafe { if on { PEER.enable() } else { PEER.disable() } });
            elapsed += took;
            check(on, run_peer_sites())?;
        }
        Ok(vec![elapsed.as_secs_f64() * 1e6 / f64::from(updates)])
    })
}

/// Whether this is the process's only thread. One that has been joined may still be listed for a moment.
fn alone(why: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        let threads = fs::read_dir("/proc/self/task")?.count();
        if threads == 1 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Failure::Unavailable(format!(
                "{why} a process of one thread, and this one has {threads}"
            )));
        }
        thread::yield_now();
    }
}
