//! The price of an update of 56 sites, and the interrupts that it sends.
//!
//! The 56 sites belong to 56 keys, so the same places can be switched by one [`Batch`] or by 56, one key
//! each: all that differs is the batching. One other thread runs the sites all the time, as the
//! origin's machine did: who patches alone pays for nobody's interrupt. After every batch the patching
//! thread runs the sites itself and counts those that are on.
//!
//! The peer `static-keys` switches 56 sites of one key, and only while there is no other thread: its
//! documentation forbids anything else.

use std::fs;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use dormouse::keys::Batch;

use super::SITES;
use super::neighbour::Neighbour;
use super::sites::{KEYS, PEER, run_peer_sites, run_sites};
use crate::affinity::Halves;
use crate::clocks::wall;
use crate::interrupts::Ipis;
use crate::runner::{Case, Failure, Spec};
use crate::workloads::Settings;

pub(super) const NOTES: &[&str] = &[
    "update rows: wall time of switching 56 sites of 56 keys (building the batch included), half the \
     updates on, half off; a value is the mean over the updates of a round; one other thread runs the \
     sites meanwhile",
    "neighbour rows: how much of that time the other thread really ran, on another processor than the \
     patching one where there are two; where it did not, there was nobody to interrupt and the update was \
     cheaper",
    "ipis rows: from /proc/interrupts, summed over processors and divided by updates; of the whole \
     machine, so other work on it adds; CAL includes what TLB counts. ipis/no-update is the same machine \
     for the same setting with nothing switched, in interrupts a millisecond",
    "update/…-alone: the same in a process of one thread, where there is nobody to interrupt: the \
     condition of the peer's row",
    "peer/static-keys-update: 56 sites of one key, switched while this process has one thread, as that \
     crate demands; it replaces each page by a copy, which from then on is anonymous memory",
];

const NOT_PATCHED: &str = "sites are not patched in this build: they load the key";

/// Switches all keys on or off.
type Update = fn(bool) -> Result<(), Failure>;

/// The cases.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let updates = if settings.quick { 10 } else { 20 };
    let halves = Halves::of_this_thread();
    let mut cases = update_cases("batch-flip", updates, &halves, batched);
    cases.extend(update_cases("one-by-one-flip", updates, &halves, one_by_one));
    cases.push(alone_case("batch-flip", updates, batched));
    cases.push(alone_case("one-by-one-flip", updates, one_by_one));
    cases.push(idle_case(settings, halves));
    cases.push(peer_case(updates));
    cases
}

/// All keys in one batch.
fn batched(on: bool) -> Result<(), Failure> {
    let mut batch = Batch::new();
    for key in &KEYS {
        batch = if on { batch.enable(key()) } else { batch.disable(key()) };
    }
    batch.apply()?;
    Ok(())
}

/// A batch for each key.
fn one_by_one(on: bool) -> Result<(), Failure> {
    for key in &KEYS {
        if on {
            key().enable()?
        } else {
            key().disable()?
        };
    }
    Ok(())
}

/// `update/NAME`, the share of the time that the other thread ran, and, of the same updates,
/// `ipis/NAME/cal` and `ipis/NAME/tlb`. Where interrupts cannot be counted only those are unavailable.
fn update_cases(name: &str, updates: u32, halves: &Halves, update: Update) -> Vec<Case<'static>> {
    let spec = |name: String, unit| {
        Spec::new(name, unit).with("per", "update").with("sites", SITES).with("updates", updates)
    };
    let time = spec(format!("update/{name}"), "us").with("clock", "wall time");
    let share = Spec::new(format!("neighbour/{name}"), "%").with("of", "wall time of the updates");
    let counts = ["cal", "tlb"].map(|kind| spec(format!("ipis/{name}/{kind}"), "IPIs"));
    let everything = [time.clone(), share.clone()].into_iter().chain(counts.clone()).collect();
    let per_update = move |sum: f64| sum / f64::from(updates);
    let halves = halves.clone();
    if !dormouse::keys::PATCHING {
        return vec![Case::unavailable(everything, NOT_PATCHED)];
    }
    if let Err(reason) = Ipis::read() {
        let measured = Case::new(vec![time, share], move || {
            let neighbour = Neighbour::start(&halves)?;
            let work = || halves.on_first(|| micros(updates, update, run_sites));
            let (micros, share) = neighbour.during(work)?;
            Ok(vec![per_update(micros??), share])
        });
        return vec![measured, Case::unavailable(counts.into(), reason)];
    }
    vec![Case::new(everything, move || {
        let neighbour = Neighbour::start(&halves)?;
        let before = Ipis::read()?;
        let work = || halves.on_first(|| micros(updates, update, run_sites));
        let (micros, share) = neighbour.during(work)?;
        let ipis = Ipis::read()?.since(before);
        drop(neighbour);
        let [cal, tlb] = [ipis.cal, ipis.tlb].map(|count| per_update(count as f64));
        Ok(vec![per_update(micros??), share, cal, tlb])
    })]
}

/// Microseconds that `updates` updates took, on and off in turn; after each, `run` says how many sites are on.
fn micros(
    updates: u32,
    update: impl Fn(bool) -> Result<(), Failure>,
    run: fn() -> usize,
) -> Result<f64, Failure> {
    let mut elapsed = Duration::ZERO;
    for number in 0..updates {
        let on = number % 2 == 0;
        let (took, done) = wall(|| update(on));
        done?;
        elapsed += took;
        check(on, run())?;
    }
    Ok(elapsed.as_secs_f64() * 1e6)
}

/// Whether all sites, or none, were on.
fn check(on: bool, seen: usize) -> Result<(), Failure> {
    let expected = if on { SITES } else { 0 };
    if seen == expected {
        Ok(())
    } else {
        Err(Failure::Wrong(format!("{seen} sites were on, not {expected}")))
    }
}

/// `update/NAME-alone`: in a process of one thread, as the peer demands it.
fn alone_case(name: &str, updates: u32, update: Update) -> Case<'static> {
    let spec = Spec::new(format!("update/{name}-alone"), "us")
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
        Ok(vec![micros(updates, update, run_sites)? / f64::from(updates)])
    })
}

/// Interrupts while nothing is switched: what the machine adds to the other rows.
fn idle_case(settings: &Settings, halves: Halves) -> Case<'static> {
    let specs = ["cal", "tlb"]
        .map(|kind| Spec::new(format!("ipis/no-update/{kind}"), "IPIs").with("per", "millisecond"));
    let span = settings.target();
    if let Err(reason) = Ipis::read() {
        return Case::unavailable(specs.into(), reason);
    }
    Case::new(specs.into(), move || {
        let neighbour = Neighbour::start(&halves)?;
        let before = Ipis::read()?;
        let begin = Instant::now();
        while begin.elapsed() < span {
            black_box(run_sites());
        }
        let millis = begin.elapsed().as_secs_f64() * 1e3;
        let ipis = Ipis::read()?.since(before);
        drop(neighbour);
        Ok(vec![ipis.cal as f64 / millis, ipis.tlb as f64 / millis])
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
        let update = |on| {
            // SAFETY: `global_init` has run, and this is the process's only thread.
            unsafe { if on { PEER.enable() } else { PEER.disable() } };
            Ok(())
        };
        Ok(vec![micros(updates, update, run_peer_sites)? / f64::from(updates)])
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Switches what all of a process runs, so it runs in one of its own, which the next test starts.
    #[test]
    #[ignore = "run by `both_ways_switch_the_same_sites` in a process of its own"]
    fn child() {
        for update in [batched, one_by_one] {
            update(true).unwrap();
            assert_eq!(run_sites(), SITES);
            update(false).unwrap();
            assert_eq!(run_sites(), 0);
        }
        batched(true).unwrap();
        one_by_one(false).unwrap();
        assert_eq!(run_sites(), 0);
    }

    #[test]
    fn both_ways_switch_the_same_sites() {
        let test = concat!(module_path!(), "::child");
        let (_, test) = test.split_once("::").unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", test])
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
    }

    #[test]
    fn a_site_in_the_wrong_state_is_a_wrong_answer() {
        assert_eq!(check(true, SITES), Ok(()));
        assert_eq!(check(false, 0), Ok(()));
        assert!(matches!(check(true, SITES - 1), Err(Failure::Wrong(_))));
    }
}
