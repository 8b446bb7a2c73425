//! `update/…` and, of the same updates, `traps/…`, `syncs/…`, `neighbour/…` and `ipis/…`: the price
//! of an update of 56 sites, and the interrupts that it sends.
//!
//! One other thread runs the sites all the time, as on the origin's machine: without other threads
//! an update interrupts no processor.
//!
//! The peer `static-keys` switches 56 sites of one key, and only in a process of one thread: its
//! documentation forbids anything else.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use dormouse_statistics::ratio_of_medians;
use dormouse_sys::interrupts::Ipis;

use super::sites::{PEER, SITES, run_peer_sites, run_sites};
use super::ways::{BUSY, NOT_PATCHED, WAYS, Way, check};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::clocks::wall;
use crate::neighbour::Neighbour;
use crate::row::Spec;
use crate::runner::Failure;
use crate::table::value;

/// Updates that a value is the mean of. Under a compile, as many as last for several time slices:
/// in less, the other thread runs either all the time or not at all.
pub(super) fn updates(bench: &Bench, way: Way, suffix: &str) -> u32 {
    let few = bench.pick(20, 10);
    match suffix {
        BUSY if way.batched => 40 * few,
        BUSY => 2 * few,
        _ => few,
    }
}

/// Adds the rows with another thread; `suffix` names the other work of the machine. Where
/// interrupts cannot be counted their rows alone are unavailable.
pub(super) fn rows(bench: &mut Bench, suffix: &str) {
    for way in WAYS {
        let (name, updates) = (way.name, updates(bench, way, suffix));
        let spec = |name: String, unit| {
            Spec::new(format!("{name}{suffix}"), unit)
                .per("update")
                .with("sites", SITES)
                .with("updates", updates)
        };
        let mut specs = vec![
            spec(format!("update/{name}"), "us").wall(),
            spec(format!("traps/{name}"), "traps"),
            spec(format!("syncs/{name}"), "barriers"),
            Spec::new(format!("neighbour/{name}{suffix}"), "%").with("of", "wall time of the updates"),
        ];
        let ipis = ["cal", "tlb"].map(|kind| spec(format!("ipis/{name}/{kind}"), "IPIs"));
        if !dormouse::keys::PATCHING {
            specs.extend(ipis);
            bench.unavailable(specs, NOT_PATCHED);
            continue;
        }
        // arm64 flushes translations without interrupts.
        let [cal, tlb] = ipis;
        let counts_calls = bench.need(cal.clone(), Ipis::read()).is_some();
        let counts_flushes = bench.need(tlb.clone(), Ipis::read().and_then(Ipis::flushes)).is_some();
        specs.extend(counts_calls.then_some(cal).into_iter().chain(counts_flushes.then_some(tlb)));
        let halves = Halves::of_this_thread();
        bench.sample(specs, move || {
            let count = || counts_calls.then(Ipis::read).transpose();
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
            let ipis = ipis.into_iter().flat_map(|ipis| std::iter::once(ipis.cal).chain(ipis.tlb));
            values.extend(ipis.map(|count| per_update(count as f64)));
            Ok(values)
        });
    }
}

/// Adds the rows of a process that has but one thread.
pub(super) fn rows_alone(bench: &mut Bench) {
    let spec = |name: String, updates: u32| {
        Spec::new(name, "us")
            .per("update")
            .wall()
            .with("sites", SITES)
            .with("updates", updates)
            .with("threads", 1)
    };
    for way in WAYS {
        let updates = updates(bench, way, "");
        let spec = spec(format!("update/{}-alone", way.name), updates);
        if !dormouse::keys::PATCHING {
            bench.unavailable(spec, NOT_PATCHED);
            continue;
        }
        bench.sample(spec, move || {
            alone("to be compared with static-keys it takes")?;
            Ok(way.updates(updates)?.time.as_secs_f64() * 1e6 / f64::from(updates))
        });
    }
    let updates = bench.pick(20, 10);
    bench.sample(spec("peer/static-keys-update".to_owned(), updates), move || {
        alone("static-keys may only be switched in")?;
        let mut elapsed = Duration::ZERO;
        for number in 0..updates {
            let on = number % 2 == 0;
            // SAFETY: `global_init` has run, and this is the process's only thread.
            let (took, ()) = wall(|| unsafe { if on { PEER.enable() } else { PEER.disable() } });
            elapsed += took;
            check(on, run_peer_sites())?;
        }
        Ok(elapsed.as_secs_f64() * 1e6 / f64::from(updates))
    });
}

/// How many times faster the batches are, idle and under a compile; and whether the machine let the
/// updates be measured.
pub(super) fn compare(bench: &mut Bench) {
    let row = |way: &str, end: &str| format!("update/{way}-{end}");
    for suffix in ["", BUSY] {
        for protocol in ["int3", "flip"] {
            let end = format!("{protocol}{suffix}");
            bench.times(row("batch-speedup", &end), &row("one-by-one", &end), &row("batch", &end));
        }
        let [int3, flip] = ["int3", "flip"].map(|protocol| format!("update/batch-{protocol}{suffix}"));
        bench.times(format!("update/batch-int3-to-flip{suffix}"), &int3, &flip);
    }
    for (protocol, factor) in [("int3", 40.0), ("flip", 20.0)] {
        let [single, batch] = ["one-by-one", "batch"].map(|way| bench.row(&row(way, protocol)));
        let ratio = value(ratio_of_medians(&single.values, &batch.values));
        let text = format!("update/batch-{protocol} at least {factor} times faster than one by one");
        let goal = bench.goal(&text, &row("batch-speedup", protocol), |x| x >= factor);
        goal.extend(["; the ratio of the medians is ", &ratio]);
    }
    for way in WAYS {
        let name = format!("neighbour/{}", way.name);
        if let Some(share) = bench.median(&name).filter(|&share| share < 90.0) {
            let share = value(Some(share));
            bench
                .notes
                .push(format!("the machine was too busy for the update rows: {name} has median {share} %"));
        }
    }
}

/// Whether this is the process's only thread. A joined thread may still be listed for a moment.
fn alone(why: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        let threads = fs::read_dir("/proc/self/task")?.count();
        if threads == 1 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Failure::from(format!("{why} a process of one thread, and this one has {threads}")));
        }
        thread::yield_now();
    }
}
