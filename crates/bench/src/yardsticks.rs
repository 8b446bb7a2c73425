//! The price of reading a clock: rows with which other rows are compared.

use std::hint::black_box;

use crate::bench::Bench;
use crate::clocks::{cpu, thread_cpu_ns};
use crate::row::Spec;
use crate::runner::Failure;

/// Adds `read/rdtsc`: the time stamp counter alone, unserialised, as the clock reads it.
pub(crate) fn rdtsc(bench: &mut Bench) {
    read(bench, "rdtsc", dormouse::clock::rdtsc);
}

/// Adds `read/clock_gettime-thread`: the kernel's thread CPU time.
pub(crate) fn clock_gettime_thread(bench: &mut Bench) {
    read(bench, "clock_gettime-thread", thread_cpu_ns);
}

/// Adds `read/NAME`: a call of `clock`.
pub(crate) fn read(bench: &mut Bench, name: &str, clock: impl Fn() -> u64 + 'static) {
    read_after(bench, name, || Ok(()), clock);
}

/// Adds `read/NAME`: a call of `clock`, after `ready`.
pub(crate) fn read_after(
    bench: &mut Bench,
    name: &str,
    ready: impl Fn() -> Result<(), Failure> + 'static,
    clock: impl Fn() -> u64 + 'static,
) {
    let spec = Spec::new(format!("read/{name}"), "ns").per("read").cpu();
    bench.per_iteration(spec, move |iterations| {
        ready()?;
        let (elapsed, ()) = cpu(|| (0..iterations).for_each(|_| _ = black_box(clock())));
        Ok(elapsed)
    });
}
