//! `contended/…`: two threads look addresses up while a third changes the map a thousand times a second.
//!
//! Beside it one thread alone, and two without a writer. Each reader is timed by its CPU time, so that what else runs on
//! the machine takes no part; so does not, to the lock's advantage, what a thread sleeps for a lock.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use dormouse_maps::{Cache, Overlap, RangeMap};

use super::lookup::{look_up_cached, range_map};
use super::peers::{Pattern, Place, Sorted, faults, places};
use super::replay::{Fault, each};
use crate::affinity::Halves;
use crate::clocks::cpu;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec};
use crate::workloads::{Measured, Settings, goal};

/// Mappings.
const SIZE: usize = 1_000;
/// Between two changes.
const PERIOD: Duration = Duration::from_millis(1);

pub(super) const NOTE: &str = "contended: CPU time of a thread for a look-up in 1,000 mappings (hot90), mean of the readers; two of them and a \
     writer that replaces a mapping every millisecond, or as the name says. contended-updates: of the writer, a second";

/// Looks addresses up, one after the other.
type LookUp<'a> = Box<dyn FnMut(&[Fault]) -> u64 + 'a>;

/// A map that threads share.
trait Shared: Sync {
    /// As one thread sees it.
    fn reader(&self) -> LookUp<'_>;
    /// Gives a mapping another value.
    fn replace(&self, place: &Place, value: u64);
}

/// Who is there.
#[derive(Debug, Clone, Copy)]
enum Crowd {
    One,
    Two,
    TwoAndWriter,
}

impl Crowd {
    const ALL: [Self; 3] = [Self::One, Self::Two, Self::TwoAndWriter];

    /// What its rows bear after the name of the peer.
    fn suffix(self) -> &'static str {
        match self {
            Self::One => "/one",
            Self::Two => "/two",
            Self::TwoAndWriter => "",
        }
    }
}

pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let places: &'static [Place] = places(SIZE).leak();
    let target = settings.target() * 10;
    let mut cases = Vec::new();
    for crowd in Crowd::ALL {
        cases.push(case("rwlock-btreemap", crowd, target, places, || {
            RwLock::new(
                places
                    .iter()
                    .map(|place| (place.range.start, (place.last(), place.value)))
                    .collect::<BTreeMap<_, _>>(),
            )
        }));
        cases.push(case("arc-swap", crowd, target, places, || ArcSwap::from_pointee(Sorted::of(places))));
        cases.push(case("dormouse", crowd, target, places, || range_map(places)));
    }
    cases
}

fn case<S: Shared + 'static>(
    peer: &str,
    crowd: Crowd,
    target: Duration,
    places: &'static [Place],
    new: impl Fn() -> S + 'static,
) -> Case<'static> {
    let suffix = crowd.suffix();
    let mut specs = vec![
        Spec::new(format!("contended/{peer}{suffix}"), "ns")
            .with("per", "look-up")
            .with("clock", "thread CPU time"),
    ];
    if matches!(crowd, Crowd::TwoAndWriter) {
        specs.push(Spec::new(format!("contended-updates/{peer}"), "1/s"));
    }
    let faults = faults(Pattern::Hot90, places);
    Case::new(specs, move || {
        let map = new();
        let (each, updates) = crowded(crowd, &map, &faults, &places[SIZE / 2], target)?;
        Ok([each, updates][..if matches!(crowd, Crowd::TwoAndWriter) { 2 } else { 1 }].to_vec())
    })
}

/// Nanoseconds a look-up, and updates a second.
fn crowded(
    crowd: Crowd,
    map: &dyn Shared,
    faults: &[Fault],
    place: &Place,
    target: Duration,
) -> Result<(f64, f64), Failure> {
    let halves = Halves::of_this_thread();
    let done = AtomicBool::new(false);
    let updates = AtomicU64::new(0);
    let reader = |first: bool| {
        let (halves, done) = (&halves, &done);
        let look = move || {
            let mut look_up = map.reader();
            let (mut took, mut lookups) = (Duration::ZERO, 0);
            while !done.load(Ordering::Relaxed) {
                let (time, answers) = cpu(|| look_up(faults));
                black_box(answers);
                took += time;
                lookups += faults.len();
            }
            took.as_nanos() as f64 / lookups as f64
        };
        move || if first { halves.on_first(look) } else { halves.on_second(look) }
    };
    let begin = Instant::now();
    let readers: Vec<Result<f64, Failure>> = thread::scope(|scope| {
        let mut readers = vec![scope.spawn(reader(true))];
        if !matches!(crowd, Crowd::One) {
            readers.push(scope.spawn(reader(false)));
        }
        let mut next = begin;
        while begin.elapsed() < target {
            next += PERIOD;
            thread::sleep(next.saturating_duration_since(Instant::now()));
            if matches!(crowd, Crowd::TwoAndWriter) {
                map.replace(place, updates.fetch_add(1, Ordering::Relaxed));
            }
        }
        done.store(true, Ordering::Relaxed);
        let join = |reader: thread::ScopedJoinHandle<'_, _>| {
            reader.join().unwrap_or_else(|_| Err(Failure::Wrong("a reader panicked".to_owned())))
        };
        readers.into_iter().map(join).collect()
    });
    let rate = updates.into_inner() as f64 / begin.elapsed().as_secs_f64();
    let count = readers.len() as f64;
    let sum = readers.into_iter().sum::<Result<f64, Failure>>()?;
    Ok((sum / count, rate))
}

impl Shared for RwLock<BTreeMap<u64, (u64, u64)>> {
    fn reader(&self) -> LookUp<'_> {
        Box::new(|faults| {
            each(
                faults,
                0,
                |_| (),
                |(), addr| {
                    let map = self.read().unwrap_or_else(PoisonError::into_inner);
                    let (_, &(last, value)) = map.range(..=addr).next_back()?;
                    (addr <= last).then_some(value)
                },
            )
        })
    }

    fn replace(&self, place: &Place, value: u64) {
        let mut map = self.write().unwrap_or_else(PoisonError::into_inner);
        map.insert(place.range.start, (place.last(), value));
    }
}

impl Shared for ArcSwap<Sorted> {
    fn reader(&self) -> LookUp<'_> {
        Box::new(|faults| each(faults, 0, |_| (), |(), addr| self.load().find(addr)))
    }

    fn replace(&self, place: &Place, value: u64) {
        self.rcu(|map| {
            let mut map = Sorted::clone(map);
            map.set(place.range.start, value);
            map
        });
    }
}

impl Shared for RangeMap<u64> {
    fn reader(&self) -> LookUp<'_> {
        let cache = Box::new(Cache::new());
        Box::new(move |faults| look_up_cached(self, &cache, faults, 0))
    }

    fn replace(&self, place: &Place, value: u64) {
        // It is there and nothing is in the way, so there is nothing to refuse.
        let _ = self.update(|edit| edit.insert(place.range.clone(), value, Overlap::Replace));
    }
}

/// Rows computed from the measured ones, and what to say of them.
pub(super) fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let of = |peer: &str, crowd: Crowd| find(rows, &format!("contended/{peer}{}", crowd.suffix()));
    let mut computed = Vec::new();
    for peer in ["rwlock-btreemap", "arc-swap", "dormouse"] {
        let [one, two, crowded] = Crowd::ALL.map(|crowd| of(peer, crowd));
        computed.push(Row::times(&format!("contended-two-to-one/{peer}"), &two, &one));
        computed.push(Row::times(&format!("contended-writer-to-none/{peer}"), &crowded, &two));
    }
    let [.., two, writer] = &computed[..] else { return };
    measured.notes.push(goal("each of two readers as fast as one, within 5 %", two, |x| x <= 1.05));
    measured.notes.push(goal("a writer at 1 kHz costs readers at most 20 %", writer, |x| x <= 1.2));
    measured.rows.append(&mut computed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_is_found_by_those_who_read() {
        let places = places(8);
        let tree: BTreeMap<_, _> =
            places.iter().map(|place| (place.range.start, (place.last(), place.value))).collect();
        let maps: [Box<dyn Shared>; 3] = [
            Box::new(RwLock::new(tree)),
            Box::new(ArcSwap::from_pointee(Sorted::of(&places))),
            Box::new(range_map(&places)),
        ];
        for map in maps {
            let mut look_up = map.reader();
            let first = |addr| [(0, addr)];
            assert_eq!(look_up(&first(places[3].range.start)), 3);
            map.replace(&places[3], 77);
            assert_eq!(look_up(&first(places[3].last())), 77);
            assert_eq!(look_up(&first(places[4].range.start)), 4);
        }
    }
}
