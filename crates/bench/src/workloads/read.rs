//! What reading a clock costs: the yardsticks that other rows are held against.

use std::hint::black_box;

use super::Settings;
use crate::clocks::{cpu, thread_cpu_ns};
use crate::runner::{Case, Failure, Spec};

/// `read/rdtsc`: the time stamp counter alone, unserialised, as the clock reads it.
pub(crate) fn rdtsc(settings: &Settings) -> Case<'static> {
    case("read/rdtsc", settings, dormouse::clock::rdtsc)
}

/// `read/thread-clock`: our thread CPU time.
pub(crate) fn thread_clock(settings: &Settings) -> Case<'static> {
    case("read/thread-clock", settings, dormouse::clock::thread_cpu_ns)
}

/// `read/clock_gettime-thread`: the kernel's thread CPU time.
pub(crate) fn clock_gettime_thread(settings: &Settings) -> Case<'static> {
    case("read/clock_gettime-thread", settings, thread_cpu_ns)
}

/// A row of what `read` costs.
pub(super) fn case(name: &str, settings: &Settings, read: impl Fn() -> u64 + 'static) -> Case<'static> {
    case_in(name, settings, || Ok(()), read)
}

/// A row of what `read` costs after `ready`.
pub(super) fn case_in(
    name: &str,
    settings: &Settings,
    ready: impl Fn() -> Result<(), Failure> + 'static,
    read: impl Fn() -> u64 + 'static,
) -> Case<'static> {
    let spec = Spec::new(name, "ns").with("per", "read").with("clock", "thread CPU time");
    Case::per_iteration(spec, settings.target(), move |iterations| {
        ready()?;
        let (elapsed, ()) = cpu(|| {
            for _ in 0..iterations {
                black_box(read());
            }
        });
        Ok(elapsed)
    })
}
