//! The times of groups by place.

use std::collections::HashMap;

use crate::living::{TaskState, living};
use crate::places;

/// The time that a group's tasks have waited at a place, while somebody asked for places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceTime {
    /// The number of the group; 0 for those past the table of groups.
    pub group: u32,
    /// The number of the place.
    pub place: u32,
    /// Nanoseconds.
    pub ns: u64,
    /// How many waits that is.
    pub waits: u64,
}

/// The time of each group at each place so far. Those of the present waits of living tasks are
/// included.
///
/// # Cost
///
/// A look at each living task, and at the table. Nobody is stopped.
pub fn times_by_place() -> Vec<PlaceTime> {
    let mut sums: HashMap<u64, [u64; 2]> = HashMap::new();
    let mut add = |key, [ns, waits]: [u64; 2]| {
        let sum = sums.entry(key).or_default();
        *sum = [sum[0] + ns, sum[1] + waits];
    };
    // Tasks first: what ends in between is in the table.
    for task in living().filter(|task| task.state == TaskState::Awaiting) {
        let parts = places::parts(task.group, task.places.iter().copied(), task.for_ns);
        parts.for_each(|(key, ns)| add(key, [ns, 1]));
    }
    places::sums().for_each(|(key, sum)| add(key, sum));
    let time = |(key, [ns, waits]): (u64, [u64; 2])| PlaceTime {
        group: key as u32,
        place: (key >> 32) as u32,
        ns,
        waits,
    };
    sums.into_iter().map(time).collect()
}
