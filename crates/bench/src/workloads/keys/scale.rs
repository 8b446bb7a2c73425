//! How the time of a batch grows with its sites.
//!
//! Each site is of a key of its own, the most that a batch can have to do for it.

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
mod object;

use super::{Settings, goal};
use crate::report::{Row, find};
use crate::runner::{Case, Spec};

/// Sites of a batch.
const SIZES: [usize; 3] = [1_000, 10_000, 100_000];

/// What the names of the rows end in.
const FLIP: &str = "";
const SHUFFLED: &str = "/shuffled";
const INT3: &str = "/int3";
const INT3_AT_ONCE: &str = "/int3-one-queue";
const VARIANTS: [&str; 4] = [FLIP, SHUFFLED, INT3, INT3_AT_ONCE];

/// What the names of the rows that compare begin with.
const RATIO: &str = "scale-ratio";

pub(super) const NOTE: &str = "scale rows: wall time of switching that many sites in one batch (building the batch \
    included), half the batches on, half off, while another thread runs the sites; generated code, sites 64 bytes \
    apart, each of a key of its own, keys in the order of their sites and named in that order, for …/shuffled in \
    none; by flip, by int3 with the kernel's queue of 256 sites, and by int3 with a queue that takes all";

/// The cases. They load an object that stays, so they come last.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    live::cases(settings).unwrap_or_else(|reason| {
        let specs = SIZES.iter().flat_map(|&size| VARIANTS.map(|variant| spec(size, variant)));
        vec![Case::unavailable(specs.collect(), reason)]
    })
}

fn spec(size: usize, variant: &str) -> Spec {
    Spec::new(format!("scale/{size}{variant}"), "us")
        .with("per", "batch")
        .with("sites", size)
        .with("keys", size)
        .with("clock", "wall time")
}

/// How far flip is ahead, at every size.
pub(super) fn compare(rows: &[Row]) -> Vec<Row> {
    let of = |size: usize, variant: &str| find(rows, &format!("scale/{size}{variant}"));
    SIZES
        .iter()
        .flat_map(|&size| {
            [INT3, INT3_AT_ONCE].map(|variant| {
                Row::times(&format!("{RATIO}/{size}{variant}"), &of(size, variant), &of(size, FLIP))
            })
        })
        .collect()
}

/// What was asked of large batches.
pub(super) fn goals(rows: &[Row], computed: &[Row]) -> Vec<String> {
    let most = SIZES[SIZES.len() - 1];
    let largest = find(rows, &format!("scale/{most}"));
    let in_time = goal(&format!("{most} sites in one batch in at most 10 ms"), &largest, |x| x <= 10_000.0);
    let ratios = computed.iter().filter(|row| row.name.starts_with(RATIO));
    let ahead = ratios.map(|row| goal("flip faster than batched int3", row, |x| x > 1.0));
    std::iter::once(in_time).chain(ahead).collect()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback)))]
mod live {
    use std::num::NonZero;

    use dormouse::keys::{Batch, Key, Protocol};

    use super::object::{self, Sites};
    use super::{Case, INT3, INT3_AT_ONCE, SHUFFLED, SIZES, Settings, VARIANTS, spec};
    use crate::affinity::Halves;
    use crate::clocks::wall;
    use crate::runner::{Failure, SplitMix64};
    use crate::workloads::keys::neighbour::Neighbour;

    pub(super) fn cases(settings: &Settings) -> Result<Vec<Case<'static>>, String> {
        let halves = Halves::of_this_thread();
        let mut cases = Vec::new();
        for sites in object::load(&SIZES)? {
            for variant in VARIANTS {
                cases.push(case(&sites, variant, settings.seed, halves.clone()));
            }
        }
        Ok(cases)
    }

    fn case(sites: &Sites, variant: &str, seed: u64, halves: Halves) -> Case<'static> {
        let (sites, size) = (sites.clone(), sites.keys.len());
        let protocol = match (variant, NonZero::new(size)) {
            (INT3, _) => Protocol::INT3,
            (INT3_AT_ONCE, Some(capacity)) => Protocol::Int3 { capacity },
            _ => Protocol::Flip,
        };
        let mut order: Vec<usize> = (0..size).collect();
        if variant == SHUFFLED {
            SplitMix64(seed).shuffle(&mut order);
        }
        let keys: Vec<_> = order.into_iter().map(|at| sites.keys[at].key()).collect();
        // As many as take about as long, on and off.
        let batches = (20_000 / size).max(2);
        Case::new(vec![spec(size, variant).with("batches", batches)], move || {
            let beside = sites.clone();
            let neighbour = Neighbour::start(&halves, move || beside.run())?;
            // Where every row begins, however the one before has ended.
            Batch::new().protocol(Protocol::Flip).disable_all(keys.iter().copied()).apply()?;
            let switched = |number| switch(&sites, &keys, protocol, number % 2 == 0);
            let took = halves.on_first(|| (0..batches).map(switched).sum::<Result<f64, Failure>>())??;
            drop(neighbour);
            Ok(vec![took / batches as f64])
        })
    }

    /// Microseconds that it takes to switch all sites.
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
            Err(Failure::Wrong(format!("{written} sites were written; {seen} were on, not {expected}")))
        }
    }

    #[cfg(test)]
    mod tests {
        use dormouse::keys::StaticKey;

        use super::*;
        use crate::workloads::keys::child::in_child;

        #[test]
        fn a_generated_object_is_switched_by_either_protocol() {
            let name = concat!(
                "workloads::keys::scale::live::tests::",
                "a_generated_object_is_switched_by_either_protocol"
            );
            in_child(name, || match object::load(&[1, 300]) {
                Err(reason) => eprintln!("skipped: {reason}"),
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
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(dormouse_fallback))))]
mod live {
    use super::{Case, Settings};

    pub(super) fn cases(_: &Settings) -> Result<Vec<Case<'static>>, String> {
        Err(super::super::update::NOT_PATCHED.to_owned())
    }
}
