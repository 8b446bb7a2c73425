//! Showing a runtime of tokio beside the groups.
//!
//! tokio does not tell anybody outside that a runtime has ended. But it drops its tasks then. So a
//! task of ours, which is polled once, holds what is shown, and goes with the runtime.

use std::future::pending;

use ::tokio::runtime::{Handle, RuntimeMetrics};
use dormouse_protocol::RuntimeRow;

use crate::core::runtimes::{RuntimeError, ShownRuntime, show};

/// Shows a runtime beside the groups, under a name of the service's choice: its workers and their
/// busy time, its tasks, its queues; in programs that are built with `--cfg tokio_unstable` also
/// its polls and the threads for blocking work. In `dormouse top` and `stat`, JSON, the page, and
/// metrics with the label `runtime`.
///
/// Nothing is done for it until somebody looks. When the runtime ends it is shown no more, and its
/// memory is free.
///
/// A task of dormouse's stays in the runtime until then. A service that waits for its last task
/// by [`RuntimeMetrics::num_alive_tasks`] waits until one is left, not none:
///
/// ```
/// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
/// dormouse::tokio::runtime("main", runtime.handle())?;
/// assert_eq!(runtime.metrics().num_alive_tasks(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If another runtime that is shown has the name, or if there are 32.
///
/// # Cost
///
/// A task of the runtime, which is polled once. A reading takes a load for each worker and figure.
pub fn runtime(name: &str, handle: &Handle) -> Result<(), RuntimeError> {
    let metrics = handle.metrics();
    let shown = show(name, move || row(&metrics))?;
    // It ends with the runtime. One that has ended drops it at once.
    drop(handle.spawn(until_its_end(shown)));
    Ok(())
}

/// Holds what is shown for ever.
async fn until_its_end(_shown: ShownRuntime) {
    pending::<()>().await;
}

/// The figures of a runtime, without the task that is ours.
fn row(of: &RuntimeMetrics) -> RuntimeRow {
    let workers = of.num_workers();
    let row = RuntimeRow {
        workers: workers as u64,
        tasks: (of.num_alive_tasks() as u64).saturating_sub(1),
        global_queue: of.global_queue_depth() as u64,
        ..RuntimeRow::default()
    };
    unstable(of, timed(of, row))
}

#[cfg(target_has_atomic = "64")]
fn timed(of: &RuntimeMetrics, row: RuntimeRow) -> RuntimeRow {
    let busy = |worker| u64::try_from(of.worker_total_busy_duration(worker).as_nanos()).unwrap_or(u64::MAX);
    let sum = |each: &dyn Fn(usize) -> u64| (0..of.num_workers()).map(each).fold(0, u64::saturating_add);
    RuntimeRow { busy_ns: Some(sum(&busy)), parks: Some(sum(&|at| of.worker_park_count(at))), ..row }
}

#[cfg(not(target_has_atomic = "64"))]
fn timed(_: &RuntimeMetrics, row: RuntimeRow) -> RuntimeRow {
    row
}

#[cfg(tokio_unstable)]
fn unstable(of: &RuntimeMetrics, row: RuntimeRow) -> RuntimeRow {
    let sum = |each: &dyn Fn(usize) -> u64| (0..of.num_workers()).map(each).fold(0, u64::saturating_add);
    RuntimeRow {
        local_queues: Some(sum(&|at| of.worker_local_queue_depth(at) as u64)),
        polls: Some(sum(&|at| of.worker_poll_count(at))),
        steals: Some(sum(&|at| of.worker_steal_count(at))),
        blocking_threads: Some(of.num_blocking_threads() as u64),
        idle_blocking_threads: Some(of.num_idle_blocking_threads() as u64),
        blocking_queue: Some(of.blocking_queue_depth() as u64),
        ..row
    }
}

#[cfg(not(tokio_unstable))]
fn unstable(_: &RuntimeMetrics, row: RuntimeRow) -> RuntimeRow {
    row
}
