//! The tea house's stacks under load, replayed through the memories of a thread: rows of `bench
//! stacks`.
//!
//! A walk looks first for the rule of each address, and for the range in which the address lies
//! where the thread has no rule. So the range is asked for in both ways: for all addresses
//! (`hits/range`), and for those without a rule (`hits/range-missed`). A *single slot* has the
//! answer before. No memory has the rule of an address that its thread meets for the first time:
//! `hits/rule-again` is without these.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::time::Duration;

use dormouse_maps::{Cache, Overlap, Perms, RangeMap, parse};
use dormouse_protocol::profile::Profile;
use dormouse_unwind::{ProcessTables, ThreadCache};
use tempfile::TempDir;

use super::load::{Clients, MIX};
use super::server::Server;
use super::{clients, has_tea_house, tea_house};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::eh_frame;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// Samples per second: as many as the kernel's tick allows, which is 250 where it is 4 ms.
const HZ: u32 = 999;

/// The length of the load. At that tick it has as many samples as a minute at the default rate. In
/// a shorter one, addresses that a thread meets for the first time are more of all.
const SPAN: Duration = Duration::from_secs(24);

/// The rows: hits of a memory in percent, or what else is found.
const HITS: [&str; 6] = [
    "hits/range",
    "hits-single/range",
    "hits/range-missed",
    "hits/rule",
    "hits-single/rule",
    "hits/rule-again",
];
const LEARNED: &str = "learned/size";
const LEARNING: &str = "learned/time";

pub(crate) fn rows(bench: &mut Bench) {
    let halves = Halves::of_this_thread();
    let mut specs: Vec<Spec> = HITS.map(|name| Spec::new(name, "%").better(Better::Higher)).into();
    specs.push(Spec::new("hits/addresses", "addresses"));
    specs.push(Spec::new("hits/distinct", "addresses"));
    specs.push(Spec::new(LEARNED, "% of .eh_frame").better(Better::Lower));
    specs.push(Spec::new(LEARNING, "ms").better(Better::Lower).cpu());
    let made = TempDir::with_prefix("dormouse-bench-")
        .map_err(|error| format!("cannot create a directory for the service: {error}"))
        .and_then(|directory| has_tea_house().map(|()| directory));
    let Some(directory) = bench.need(specs.clone(), made) else { return };
    let count = clients(&halves);
    let span = bench.pick(SPAN, SPAN / 4);
    bench.sample(specs, move || {
        let tea = tea_house()?;
        let server = halves.on_first(|| Server::start(tea, true, directory.path()))??;
        let mut clients = Clients::connect(server.addr, count)?;
        let mut profiled = server.profile(directory.path(), HZ, true)?;
        halves.on_second(|| clients.run(&MIX, span))??;
        let profile = profiled.whole()?;
        let maps = fs::read(format!("/proc/{}/maps", server.pid()))?;
        let stacks = by_thread(&profile);
        let distinct: BTreeSet<u64> = stacks.iter().flatten().copied().collect();
        let [size, ms] = learned(server.pid(), &maps, &distinct)?;
        let Replay { hits, addresses } = replay(&maps, &stacks)?;
        Ok([&hits[..], &[addresses, distinct.len() as f64, size, ms]].concat())
    });
}

pub(crate) fn compare(bench: &mut Bench) {
    bench.at_least("the range of 98 % of addresses is remembered", "hits/range", 98.0);
    bench.at_least("the rule of 95 % of addresses is remembered", "hits/rule", 95.0);
    bench.at_most("what is learned at most 5 % of .eh_frame", LEARNED, 5.0);
}

/// The addresses that each thread's walks met, in order.
fn by_thread(profile: &Profile) -> Vec<Vec<u64>> {
    let mut moments = profile.timeline.clone();
    moments.sort_by_key(|moment| moment.at_ns);
    let mut threads = BTreeMap::<u32, Vec<u64>>::new();
    for sample in moments.iter().filter_map(|moment| profile.samples.get(moment.sample as usize)) {
        threads.entry(sample.thread).or_default().extend(profile.stack(sample.stack));
    }
    threads.into_values().collect()
}

struct Replay {
    /// In the order of [`HITS`].
    hits: [f64; 6],
    addresses: f64,
}

/// Looks all addresses up as the threads did.
fn replay(maps: &[u8], threads: &[Vec<u64>]) -> Result<Replay, Failure> {
    let code = RangeMap::<usize>::new();
    // As walks have them: one range for the pieces of an object, into which switched keys divide
    // its code.
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut last_file = None;
    for line in parse(maps).map_while(Result::ok).filter(|line| line.perms.contains(Perms::EXECUTE)) {
        match ranges.last_mut().filter(|last| last.end == line.start && last_file == line.file) {
            Some(last) => last.end = line.last + 1,
            None => ranges.push(line.start..line.last + 1),
        }
        last_file = line.file;
    }
    code.update(|edit| {
        (0..).zip(&ranges).try_for_each(|(n, range)| edit.insert(range.clone(), n, Overlap::Replace))
    })?;
    let (mut asked, mut hits) = ([0_u64; 6], [0_u64; 6]);
    for addresses in threads {
        let [all, missed] = [Cache::new(), Cache::new()];
        let rules = ThreadCache::new();
        let (mut last_range, mut last_address, mut met) = (None, 0, BTreeSet::new());
        for &address in addresses {
            let range = code.find_cached(&all, address)?.map(|found| found.value);
            hits[1] += u64::from(range.is_some() && range == last_range);
            let has_rule = rules.meet(address);
            if !has_rule {
                code.find_cached(&missed, address)?;
                asked[2] += 1;
            }
            hits[3] += u64::from(has_rule);
            hits[4] += u64::from(address == last_address);
            if !met.insert(address) {
                asked[5] += 1;
                hits[5] += u64::from(has_rule);
            }
            (last_range, last_address) = (range, address);
        }
        for way in [0, 1, 3, 4] {
            asked[way] += addresses.len() as u64;
        }
        hits[0] += all.stats().hits;
        hits[2] += missed.stats().hits;
    }
    if asked[0] == 0 {
        return Err(Failure::from("the profile has no stacks"));
    }
    let percent = |way: usize| 100.0 * hits[way] as f64 / asked[way].max(1) as f64;
    Ok(Replay { hits: [0, 1, 2, 3, 4, 5].map(percent), addresses: asked[0] as f64 })
}

/// The bytes of tables that have learned the functions of these addresses, in percent of all that
/// could be learned, and the CPU time to read them.
fn learned(pid: u32, maps: &[u8], addresses: &BTreeSet<u64>) -> Result<[f64; 2], Failure> {
    let mut tables = ProcessTables::of(pid)?;
    let began = thread_cpu_ns();
    for &address in addresses {
        tables.tables().code(address);
    }
    let ms = (thread_cpu_ns() - began) as f64 / 1e6;
    let all: u64 = eh_frame::sizes(maps).values().sum();
    Ok([100.0 * tables.tables().size() as f64 / all.max(1) as f64, ms])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_memory_answers_what_it_has() {
        let maps = b"1000-1018 r-xp 00000000 fe:01 7 /a\n1018-2000 r-xp 00000018 fe:01 7 /a\n\
            3000-4000 r-xp 00000000 fe:01 8 /b\n";
        let stack = [0x1010, 0x1020, 0x1020, 0x3010];
        let again = [stack, stack].concat();
        let Replay { hits, addresses } = replay(maps, &[again]).unwrap();
        assert_eq!(addresses as u32, 8);
        // Two ranges, and three rules, are new once; the slot changes between ranges.
        assert_eq!(hits.map(|percent| percent as u32), [75, 50, 33, 62, 25, 100]);
    }
}
