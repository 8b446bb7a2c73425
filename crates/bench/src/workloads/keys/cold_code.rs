//! What a site costs that is itself in no cache: code that has not run for long, and all that it touches.
//!
//! The rows of [`super::cold`] leave the code hot, which favours neither side; but what has not run for long is
//! not hot either. Here each site is in a function of its own, on a cache line of its own, and the lines are
//! flushed before they are run once. The line of the code has to come from memory either way, and a site is on it.
//! A flag is on another.

use crate::report::{Row, find};
use crate::runner::{Case, Spec};
use crate::workloads::Settings;

/// The rows that are compared with `none`.
const PEERS: [&str; 2] = ["dormouse", "atomic"];

pub(super) const NOTE: &str = "cold rows: wall time of calling 32 functions once, divided by 32; each has a site, or \
    tests a flag, or does neither; the cache line of each function's code, and of its flag, was flushed just \
    before; a value is the mean of the middle half of the runs of a round; cold-added: X - none, what the site or \
    the flag adds to the code's own miss";

/// The cases.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    #[cfg(target_arch = "x86_64")]
    return flushed::cases(settings);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let specs = ["none", "dormouse", "atomic"].map(|name| spec(name, 0, 0)).into();
        vec![Case::unavailable(specs, "no instruction is known here that flushes a cache line")]
    }
}

/// What the site and the flag add.
pub(super) fn compare(rows: &[Row]) -> Vec<Row> {
    let none = find(rows, "cold/none");
    PEERS
        .iter()
        .map(|peer| {
            let row = find(rows, &format!("cold/{peer}"));
            Row::minus(&format!("cold-added/{peer}"), "ns", &row, &none)
        })
        .collect()
}

fn spec(name: &str, functions: usize, runs: usize) -> Spec {
    Spec::new(format!("cold/{name}"), "ns")
        .with("per", "function")
        .with("functions", functions)
        .with("runs", runs)
        .with("clock", "wall time")
}

#[cfg(target_arch = "x86_64")]
mod flushed {
    use std::arch::asm;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};
    use std::hint::black_box;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{Case, Settings, spec};
    use crate::clocks::wall;
    use crate::runner::{Failure, SplitMix64};
    use crate::stats::midmean;
    use crate::workloads::keys::sites::Flag;

    /// Returns whether its branch was taken.
    type Function = fn() -> u32;

    const LINE: usize = 64;

    /// For each key, functions with neither a site nor a flag, with the site, and with the flag: side by side, so that
    /// no row runs on other pages than the others. Each begins on a cache line of its own, because each is a section
    /// of its own, which takes the alignment of what is in it.
    macro_rules! functions {
        ($($key:ident $name:literal)+) => {
            dormouse::static_key! { $(static $key: $name = false;)+ }

            mod flags {
                use super::{AtomicBool, Flag};

                $(pub(super) static $key: Flag = Flag(AtomicBool::new(false));)+
            }

            static FLAGS: &[&Flag] = &[$(&flags::$key),+];
            static FUNCTIONS: &[[Function; 3]] = &[$([
                functions!(@ $key, false),
                functions!(@ $key, dormouse::unlikely!($key)),
                functions!(@ $key, flags::$key.0.load(Ordering::Relaxed)),
            ]),+];
        };
        (@ $key:ident, $on:expr) => {{
            #[inline(never)]
            fn function() -> u32 {
                // The name keeps equal functions from being merged.
                // SAFETY: nothing but padding.
                unsafe {
                    asm!(
                        concat!(".p2align 6 /* ", stringify!($key), " */"),
                        options(nomem, nostack, preserves_flags)
                    );
                };
                if $on { awake() } else { 0 }
            }
            function
        }};
    }

    functions! {
        K00 "bench.cold.00" K01 "bench.cold.01" K02 "bench.cold.02" K03 "bench.cold.03"
        K04 "bench.cold.04" K05 "bench.cold.05" K06 "bench.cold.06" K07 "bench.cold.07"
        K08 "bench.cold.08" K09 "bench.cold.09" K10 "bench.cold.10" K11 "bench.cold.11"
        K12 "bench.cold.12" K13 "bench.cold.13" K14 "bench.cold.14" K15 "bench.cold.15"
        K16 "bench.cold.16" K17 "bench.cold.17" K18 "bench.cold.18" K19 "bench.cold.19"
        K20 "bench.cold.20" K21 "bench.cold.21" K22 "bench.cold.22" K23 "bench.cold.23"
        K24 "bench.cold.24" K25 "bench.cold.25" K26 "bench.cold.26" K27 "bench.cold.27"
        K28 "bench.cold.28" K29 "bench.cold.29" K30 "bench.cold.30" K31 "bench.cold.31"
    }

    #[cold]
    #[inline(never)]
    fn awake() -> u32 {
        black_box(1)
    }

    pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
        for flag in FLAGS {
            // A store that the compiler cannot see through, lest it take the flag for a constant.
            flag.0.store(black_box(false), Ordering::Relaxed);
        }
        let runs = if settings.quick { 200 } else { 500 };
        // In an order that has nothing to do with where they lie, or the next line would be fetched with each.
        let mut order: Vec<usize> = (0..FLAGS.len()).collect();
        SplitMix64(settings.seed).shuffle(&mut order);
        let case = |(row, name): (usize, &str)| {
            let functions: Vec<Function> = order.iter().map(|&at| FUNCTIONS[at][row]).collect();
            Case::new(vec![spec(name, functions.len(), runs)], move || {
                if let Some(at) = functions.iter().position(|&f| !(f as usize).is_multiple_of(LINE)) {
                    return Err(Failure::Unavailable(format!(
                        "function {at} is not on a cache line of its own"
                    )));
                }
                let mut times = Vec::with_capacity(runs);
                for _ in 0..runs {
                    flush(&functions);
                    let (took, on) = wall(|| functions.iter().map(|function| function()).sum::<u32>());
                    if on != 0 {
                        return Err(Failure::Wrong(format!("{on} branches were taken that are off")));
                    }
                    times.push(took.as_nanos() as f64 / functions.len() as f64);
                }
                Ok(vec![midmean(&times).ok_or("no runs")?])
            })
        };
        ["none", "dormouse", "atomic"].into_iter().enumerate().map(case).collect()
    }

    /// Puts the functions and every flag out of the caches: the same work before each run.
    fn flush(functions: &[Function]) {
        for (&function, flag) in functions.iter().zip(FLAGS) {
            // SAFETY: every x86-64 processor has the instruction; it changes no memory.
            unsafe {
                _mm_clflush(function as *const u8);
                _mm_clflush(std::ptr::from_ref(*flag).cast());
            }
        }
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_mfence() };
    }
}
