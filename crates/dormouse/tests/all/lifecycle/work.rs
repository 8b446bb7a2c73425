//! Work of a known size, and what a group must show for it.

use std::time::Duration;

use dormouse::Group;
use dormouse_testkit::{assert_about, spin_for};

/// A piece of work.
pub(crate) const WORK: Duration = Duration::from_millis(10);

/// Spins when it is dropped, for what it is worth.
pub(crate) struct Slow(pub(crate) Duration);

impl Drop for Slow {
    fn drop(&mut self) {
        spin_for(self.0);
    }
}

/// The group current now, by name.
pub(crate) fn current() -> &'static str {
    Group::current().map_or("none", Group::name)
}

/// Asserts that the group was charged about this work.
#[track_caller]
pub(crate) fn assert_cpu(group: &str, work: Duration) {
    assert_about(Group::new(group).read().cpu, work);
}

/// The group's tasks: begun, there, ended.
#[track_caller]
pub(crate) fn assert_tasks(group: &str, started: u64, alive: u64, finished: u64) {
    let stat = Group::new(group).read();
    assert_eq!((stat.started, stat.alive, stat.finished), (started, alive, finished), "{stat:?}");
}

pub(crate) fn entries(group: &str) -> u64 {
    Group::new(group).read().entries
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
    COUNT.call_once(|| dormouse::start_counting(&[dormouse::Event::TASK_CLOCK]).unwrap().keep());
}
