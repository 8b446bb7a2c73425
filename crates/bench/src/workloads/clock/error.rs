//! How far a tier's clock is from the kernel's.
//!
//! The kernel is asked right before the clock is read and right after, so the truth at the moment of the
//! read lies between the two answers. In between samples the clock is read a random number of times, which
//! is what it does in life and what brings epochs of all ages.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

use dormouse::clock::{Tier, thread_cpu_ns as ours};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::{QUICK, only};
use crate::clocks::thread_cpu_ns as kernels;
use crate::runner::{Case, Failure, Spec};
use crate::workloads::Settings;

/// Idle, or beside a thread that spins on the same processor.
pub(super) const LOADS: [&str; 2] = ["idle", "competitor"];

const PERCENTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Reads between two samples, at most.
const READS: u64 = 400;

/// The cases: each fills its four rows at once.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let samples = if settings.quick { 2_000 } else { 10_000 };
    let mut cases = Vec::new();
    for tier in QUICK {
        for load in LOADS {
            let specs = PERCENTILES.map(|(percentile, _)| {
                Spec::new(format!("error/{tier}/{load}/{percentile}"), "ns").with("samples", samples)
            });
            cases.push(Case::new(specs.into(), move || {
                let mut errors = beside(load, || sample(tier, samples))?;
                errors.sort_unstable();
                let last = errors.len().saturating_sub(1);
                Ok(PERCENTILES.map(|(_, part)| errors[(part * last as f64).ceil() as usize] as f64).into())
            }));
        }
    }
    cases
}

/// Runs `work` on one processor, beside a competitor if that is the load.
fn beside<T>(load: &str, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let allowed = sched_getaffinity(None)?;
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here)?;
    let stop = AtomicBool::new(load == LOADS[0]);
    let result = thread::scope(|scope| {
        // It inherits our one processor.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let result = work();
        stop.store(true, Ordering::Relaxed);
        result
    });
    sched_setaffinity(None, &allowed)?;
    result
}

/// The errors of so many reads, in nanoseconds.
fn sample(tier: Tier, samples: usize) -> Result<Vec<u64>, Failure> {
    only(tier)?;
    let narrow = 3 * (0..100).map(|_| kernels().abs_diff(kernels())).min().unwrap_or(0).max(500);
    let mut errors = Vec::with_capacity(samples);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    // Samples that tell nothing are few.
    for _ in 0..2 * samples {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for _ in 0..(random >> 32) % READS {
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

/// How far `time` is from the truth between `least` and `most`; none where they are too far apart to say.
pub(in crate::workloads) fn error(least: u64, time: u64, most: u64, narrow: u64) -> Option<u64> {
    if most - least <= narrow {
        return Some(time.abs_diff(least.midpoint(most)));
    }
    let outside = least.saturating_sub(time).max(time.saturating_sub(most));
    (outside > 0).then_some(outside)
}

/// Ticks of a hundredth of a second that a hypervisor has taken from this machine's processors; none where
/// the kernel does not say.
pub(super) fn stolen_ticks() -> Option<u64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()
}

/// What was stolen since.
pub(super) fn steal_note(before: Option<u64>) -> String {
    match before.zip(stolen_ticks()) {
        Some((before, now)) => format!(
            "in this run a hypervisor took {} ms from all processors, by the kernel's count; what is stolen inside an epoch, and interrupts \
             where the kernel leaves them out, is what the clock cannot see",
            now.saturating_sub(before) * 10
        ),
        None => "/proc/stat does not say what was stolen".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_from_a_narrow_bracket_or_from_outside_of_a_wide_one() {
        assert_eq!(error(1000, 1200, 1600, 1000), Some(100));
        assert_eq!(error(1000, 1200, 9000, 1000), None);
        assert_eq!(error(1000, 700, 9000, 1000), Some(300));
        assert_eq!(error(1000, 9500, 9000, 1000), Some(500));
    }

    #[test]
    fn a_sample_has_an_error_for_each_read() {
        let _alone = crate::workloads::clock::FORCING.lock();
        for load in LOADS {
            match beside(load, || sample(Tier::Rseq, 50)) {
                Ok(errors) => assert_eq!(errors.len(), 50),
                Err(Failure::Unavailable(reason)) => println!("1 skipped: {reason}"),
                Err(wrong) => panic!("{wrong:?}"),
            }
        }
    }
}
