//! Batches over the sites of a generated object, and look-ups of their keys.

use std::num::NonZero;

use dormouse::keys::{Batch, Key, Lease, Protocol, Selector, StaticKey, try_list};

use super::object::Sites;
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::clocks::wall;
use crate::neighbour::Neighbour;
use crate::row::Spec;
use crate::runner::{Failure, SplitMix64};

/// How a batch switches its sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Flip,
    /// Keys in no order.
    Shuffled,
    Int3,
    /// With a queue that holds all sites.
    Int3AtOnce,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Flip, Self::Shuffled, Self::Int3, Self::Int3AtOnce];
}

/// Adds a row of batches over all of `sites`.
pub(super) fn row(bench: &mut Bench, spec: Spec, sites: &Sites, way: Way) {
    let (sites, size) = (sites.clone(), sites.keys.len());
    let protocol = match (way, NonZero::new(size)) {
        (Way::Int3, _) => Protocol::INT3,
        (Way::Int3AtOnce, Some(capacity)) => Protocol::Int3 { capacity },
        _ => Protocol::Flip,
    };
    let mut order: Vec<usize> = (0..size).collect();
    if way == Way::Shuffled {
        SplitMix64(bench.seed()).shuffle(&mut order);
    }
    let keys: Vec<_> = order.into_iter().map(|at| sites.keys[at].key()).collect();
    let halves = Halves::of_this_thread();
    // As many as take about as long, on and off.
    let batches = (20_000 / size).max(2);
    bench.sample(spec.with("batches", batches), move || {
        let beside = sites.clone();
        let neighbour = Neighbour::start(&halves, move || beside.run())?;
        // The state in which every row begins, however the one before has ended.
        Batch::new().protocol(Protocol::Flip).disable_all(keys.iter().copied()).apply()?;
        let switched = |number| switch(&sites, &keys, protocol, number % 2 == 0);
        let took = halves.on_first(|| (0..batches).map(switched).sum::<Result<f64, Failure>>())??;
        drop(neighbour);
        Ok(took / batches as f64)
    });
}

/// Microseconds that switching all sites takes.
fn switch(sites: &Sites, keys: &[&'static Key], protocol: Protocol, on: bool) -> Result<f64, Failure> {
    let (took, report) = wall(|| {
        let (batch, keys) = (Batch::new().protocol(protocol), keys.iter().copied());
        if on { batch.enable_all(keys) } else { batch.disable_all(keys) }.apply()
    });
    let written = report?.sites;
    let (seen, expected) = (sites.run(), if on { keys.len() } else { 0 });
    if written == keys.len() && seen == expected {
        Ok(took.as_secs_f64() * 1e6)
    } else {
        Err(Failure::wrong(format!("{written} sites were written; {seen} were on, not {expected}")))
    }
}

/// Microseconds that finding all keys takes, by a listing, a selector or a lease.
pub(super) fn look_up(keys: &'static [StaticKey<false>], what: &str) -> Result<f64, Failure> {
    let all = || keys.iter().map(StaticKey::key);
    let glob = Selector::parse(keys[0].name())?;
    // The lease finds all keys on, so that it switches nothing.
    Batch::new().enable_all(all().filter(|_| what == "keep")).apply()?;
    let (took, found) = wall(|| match what {
        "list" => try_list(|used| used.key.name() == keys[0].name())
            .map(|found| found.into_iter().filter(|&is| is).count()),
        "select" => glob.try_keys().map(|found| found.len()),
        _ => Lease::of(all()).map(|lease| lease.keys().len()),
    });
    Batch::new().disable_all(all()).apply()?;
    match found? {
        found if found == keys.len() => Ok(took.as_secs_f64() * 1e6),
        found => Err(Failure::wrong(format!("{found} keys were found of {}", keys.len()))),
    }
}

#[cfg(test)]
mod tests {
    use dormouse_testkit::{in_child, skip};

    use super::super::object;
    use super::*;

    #[test]
    fn a_generated_object_is_switched_by_either_protocol() {
        in_child(|| match object::load(&[1, 300]) {
            Err(reason) => skip(reason),
            Ok(groups) => {
                for sites in groups {
                    let keys: Vec<_> = sites.keys.iter().map(StaticKey::key).collect();
                    for protocol in [Protocol::Flip, Protocol::INT3] {
                        switch(&sites, &keys, protocol, true).unwrap();
                        switch(&sites, &keys, protocol, false).unwrap();
                    }
                }
            }
        });
    }
}
