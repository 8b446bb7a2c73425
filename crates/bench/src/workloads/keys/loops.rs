//! The loops of the rows about a sleeping site. They give the compiler no freedom to treat them
//! differently.
//!
//! The loop counter passes through an empty `asm!`, so no row is unrolled or vectorised; the awake
//! branch is the same cold call everywhere. The position of a loop relative to the 64-byte lines of
//! the fetch unit can cost more than a site does, so each row is four copies of its loop, 16 bytes
//! apart in that respect, and a value is their mean.

use std::arch::asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use super::sites::Flag;
use crate::clocks::cpu;

/// Copies of each loop.
pub(super) const COPIES: u64 = 4;

dormouse::static_key! {
    static ASLEEP: "bench.off" = false;
}

static_keys::define_static_key_false!(PEER_ASLEEP);

static SWITCH: AtomicBool = AtomicBool::new(false);

/// A flag whose cache line another thread writes in the `contended` rows.
pub(super) static CONTENDED: Flag = Flag(AtomicBool::new(false));

/// The memory that [`missing_load`] reads: twice as large as the caches of present machines.
static MEMORY: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());

/// Entries of [`MEMORY`], as a power of two: 64 MiB.
const MEMORY_BITS: u32 = 23;

/// Stores a false that the compiler cannot see through, lest it take a flag for a constant, and
/// makes the memory.
pub(super) fn arm() {
    SWITCH.store(black_box(false), Ordering::Relaxed);
    CONTENDED.0.store(black_box(false), Ordering::Relaxed);
    // Not zeros: the kernel backs untouched zeros with one page.
    let memory = vec![1_u64; 1 << MEMORY_BITS].into_boxed_slice();
    replace_memory(Box::into_raw(memory).cast());
}

/// Gives the memory back, when no loop runs any more.
pub(super) fn disarm() {
    replace_memory(std::ptr::null_mut());
}

fn replace_memory(new: *mut u64) {
    let old = MEMORY.swap(new, Ordering::Relaxed);
    if !old.is_null() {
        // SAFETY: `arm` made it with that length, and no loop can find it any more.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(old, 1 << MEMORY_BITS)) });
    }
}

/// Calls of [`awake`]: none, if every branch was right.
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

/// The compiler cannot know the result, and need not spill `x`.
#[inline(always)]
fn opaque(mut x: u64) -> u64 {
    // SAFETY: an empty template.
    unsafe { asm!("/* {0} */", inout(reg) x, options(nomem, nostack, preserves_flags)) };
    x
}

/// Moves the code behind it by `BYTES`; that also keeps equal copies from being merged.
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
    into_eax(x)
}

#[inline(always)]
fn missing_load(x: u64) -> u64 {
    // The numbers do not wait for the loads, so several loads are under way side by side.
    let x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    // SAFETY: `arm` has put memory there, with as many entries as there are numbers of that many
    // bits.
    let late = unsafe { MEMORY.load(Ordering::Relaxed).add((x >> (64 - MEMORY_BITS)) as usize).read() };
    into_eax(late);
    x
}

#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn into_eax(mut x: u64) -> u64 {
    // SAFETY: an empty template.
    unsafe {
        asm!("", inout("rax") x, options(nomem, nostack, preserves_flags));
    }
    x
}

#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
fn into_eax(x: u64) -> u64 {
    x
}

/// CPU time of that many iterations.
pub(super) type Loop = fn(u64) -> Duration;

/// A row's function: CPU time of that many iterations, over its four copies.
macro_rules! row {
    ($name:ident, $body:ident, |$x:ident| $site:block) => {
        pub(super) fn $name(iterations: u64) -> Duration {
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

/// Rows of a branch on each condition, which is false.
macro_rules! branches {
    ($($name:ident: $body:ident, $on:expr;)+) => {
        $(row!($name, $body, |x| {
            if $on {
                x = awake(x);
            }
        });)+
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

/// Sixteen branches on each condition.
macro_rules! dense {
    ($($name:ident: $on:expr;)+) => {
        $(row!($name, nothing, |x| {
            four!(four!(if $on {
                x = awake(x);
            }));
        });)+
    };
}

row!(chain_none, chain, |x| {});
row!(dense_none, nothing, |x| {});
row!(missing_load_none, missing_load, |x| {});
row!(late_eax_none, late_eax, |x| {});

branches! {
    chain_dormouse: chain, dormouse::unlikely!(ASLEEP);
    chain_atomic: chain, SWITCH.load(Ordering::Relaxed);
    chain_contended: chain, CONTENDED.0.load(Ordering::Relaxed);
    chain_static_keys: chain, static_keys::static_branch_unlikely!(PEER_ASLEEP);
    missing_load_dormouse: missing_load, dormouse::unlikely!(ASLEEP);
    late_eax_dormouse: late_eax, dormouse::unlikely!(ASLEEP);
}

dense! {
    dense_dormouse: dormouse::unlikely!(ASLEEP);
    dense_atomic: SWITCH.load(Ordering::Relaxed);
    dense_static_keys: static_keys::static_branch_unlikely!(PEER_ASLEEP);
}

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
