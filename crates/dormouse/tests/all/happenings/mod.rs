//! Something that happens to groups, and is counted exactly.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dormouse::events::Mode;
use dormouse::events::pmu::CountingPmu;
use dormouse::{Counting, Event, Group};

pub(crate) static PMU: CountingPmu = CountingPmu::new();
const HAPPENINGS: Event = PMU.event("happenings", 0);

/// The rest, which is no group's.
pub(crate) const FOREIGN: u64 = 1_000_000;

pub(crate) fn happen(times: u64) {
    CountingPmu::happen(0, times);
}

/// Tests whose reads are counted, or that change what is counted, run alone.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn counted(name: &str) -> (Group, Counting) {
    let group = Group::new(name);
    (group, group.start_counting(&[HAPPENINGS], Mode::GroupExact).unwrap())
}

pub(crate) fn value(group: Group) -> u64 {
    group.read_counts().iter().find(|count| count.event == HAPPENINGS).map_or(0, |count| count.value)
}
