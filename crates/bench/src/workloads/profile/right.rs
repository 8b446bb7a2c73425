//! `error/…`, `cache/…`, `symbols/…` and `encode/…`: whether the weights of a profile of mixed work
//! are right, and the price of naming its addresses and writing it.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use dormouse::{Group, ProfileRun, ProfileSpec};
use dormouse_maps::{AddressSpace, Cache};
use dormouse_profile::{NameFinder, Profile, encode};
use rustix::time::ClockId;

use crate::bench::Bench;
use crate::clocks::{kernel_ns, wall};
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// The groups that work, with the number of threads of each.
const WORKERS: [(&str, usize); 2] = [("bench serial", 1), ("bench parallel", 3)];

pub(super) fn rows(bench: &mut Bench) {
    let span = Duration::from_millis(bench.pick(2000, 500));
    let percent = |name: &str, beside: &str| Spec::new(name, "%").with("beside", beside);
    let specs = [
        percent("error/groups", "the account of groups"),
        percent("error/process", "the process's clock"),
        Spec::new("cache/hit-rate", "%").better(Better::Higher).per("address, in the order of samples"),
        Spec::new("cache/addresses", "addresses"),
        Spec::new("cache/lookup", "ns").per("address").wall(),
        Spec::new("symbols/addresses", "addresses"),
        Spec::new("symbols/first", "us").per("address").wall(),
        Spec::new("symbols/again", "us").per("address").wall(),
        Spec::new("encode/rows", "rows"),
        Spec::new("encode/pprof", "us").per("row").wall(),
    ];
    bench.sample(specs, move || sample(span));
}

pub(super) fn compare(bench: &mut Bench) {
    bench.at_most("groups' weights within 1 % of the account", "error/groups", 1.0);
    bench.at_most("the process's within 1 % of its clock", "error/process", 1.0);
}

fn sample(span: Duration) -> Result<[f64; 10], Failure> {
    let process = || kernel_ns(ClockId::ProcessCPUTime);
    let run = ProfileRun::start(&ProfileSpec::cpu().hz(250).timeline())?;
    let (began, accounts) = (process(), WORKERS.map(|(name, _)| account(name)));
    thread::scope(|scope| {
        for (name, threads) in WORKERS {
            for _ in 0..threads {
                scope.spawn(move || Group::new(name).scope(|| mixed_work(span)));
            }
        }
    });
    let profile = run.read();
    let used = process() - began;
    let percent = |is: u64, should: u64| 100.0 * is.abs_diff(should) as f64 / should.max(1) as f64;
    let errors = WORKERS.iter().zip(accounts).map(|(&(name, _), before)| {
        let at = profile.groups.iter().position(|group| group.name == name);
        let rows = profile.samples.iter().filter(|row| Some(row.group as usize) == at);
        percent(rows.map(|row| row.values[1]).sum(), account(name) - before)
    });
    let of_groups = errors.fold(0.0, f64::max);
    let of_process = percent(profile.samples.iter().map(|row| row.values[1]).sum(), used);
    drop(run);
    let [hits, addresses, lookup] = looked_up(&profile)?;

    let mut finder = NameFinder::own()?;
    let distinct = profile.stacks.len().max(1) as f64;
    let per_address = |took: Duration| took.as_secs_f64() * 1e6 / distinct;
    let (first, symbols) = wall(|| finder.symbols(&profile));
    let (again, _) = wall(|| black_box(finder.symbols(&profile)));
    let rows = profile.samples.len();
    let (wrote, bytes) = wall(|| encode::pprof(&profile, &symbols));
    if bytes.is_empty() {
        return Err(Failure::wrong("an empty file"));
    }
    let write = wrote.as_secs_f64() * 1e6 / rows.max(1) as f64;
    Ok([
        of_groups,
        of_process,
        hits,
        addresses,
        lookup,
        distinct,
        per_address(first),
        per_address(again),
        rows as f64,
        write,
    ])
}

/// CPU time of a group, by its account.
fn account(name: &str) -> u64 {
    Group::new(name).read().cpu.as_nanos() as u64
}

/// The addresses of all samples, in the order in which they were taken, looked up by the map of the
/// process with a cache: the share of hits, how many they are, and the time of each.
fn looked_up(profile: &Profile) -> Result<[f64; 3], Failure> {
    let mut moments = profile.timeline.clone();
    moments.sort_by_key(|moment| moment.at_ns);
    let stack = |sample: u32| profile.samples[sample as usize].stack;
    let addresses: Vec<u64> = moments.iter().flat_map(|moment| profile.stack(stack(moment.sample))).collect();
    let (space, cache) = (AddressSpace::own()?, Cache::new());
    let (took, found) = wall(|| addresses.iter().try_for_each(|&at| space.resolve(&cache, at).map(drop)));
    found?;
    let stats = cache.stats();
    let asked = (stats.hits + stats.misses + stats.bypassed).max(1);
    let (hits, count) = (100.0 * stats.hits as f64 / asked as f64, addresses.len().max(1) as f64);
    Ok([hits, count, took.as_nanos() as f64 / count])
}

/// Work in many functions of several objects: text, trees, sums, copies.
fn mixed_work(span: Duration) {
    let end = Instant::now() + span;
    let mut round = 0_u64;
    while Instant::now() < end {
        let mut words: Vec<String> = (0..200).map(|n| format!("{:x}", (n * 7919 + round) % 1000)).collect();
        words.sort_unstable();
        let tree: BTreeMap<&str, usize> = words.iter().map(|word| (word.as_str(), word.len())).collect();
        let text = serde_json::to_string(&tree).unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        black_box((value, f64::sin(round as f64), text.to_uppercase()));
        round += 1;
    }
}
