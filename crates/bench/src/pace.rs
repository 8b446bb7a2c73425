//! The pace of the machine: how long the kernel takes, just before each sample, to read the CPU
//! time of the thread a few hundred times.
//!
//! On a shared machine the same code takes 10 % more CPU time for a second or two, and nearly all
//! code does at once: a neighbour on the other half of the core, a lower frequency. A comparison of
//! runs removes that ([`mod@crate::compare`]), so it needs the pace of each value.
//!
//! The kernel's code does not change with the compiler or with dormouse, and it is affected by
//! neighbours as much as other code. Short loops are not: with chains and independent arithmetic
//! some took 2 % more where a poll took 12 %.

use std::hint::black_box;

use crate::clocks::{cpu, thread_cpu_ns};

/// Some 100 to 200 µs: short against a sample, long against the clock that times it.
const CALLS: u32 = 300;

/// CPU time of the calls, in nanoseconds.
pub(crate) fn pace() -> f64 {
    cpu(|| (0..CALLS).for_each(|_| _ = black_box(thread_cpu_ns()))).0.as_nanos() as f64
}
