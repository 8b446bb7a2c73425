//! Work of a known size, and what a group must show for it.

use std::time::Duration;

use dormouse::Group;

/// A piece of work.
pub(crate) const WORK: Duration = Duration::from_millis(10);

/// CPU time of this thread, by the kernel's clock.
pub(crate) fn thread_cpu() -> Duration {
    let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
    Duration::from_nanos(dormouse::clock::thread_cpu_ns_of(tid).expect("this thread lives"))
}

/// Uses CPU time of this thread.
pub(crate) fn spin(time: Duration) {
    let end = thread_cpu() + time;
    while thread_cpu() < end {}
}

/// Spins when it is dropped, for what it is worth.
pub(crate) struct Slow(pub(crate) Duration);

impl Drop for Slow {
    fn drop(&mut self) {
        spin(self.0);
    }
}

/// The group current now, by name.
pub(crate) fn current() -> &'static str {
    Group::current().map_or("none", Group::name)
}

/// The group was charged `work`, give or take what a noisy machine does inside an epoch of the clock.
#[track_caller]
pub(crate) fn assert_cpu(group: &str, work: Duration) {
    let slack = Duration::from_millis(8);
    let cpu = Group::new(group).stat().cpu;
    assert!(cpu + slack >= work && cpu <= work + slack, "{group}: {cpu:?} for {work:?} of work");
}

/// The group's tasks: begun, there, ended.
#[track_caller]
pub(crate) fn assert_tasks(group: &str, started: u64, alive: u64, finished: u64) {
    let stat = Group::new(group).stat();
    assert_eq!((stat.started, stat.alive, stat.finished), (started, alive, finished), "{stat:?}");
}

pub(crate) fn entries(group: &str) -> u64 {
    Group::new(group).stat().entries
}

pub(crate) fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

pub(crate) fn workers(n: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(n).build().unwrap()
}

/// Has CPU time and entries counted for all groups from now on.
pub(crate) fn counting() {
    static COUNT: std::sync::Once = std::sync::Once::new();
    COUNT.call_once(|| dormouse::count(&[dormouse::Event::TASK_CLOCK]).unwrap().keep());
}
