//! `error/TIER/LOAD/…`: how far a tier's clock is from the kernel's.
//!
//! The kernel is asked right before the clock is read and right after, so the truth at the moment
//! of the read lies between the two answers. Between samples the clock is read a random number of
//! times, as a service reads it; that brings epochs of all ages.

use std::fs;
use std::hint::{black_box, spin_loop};

use dormouse::clock::{Tier, thread_cpu_ns as ours};
use dormouse_statistics::quantiles;

use super::tiers::{QUICK, only};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::clocks::{error, thread_cpu_ns as kernels};
use crate::neighbour::beside;
use crate::row::Spec;
use crate::runner::{Failure, SplitMix64};

/// Idle, or beside a thread that spins on the same processor.
pub(super) const LOADS: [&str; 2] = ["idle", "competitor"];

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Reads between two samples, at most.
const READS: u64 = 400;

/// Adds the rows: a sample fills all four of a tier and load.
pub(super) fn rows(bench: &mut Bench) {
    let samples = bench.pick(10_000, 2_000);
    for tier in QUICK {
        for (competitors, load) in LOADS.into_iter().enumerate() {
            let specs = QUANTILES
                .map(|(of, _)| Spec::new(format!("error/{tier}/{load}/{of}"), "ns").with("samples", samples));
            let halves = Halves::of_this_thread();
            bench.sample(specs, move || {
                let errors =
                    halves.on_last(|| beside(competitors, spin_loop, || sample(tier, samples)))??;
                Ok(quantiles(errors, QUANTILES.map(|(_, part)| part)))
            });
        }
    }
}

/// The errors of as many reads, in nanoseconds.
fn sample(tier: Tier, samples: usize) -> Result<Vec<u64>, Failure> {
    only(tier)?;
    let narrow = 3 * (0..100).map(|_| kernels().abs_diff(kernels())).min().unwrap_or(0).max(500);
    let mut errors = Vec::with_capacity(samples);
    let mut random = SplitMix64(1);
    // Only few samples show nothing.
    for _ in 0..2 * samples {
        for _ in 0..random.next() % READS {
            black_box(ours());
        }
        let least = kernels();
        let time = ours();
        let most = kernels();
        errors.extend(error(least, time, most, narrow));
        if errors.len() == samples {
            return Ok(errors);
        }
    }
    Err(Failure::from("the kernel's answers were too far apart to tell anything"))
}

/// Ticks of a hundredth of a second that a hypervisor has taken from this machine's processors;
/// `None` if the kernel does not report them.
pub(super) fn stolen_ticks() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()
}

/// The time that was stolen since `before`, as a note.
pub(super) fn steal_note(before: Option<u64>) -> String {
    match before.zip(stolen_ticks()) {
        Some((before, now)) => format!(
            "in this run a hypervisor took {} ms from all processors, by the kernel's count; what is stolen \
             inside an epoch, and interrupts where the kernel leaves them out, is what the clock cannot see",
            now.saturating_sub(before) * 10
        ),
        None => "/proc/stat does not say what was stolen".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::clock::tiers::FORCING;

    #[test]
    fn a_sample_has_an_error_for_each_read() {
        let _alone = FORCING.lock();
        for competitors in 0..2 {
            match beside(competitors, spin_loop, || sample(Tier::Rseq, 50)) {
                Ok(errors) => assert_eq!(errors.len(), 50),
                Err(Failure::Unavailable(reason)) => println!("1 skipped: {reason}"),
                Err(wrong) => panic!("{wrong:?}"),
            }
        }
    }
}
