//! `off-cold/…` and `cold/…`: the price of a site whose key or flag, or whose code, is in no cache.
//!
//! A load and a branch next to hot data cost nothing that a loop shows. A service has thousands of
//! sites, each run now and then, and a flag for each that has meanwhile left the caches; a static
//! key's site touches no data, so there is nothing to miss.
//!
//! - `off-cold`: the code is hot, the keys and flags of 56 sites were flushed just before.
//! - `cold`: each of 32 sites is in a function, on a cache line that nothing else shares, and those
//!   lines were flushed just before, as the flags were. The line of the code has to come from
//!   memory either way, and the site is on it; a flag is on another.

use std::arch::asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_statistics::midmean;

use super::sites::{self, Flag, KEYS, SITES, run_flags, run_sites};
use crate::bench::Bench;
use crate::clocks::wall;
use crate::row::Spec;
use crate::runner::{Failure, SplitMix64};

const LINE: usize = 64;

const NAMES: [&str; 3] = ["none", "dormouse", "atomic"];

/// Returns how many of its branches were taken.
type Function = fn() -> u32;

/// For each key, functions with neither a site nor a flag, with the site, and with the flag: side
/// by side, so that no row runs on other pages than the others. Each begins on a cache line that
/// nothing else shares, because each is a section, and a section has the alignment of its content.
macro_rules! functions {
    ($($key:ident $name:literal)+) => {
        dormouse::static_key! { $(static $key: $name = false;)+ }

        mod flags {
            use super::{AtomicBool, Flag};

            $(pub(super) static $key: Flag = Flag(AtomicBool::new(false));)+
        }

        static FLAGS: &[&Flag] = &[$(&flags::$key),+];
        static FUNCTIONS: &[[Function; NAMES.len()]] = &[$([
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

#[inline(never)]
fn run_nothing() -> usize {
    black_box(0)
}

pub(super) fn rows(bench: &mut Bench) {
    for flag in FLAGS.iter().copied().chain(sites::FLAGS) {
        // A store that the compiler cannot see through, lest it take the flag for a constant.
        flag.0.store(black_box(false), Ordering::Relaxed);
    }
    let data: Vec<_> = KEYS
        .iter()
        .zip(sites::FLAGS)
        .flat_map(|(key, flag)| [std::ptr::from_ref(key()).cast(), std::ptr::from_ref(flag).cast()])
        .collect();
    let runs: [fn() -> usize; NAMES.len()] = [run_nothing, run_sites, run_flags];
    for (name, run) in NAMES.into_iter().zip(runs) {
        let spec = Spec::new(format!("off-cold/{name}"), "ns").per("site").with("sites", SITES);
        row(bench, spec, SITES, data.clone(), run);
    }
    // In an order that has nothing to do with addresses, or the next line would be fetched with
    // each.
    let mut order: Vec<usize> = (0..FLAGS.len()).collect();
    SplitMix64(bench.seed()).shuffle(&mut order);
    for (column, name) in NAMES.into_iter().enumerate() {
        let functions: Vec<Function> = order.iter().map(|&at| FUNCTIONS[at][column]).collect();
        let count = functions.len();
        let spec = Spec::new(format!("cold/{name}"), "ns").per("function").with("functions", count);
        let apart = functions.iter().all(|&function| (function as usize).is_multiple_of(LINE));
        let apart = apart.then_some(()).ok_or("a function is not on a cache line of its own");
        if bench.need(spec.clone(), apart).is_some() {
            let code = functions.iter().map(|&function| function as *const u8);
            let flags = FLAGS.iter().map(|&flag| std::ptr::from_ref(flag).cast());
            row(bench, spec, count, code.chain(flags).collect(), move || {
                functions.iter().map(|function| function()).sum::<u32>() as usize
            });
        }
    }
}

/// Adds a row of `run`, whose `count` branches are off, with these lines put out of the caches
/// before.
fn row(
    bench: &mut Bench,
    spec: Spec,
    count: usize,
    lines: Vec<*const u8>,
    run: impl Fn() -> usize + 'static,
) {
    let runs = bench.pick(500, 200);
    let spec = spec.with("runs", runs).wall();
    if !cfg!(target_arch = "x86_64") {
        return bench.unavailable(spec, "no instruction is known here that flushes a cache line");
    }
    bench.sample(spec, move || {
        let mut times = Vec::with_capacity(runs);
        for _ in 0..runs {
            flush(&lines);
            let (took, on) = wall(&run);
            if on != 0 {
                return Err(Failure::wrong(format!("{on} branches were taken that are off")));
            }
            times.push(took.as_nanos() as f64 / count as f64);
        }
        Ok(midmean(&times).ok_or("no runs")?)
    });
}

/// Puts these lines out of the caches: the same work before each run of a row.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
fn flush(lines: &[*const u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has both instructions; they change no memory.
    unsafe {
        for &line in lines {
            std::arch::x86_64::_mm_clflush(line);
        }
        std::arch::x86_64::_mm_mfence();
    }
}

/// The price that the site and the flag add.
pub(super) fn compare(bench: &mut Bench) {
    bench.added("off-cold", "none", &NAMES[1..]);
    bench.added("cold", "none", &NAMES[1..]);
}
