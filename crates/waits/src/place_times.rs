//! The times of groups by place.

use std::collections::HashMap;

use dormouse_clock::ticks_to_ns;

use crate::living::{Stamps, TaskState, stamps};
use crate::places;
use crate::run::run;
use crate::slab;
use crate::slot::Slot;

/// The time that a group's tasks have waited at a place, while places were requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceTime {
    /// The number of the group; 0 for those past the table of groups.
    pub group: u32,
    /// The number of the place.
    pub place: u32,
    /// The time in nanoseconds.
    pub ns: u64,
    /// The number of waits.
    pub waits: u64,
}

/// The time of each group at each place so far. The present waits of living tasks are included.
///
/// # Cost
///
/// Reads each living task that waits at a known place twice, and the tables once. No thread is
/// stopped.
pub fn times_by_place() -> Vec<PlaceTime> {
    times_by_place_while(|| ())
}

/// A present wait of a task, at known places.
fn wait(slot: &Slot, run: u64) -> Option<(Stamps, u64)> {
    let (stamps, now) = stamps(slot, run)?;
    let (state, from, _) = stamps.until(now);
    let is_placed = state == TaskState::Awaiting && stamps.known.charged().any(|place| place != 0);
    is_placed.then(|| (stamps, now.saturating_sub(from)))
}

/// `between` runs between the reading of tasks and that of the table.
fn times_by_place_while(between: impl FnOnce()) -> Vec<PlaceTime> {
    let run = run();
    let waits: Vec<_> = slab::all().filter_map(|slot| Some((slot, wait(slot, run)?))).collect();
    between();
    let mut sums = HashMap::<u64, [u64; 2]>::new();
    let mut add = |key, [ns, waits]: [u64; 2]| {
        let sum = sums.entry(key).or_default();
        *sum = [sum[0] + ns, sum[1] + waits];
    };
    places::sums().for_each(|(key, sum)| add(key, sum));
    for (slot, (seen, ticks)) in waits {
        // A wait that has ended since is in the table, or comes too late for it.
        let lasts = wait(slot, run).is_some_and(|(now, _)| (now.task, now.since) == (seen.task, seen.since));
        if lasts {
            for (key, ns) in places::parts(seen.group, seen.known.charged(), ticks_to_ns(ticks)) {
                add(key, [ns, 1]);
            }
        }
    }
    let time = |(key, [ns, waits]): (u64, [u64; 2])| PlaceTime {
        group: key as u32,
        place: (key >> 32) as u32,
        ns,
        waits,
    };
    sums.into_iter().map(time).collect()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::{Placing, TaskWaits, Waiting, Who};

    #[test]
    fn a_wait_that_ends_meanwhile_counts_once() {
        let _on = (Waiting::start().unwrap(), Placing::start().unwrap());
        let who = Who { task: 0xdead_0002, group: 901 };
        let mut waits = TaskWaits::begun(who);
        let mut poll = || waits.poll(who, &mut Context::from_waker(Waker::noop()), |cx| cx.waker().clone());
        let first = poll();
        let times = times_by_place_while(|| drop((poll(), first)));
        let waits: u64 = times.iter().filter(|time| time.group == 901).map(|time| time.waits).sum();
        assert_eq!(waits, 1, "{times:?}");
    }
}
