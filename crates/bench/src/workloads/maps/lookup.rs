//! `lookup/…`: what it costs one thread to look an address up in a map of so many mappings, beside what else there is; and
//! `update/…`, what a change of it costs.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use arc_swap::ArcSwap;
use dormouse_maps::{Cache, Overlap, RangeMap};
use rangemap::RangeInclusiveMap;

use super::peers::{Pattern, Place, Sorted, faults, places};
use super::replay::{Fault, each};
use super::schemes::{Scheme, Vmacache};
use crate::clocks::cpu;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec};
use crate::workloads::{Measured, Settings, goal};

/// Mappings.
const SIZES: [usize; 3] = [32, 1_000, 10_000];

/// Looks addresses up, one after the other, and goes on from what came of those before.
type LookUp = Box<dyn FnMut(&[Fault], u64) -> u64>;

/// Makes a map of these mappings.
type New = fn(&[Place]) -> LookUp;

/// Peers, and ours last.
const PEERS: [(&str, New); 7] = [
    ("sorted", sorted),
    ("btreemap", btreemap),
    ("rangemap", rangemap),
    ("vmacache", vmacache),
    ("arc-swap", arc_swap),
    ("arc-swap-cache", arc_swap_cache),
    ("dormouse", dormouse),
];

pub(super) const NOTES: &[&str] = &[
    "lookup: CPU time of one thread that looks 32,768 addresses up again and again, each of which lies in a mapping. run: it stays \
     in a mapping for 33 look-ups on average; hot90: nine of ten in four mappings, in no order; uniform: anywhere. \
     sorted, btreemap and rangemap can be used by one thread alone, vmacache (over the tree of the replay) under a lock. arc-swap: a \
     sorted array behind ArcSwap::load; arc-swap-cache: behind arc_swap::Cache, which keeps the array that the thread last saw from \
     being freed as long as the thread does not look again",
    "update: an update that replaces one mapping, in a map that nobody reads",
];

pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let mut cases = Vec::new();
    for size in SIZES {
        let places = places(size);
        for pattern in Pattern::ALL {
            let faults = faults(pattern, &places);
            let right = Sorted::of(&places).look_up(&faults, 0);
            for (peer, new) in PEERS {
                let spec = Spec::new(format!("lookup/{}/{size}/{peer}", pattern.name()), "ns")
                    .with("per", "look-up")
                    .with("clock", "thread CPU time");
                cases.push(case(spec, settings, faults.clone(), right, new(&places)));
            }
        }
        cases.push(update(settings, size, &places));
    }
    cases
}

/// A row of a loop over `faults`, which comes to `right` if all is found.
fn case(
    spec: Spec,
    settings: &Settings,
    faults: Vec<Fault>,
    right: u64,
    mut look_up: LookUp,
) -> Case<'static> {
    if look_up(&faults, 0) != right {
        let wrong =
            || Err(Failure::Wrong("an address was said to lie in another mapping than it did".to_owned()));
        return Case::new(vec![spec], wrong);
    }
    Case::per_iteration(spec, settings.target(), move |lookups| {
        let (took, answers) = cpu(|| {
            let (mut left, mut answers) = (lookups as usize, 0);
            while left > 0 {
                let part = &faults[..left.min(faults.len())];
                answers = look_up(part, answers);
                left -= part.len();
            }
            answers
        });
        black_box(answers);
        Ok(took)
    })
}

fn sorted(places: &[Place]) -> LookUp {
    let map = Sorted::of(places);
    Box::new(move |faults, answers| map.look_up(faults, answers))
}

fn btreemap(places: &[Place]) -> LookUp {
    let map: BTreeMap<u64, (u64, u64)> =
        places.iter().map(|place| (place.range.start, (place.last(), place.value))).collect();
    Box::new(move |faults, answers| {
        each(
            faults,
            answers,
            |_| (),
            |(), addr| {
                let (_, &(last, value)) = map.range(..=addr).next_back()?;
                (addr <= last).then_some(value)
            },
        )
    })
}

fn rangemap(places: &[Place]) -> LookUp {
    let map: RangeInclusiveMap<u64, u64> =
        places.iter().map(|place| (place.range.start..=place.last(), place.value)).collect();
    Box::new(move |faults, answers| each(faults, answers, |_| (), |(), addr| map.get(&addr).copied()))
}

fn vmacache(places: &[Place]) -> LookUp {
    let mut map = Vmacache::<false>::new();
    map.process(None);
    map.thread(0);
    for place in places {
        map.map(0, place.range.start, place.last(), place.value);
    }
    Box::new(move |faults, answers| map.look_up(faults, answers))
}

fn arc_swap(places: &[Place]) -> LookUp {
    let map = ArcSwap::from_pointee(Sorted::of(places));
    Box::new(move |faults, answers| each(faults, answers, |_| (), |(), addr| map.load().find(addr)))
}

fn arc_swap_cache(places: &[Place]) -> LookUp {
    let map = std::sync::Arc::new(ArcSwap::from_pointee(Sorted::of(places)));
    let mut cache = arc_swap::Cache::new(map);
    Box::new(move |faults, answers| each(faults, answers, |_| (), |(), addr| cache.load().find(addr)))
}

fn dormouse(places: &[Place]) -> LookUp {
    let map = range_map(places);
    let cache = Box::new(Cache::new());
    // Of its own, as the peers' are, and not `look_up_cached`: a loop that calls a search is another loop.
    Box::new(move |faults, answers| {
        let find = |(), addr| map.find_cached(&cache, addr).ok().flatten().map(|mapping| mapping.value);
        each(faults, answers, |_| (), find)
    })
}

/// All of them by ours.
#[inline]
pub(super) fn look_up_cached(map: &RangeMap<u64>, cache: &Cache<u64>, faults: &[Fault], answers: u64) -> u64 {
    let find = |(), addr| map.find_cached(cache, addr).ok().flatten().map(|mapping| mapping.value);
    each(faults, answers, |_| (), find)
}

/// Ours, of these mappings.
pub(super) fn range_map(places: &[Place]) -> RangeMap<u64> {
    let map = RangeMap::new();
    // What is refused makes answers wrong, and those are compared.
    let _ = map.update(|edit| {
        places.iter().try_for_each(|place| edit.insert(place.range.clone(), place.value, Overlap::Reject))
    });
    map
}

fn update(settings: &Settings, size: usize, places: &[Place]) -> Case<'static> {
    let spec =
        Spec::new(format!("update/{size}"), "us").with("per", "update").with("clock", "thread CPU time");
    let map = range_map(places);
    let range = places[size / 2].range.clone();
    let target = settings.target();
    let mut value = 0;
    Case::new(vec![spec], move || {
        let (mut updates, mut took) = (0, Duration::ZERO);
        while took < target {
            let (time, result) = cpu(|| {
                (0..16).try_for_each(|_| {
                    value += 1;
                    map.update(|edit| edit.insert(range.clone(), value, Overlap::Replace))
                })
            });
            result?;
            updates += 16;
            took += time;
        }
        Ok(vec![took.as_secs_f64() * 1e6 / f64::from(updates)])
    })
}

/// Rows computed from the measured ones, and what to say of them.
pub(super) fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let row = |pattern: Pattern, size: usize, peer: &str| {
        find(rows, &format!("lookup/{}/{size}/{peer}", pattern.name()))
    };
    let (mut minus, mut over) = (Vec::new(), Vec::new());
    for size in SIZES {
        let run = row(Pattern::Run, size, "dormouse");
        measured.notes.push(goal("a look-up in a run at most 4 ns", &run, |x| x <= 4.0));
        let name = format!("lookup-minus-sorted/uniform/{size}");
        let uniform = row(Pattern::Uniform, size, "dormouse");
        let added = Row::minus(&name, "ns", &uniform, &row(Pattern::Uniform, size, "sorted"));
        measured.notes.push(goal("uniform at most 2 ns above sorted", &added, |x| x <= 2.0));
        minus.push(added);
        for pattern in Pattern::ALL {
            for peer in ["arc-swap", "arc-swap-cache"] {
                let name = format!("lookup-over-{peer}/{}/{size}", pattern.name());
                over.push(Row::times(&name, &row(pattern, size, "dormouse"), &row(pattern, size, peer)));
            }
        }
    }
    let worst = over
        .iter()
        .filter(|row| row.name.starts_with("lookup-over-arc-swap/"))
        .max_by(|a, b| a.median.unwrap_or(f64::MAX).total_cmp(&b.median.unwrap_or(f64::MAX)));
    if let Some(worst) = worst {
        let text = "nowhere slower than arc-swap by more than 10 %, and worst";
        measured.notes.push(goal(text, worst, |x| x <= 1.1));
    }
    measured.rows.append(&mut minus);
    measured.rows.append(&mut over);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_peers_give_the_same_answers() {
        let places = places(100);
        for pattern in Pattern::ALL {
            let faults = faults(pattern, &places);
            let right = Sorted::of(&places).look_up(&faults, 0);
            for (peer, new) in PEERS {
                let mut look_up = new(&places);
                // Once more, now that caches know something.
                assert_eq!([(); 2].map(|()| look_up(&faults, 0)), [right; 2], "{peer}");
            }
        }
    }
}
