//! The price of a site that is off, in a loop that does a little work.
//!
//! Every row is the same loop with another site in its body. What the compiler could make different between
//! them is taken from it: the loop counter passes through an empty `asm!`, so no row is unrolled or
//! vectorised; the awake branch is the same cold call everywhere. Where a loop lies against the 64-byte
//! lines of the fetch unit can cost more than a site does, so each row is four copies of its loop, 16
//! bytes apart in that respect, and a value is their mean.
//!
//! Three bodies, because a site shows where it meets a bottleneck and hides where it does not:
//!
//! - `off`: a chain of six dependent operations (xorshift). The processor waits for the chain and has room
//!   to spare; what most code is like.
//! - `off-dense`: sixteen sites in a row and nothing else to do; the most that a site can cost.
//! - `off-late-eax`: EAX comes out of a chain of multiplications just before the site. Ours reads EAX
//!   (`test eax, imm32`); the row would show if that made anything wait.

use std::arch::asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::filter::{Filter, Phase};
use crate::clocks::cpu;
use crate::runner::{Case, Failure, Spec};
use crate::workloads::Settings;

/// Sites in the body of an `off-dense` row.
pub(super) const DENSE: f64 = 16.0;

/// The `off-dense` rows that are compared with `none`.
pub(super) const DENSE_PEERS: [&str; 3] = ["dormouse", "atomic", "static-keys"];

/// Bodies, and the rows that are compared with `none` of the same body.
pub(super) const BODIES: &[(&str, &[&str])] = &[
    (
        "off",
        &[
            "dormouse",
            "dormouse-probe",
            "dormouse-span",
            "atomic",
            "static-keys",
            "tracing",
            "tracing-envfilter-span",
        ],
    ),
    ("off-late-eax", &["dormouse"]),
];

pub(super) const NOTES: &[&str] = &[
    "off rows: CPU time of the one thread an iteration, which leaves out what else ran on the machine; a \
     value is the mean of 4 copies of the row's loop that lie 16 bytes apart modulo 64; hot caches",
    "bodies: off = chain of 6 dependent operations; off-dense = 16 sites in a row and nothing else; \
     off-late-eax = the site's EAX comes late, out of 4 dependent multiplications",
    "off/dormouse-span: `dormouse::tracing::trace_span!` asleep, entered like that of \
     off/tracing-envfilter-span and under the same filter; what it costs is the empty span of tracing \
     being made, entered and dropped",
    "…-difference/X: 100 * (X / none - 1); …-added/X: X - none, for off-dense divided by its 16 sites; of \
     values of the same round",
];

/// Copies of each loop.
const COPIES: u64 = 4;

dormouse::static_key! {
    static ASLEEP: "bench.off" = false;
}

static_keys::define_static_key_false!(PEER_ASLEEP);

static SWITCH: AtomicBool = AtomicBool::new(false);

/// Has a false that the compiler cannot see stored, lest it take the flag for a constant.
fn arm() {
    SWITCH.store(black_box(false), Ordering::Relaxed);
}

/// Calls of [`awake`]: none, if every branch did as it should.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Whether any branch that was off was taken.
pub(super) fn was_taken() -> bool {
    TAKEN.load(Ordering::Relaxed) != 0
}

#[cold]
#[inline(never)]
fn awake(x: u64) -> u64 {
    TAKEN.fetch_add(1, Ordering::Relaxed);
    x.rotate_left(1)
}

/// The compiler cannot know what comes out, and need not spill to find out.
#[inline(always)]
fn opaque(mut x: u64) -> u64 {
    // SAFETY: an empty template.
    unsafe { asm!("/* {0} */", inout(reg) x, options(nomem, nostack, preserves_flags)) };
    x
}

/// Moves what follows by `BYTES`, which also keeps equal copies from being merged.
#[inline(always)]
fn shift<const BYTES: usize>() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: no-ops.
    unsafe {
        asm!(".fill {0}, 1, 0x90", const BYTES, options(nomem, nostack, preserves_flags));
    }
}

#[inline(always)]
fn chain(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

#[inline(always)]
fn nothing(x: u64) -> u64 {
    opaque(x)
}

#[inline(always)]
fn late_eax(mut x: u64) -> u64 {
    for _ in 0..4 {
        x = opaque(x.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an empty template.
    unsafe {
        asm!("", inout("rax") x, options(nomem, nostack, preserves_flags));
    }
    x
}

/// CPU time of that many iterations.
type Loop = fn(u64) -> Duration;

/// A row's function: CPU time of that many iterations, over its four copies.
macro_rules! row {
    ($name:ident, $body:ident, |$x:ident| $site:block) => {
        fn $name(iterations: u64) -> Duration {
            #[inline(never)]
            fn copy<const BYTES: usize>(mut left: u64, mut $x: u64) -> u64 {
                shift::<BYTES>();
                while left != 0 {
                    $x = $body($x);
                    $site
                    left = opaque(left - 1);
                }
                $x
            }
            let each = iterations.div_ceil(COPIES);
            let (elapsed, result) = cpu(|| {
                copy::<0>(each, black_box(1))
                    ^ copy::<16>(each, black_box(2))
                    ^ copy::<32>(each, black_box(3))
                    ^ copy::<48>(each, black_box(4))
            });
            black_box(result);
            elapsed
        }
    };
}

/// Four of them; twice, sixteen.
macro_rules! four {
    ($($site:tt)*) => {{
        { $($site)* }
        { $($site)* }
        { $($site)* }
        { $($site)* }
    }};
}

row!(chain_none, chain, |x| {});
row!(chain_dormouse, chain, |x| {
    if dormouse::unlikely!(ASLEEP) {
        x = awake(x);
    }
});
row!(chain_atomic, chain, |x| {
    if SWITCH.load(Ordering::Relaxed) {
        x = awake(x);
    }
});
row!(chain_static_keys, chain, |x| {
    if static_keys::static_branch_unlikely!(PEER_ASLEEP) {
        x = awake(x);
    }
});

row!(dense_none, nothing, |x| {});
row!(dense_dormouse, nothing, |x| {
    four!(four!(if dormouse::unlikely!(ASLEEP) {
        x = awake(x);
    }));
});
row!(dense_atomic, nothing, |x| {
    four!(four!(if SWITCH.load(Ordering::Relaxed) {
        x = awake(x);
    }));
});
row!(dense_static_keys, nothing, |x| {
    four!(four!(if static_keys::static_branch_unlikely!(PEER_ASLEEP) {
        x = awake(x);
    }));
});

row!(late_eax_none, late_eax, |x| {});
row!(late_eax_dormouse, late_eax, |x| {
    if dormouse::unlikely!(ASLEEP) {
        x = awake(x);
    }
});

// The copy keeps the address of the chain's own variable out of the macros' cold halves, which take
// references: a spill a turn would be our doing, not theirs.
row!(chain_probe, chain, |x| {
    let seen = x;
    dormouse::probe!("bench.off.probe", seen);
});
row!(chain_tracing, chain, |x| {
    let seen = x;
    tracing::trace!(seen, "step");
});
row!(chain_span, chain, |x| {
    let seen = x;
    let _span = tracing::trace_span!("step", seen).entered();
});

row!(chain_dormouse_span, chain, |x| {
    let seen = x;
    let _span = dormouse::tracing::trace_span!("step", seen).entered();
});

/// The cases; the tracing ones need `filter` to be installed.
pub(super) fn cases(settings: &Settings, filter: Result<&Filter, &String>) -> Vec<Case<'static>> {
    arm();
    let plain: [(&str, &str, Loop); 11] = [
        ("off/none", "chain", chain_none),
        ("off/dormouse", "chain", chain_dormouse),
        ("off/dormouse-probe", "chain", chain_probe),
        ("off/atomic", "chain", chain_atomic),
        ("off/static-keys", "chain", chain_static_keys),
        ("off-dense/none", "dense", dense_none),
        ("off-dense/dormouse", "dense", dense_dormouse),
        ("off-dense/atomic", "dense", dense_atomic),
        ("off-dense/static-keys", "dense", dense_static_keys),
        ("off-late-eax/none", "late-eax", late_eax_none),
        ("off-late-eax/dormouse", "late-eax", late_eax_dormouse),
    ];
    let traced: [(&str, Phase, Loop); 3] = [
        ("off/tracing", Phase::Level, chain_tracing),
        ("off/tracing-envfilter-span", Phase::Dynamic, chain_span),
        ("off/dormouse-span", Phase::Dynamic, chain_dormouse_span),
    ];
    let spec = |name: &str, body: &str| {
        Spec::new(name, "ns")
            .with("per", "iteration")
            .with("clock", "thread CPU time")
            .with("body", body)
            .with("copies", COPIES)
    };
    let mut cases = Vec::new();
    for (name, body, run) in plain {
        cases.push(Case::per_iteration(spec(name, body), settings.target(), move |iterations| {
            Ok(run(iterations))
        }));
    }
    for (name, phase, run) in traced {
        let spec = spec(name, "chain");
        cases.push(match filter {
            Err(reason) => Case::unavailable(vec![spec], reason),
            Ok(filter) => {
                let filter = filter.clone();
                Case::per_iteration(spec, settings.target(), move |iterations| {
                    filter.enter(phase)?;
                    Ok::<_, Failure>(run(iterations))
                })
            }
        });
    }
    cases
}
