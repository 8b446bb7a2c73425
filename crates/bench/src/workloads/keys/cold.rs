//! What a site costs whose key or flag is in no cache, in code that is.
//!
//! A load and a branch next to hot data cost nothing that a loop shows. A service has thousands of sites,
//! each run now and then, and a flag for each that has meanwhile left the caches. Here 56 of them are
//! flushed, then run once. The site of a static key touches no data: there is nothing to miss.

use super::SITES;
use crate::report::{Row, find};
use crate::runner::{Case, Spec};
use crate::workloads::Settings;

/// The rows that are compared with `none`.
pub(super) const PEERS: [&str; 2] = ["dormouse", "atomic"];

pub(super) const NOTE: &str = "off-cold rows: wall time of one run over 56 sites, each of another key (or \
    flag on a cache line of its own) that was flushed from the caches just before, divided by 56; the code \
    is hot; a value is the mean of the middle half of the runs of a round; none is a run over no sites: \
    the clock and the call";

/// The cases.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    #[cfg(target_arch = "x86_64")]
    return flushed::cases(settings);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let specs = ["none", "dormouse", "atomic"].map(|name| spec(name, 0)).into();
        vec![Case::unavailable(specs, "no instruction is known here that flushes a cache line")]
    }
}

/// What each of the sites adds to the run.
pub(super) fn compare(rows: &[Row]) -> Vec<Row> {
    let none = find(rows, "off-cold/none");
    PEERS
        .iter()
        .map(|peer| {
            let row = find(rows, &format!("off-cold/{peer}"));
            Row::minus(&format!("off-cold-added/{peer}"), "ns", &row, &none)
        })
        .collect()
}

fn spec(name: &str, runs: usize) -> Spec {
    Spec::new(format!("off-cold/{name}"), "ns")
        .with("per", "site")
        .with("sites", SITES)
        .with("runs", runs)
        .with("clock", "wall time")
}

#[cfg(target_arch = "x86_64")]
mod flushed {
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};
    use std::hint::black_box;
    use std::sync::atomic::Ordering;

    use super::{Case, SITES, Settings, spec};
    use crate::clocks::wall;
    use crate::stats::midmean;
    use crate::workloads::keys::sites::{FLAGS, KEYS, run_flags, run_sites};

    pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
        for flag in FLAGS {
            // A store that the compiler cannot see through, lest it take the flag for a constant.
            flag.0.store(black_box(false), Ordering::Relaxed);
        }
        let runs = if settings.quick { 200 } else { 500 };
        let case = |name: &str, run: fn() -> usize| {
            Case::new(vec![spec(name, runs)], move || {
                let mut times = Vec::with_capacity(runs);
                for _ in 0..runs {
                    flush();
                    let (took, on) = wall(run);
                    black_box(on);
                    times.push(took.as_nanos() as f64 / SITES as f64);
                }
                Ok(vec![midmean(&times).ok_or("no runs")?])
            })
        };
        vec![case("none", run_nothing), case("dormouse", run_sites), case("atomic", run_flags)]
    }

    #[inline(never)]
    fn run_nothing() -> usize {
        black_box(0)
    }

    /// Puts every key and every flag out of the caches: the same work before each run.
    fn flush() {
        for (key, flag) in KEYS.iter().zip(FLAGS) {
            // SAFETY: every x86-64 processor has the instruction; it changes no memory.
            unsafe {
                _mm_clflush(std::ptr::from_ref(key()).cast());
                _mm_clflush(std::ptr::from_ref(flag).cast());
            }
        }
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_mfence() };
    }
}
