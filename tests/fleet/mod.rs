//! The fleet: `dormouse serve` and the real things that read it, started by the tests on loopback
//! at ports of the kernel's choosing. A test whose program is not there is skipped, and counted.

mod collector;
mod daemon;
mod examples;
mod families;
mod go_pprof;
mod prometheus;
mod promtool;
mod restarts;
pub(crate) mod serving;
mod sink;
mod victoria;
