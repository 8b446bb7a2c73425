//! `objective/N`: a request from its begin to its end while times are taken, in a group with that
//! many objectives.

use std::time::Duration;

use dormouse::{Group, Objectives, ObjectivesError};
use dormouse_waits::Waiting;

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;

/// Adds the rows.
pub(crate) fn rows(bench: &mut Bench) {
    row(bench, "none", "bench objectives: none", 0);
    row(bench, "one", "bench objectives: one", 1);
    row(bench, "eight", "bench objectives: eight", 8);
}

fn row(bench: &mut Bench, name: &str, group: &'static str, objectives: u64) {
    let spec = Spec::new(format!("objective/{name}"), "ns").per("request").cpu();
    bench.per_iteration(spec, move |requests| {
        let group = Group::new(group);
        let _times = Waiting::start()?;
        let held: Result<Vec<Objectives>, ObjectivesError> =
            (1..=objectives).map(|seconds| group.objective(&format!("99% < {seconds}s"))).collect();
        let _held = held?;
        let began = thread_cpu_ns();
        (0..requests).for_each(|_| group.scope(|| ()));
        Ok(Duration::from_nanos(thread_cpu_ns() - began))
    });
}
