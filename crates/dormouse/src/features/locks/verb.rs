//! `locks` and `lock-report`: locks that are noted for a client, and what is known of them.

use std::collections::{BTreeMap, HashSet};

use dormouse_keys::Key;
use dormouse_locks::{
    Blocked, Holds, LockDurations, LockHolder, LockPlace, LockRow, LockTimes, LockUser, LongestWait,
    lock_cycles, lock_holders, lock_waiters, lost, read_locks,
};
use dormouse_protocol::{
    HistogramRow, LockBlameRow, LockBlockedRow, LockCycleRow, LockLineRow, LockLongestRow, LockPlaceRow,
    LockReport, LockReportRequest, LockStatRow, LockUserRow, LocksBegun, LocksRequest, WireError, WireHeldBy,
};

use super::stacks;
use crate::agent::request::wire_error;
use crate::agent::{Answered, Asked, ClientState};
use crate::core::asleep::{Part, check};
use crate::core::group::Group;

/// The most lines and groups of an answer.
const LINES: usize = 1024;
/// The most holders of an answer, and the most waits.
const USERS: usize = 256;
/// The most cycles.
const CYCLES: usize = 16;

impl ClientState for LockTimes {
    fn what(&self) -> String {
        "notes locks".to_owned()
    }

    fn keys(&self) -> Vec<&'static Key> {
        LockTimes::keys(self).to_vec()
    }
}

impl Answered for LocksRequest {
    fn answer(self, asked: &mut Asked<'_>) -> Result<LocksBegun, WireError> {
        check(Part::Times)?;
        let holds = if self.all { Holds::All } else { Holds::Sampled };
        let times = LockTimes::start(holds).map_err(wire_error)?;
        // This ends what the client had asked for before.
        asked.client().states.set(times);
        Ok(LocksBegun {})
    }
}

impl Answered for LockReportRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<LockReport, WireError> {
        // The difference of two reports would be a rate of less time than lay between them.
        check(Part::Times)?;
        let mut report = report();
        if self.stacks {
            stacks::read(&mut report.cycles);
        }
        Ok(report)
    }
}

fn report() -> LockReport {
    let mut all = read_locks();
    let omitted = cut(&mut all, LINES, |row| (row.waits.sum_ns, row.acquisitions));
    all.sort_by(|a, b| (&a.place, a.group).cmp(&(&b.place, b.group)));
    // In this order a hold is not shorter than a wait for its end that began after it.
    let mut waiters = lock_waiters();
    let mut holders = lock_holders();
    let cycles = lock_cycles();
    waiters.sort_by_key(|user| std::cmp::Reverse(user.for_ns));
    let waited_for: HashSet<usize> = waiters.iter().map(|waiter| waiter.address).collect();
    holders.sort_by_cached_key(|user| std::cmp::Reverse((waited_for.contains(&user.address), user.for_ns)));
    let users = |users: Vec<LockUser>| users.iter().take(USERS).map(user_row).collect();
    let [lost_holders, lost_lines, lost_waits] = lost();
    LockReport {
        lines: all.iter().map(line_row).collect(),
        omitted: omitted as u64,
        holders: users(holders),
        waiters_omitted: waiters.len().saturating_sub(USERS) as u64,
        waiters: users(waiters),
        cycles: cycles.into_iter().take(CYCLES).map(cycle_row).collect(),
        lost_holders,
        lost_lines,
        lost_waits,
    }
}

/// The lines and groups for an answer to `stat`: those with the longest waits.
pub(crate) fn stat_rows() -> Vec<LockStatRow> {
    stat_rows_of(&read_locks())
}

fn stat_rows_of(all: &[LockRow]) -> Vec<LockStatRow> {
    // Labels have no columns and no types, so several rows may become one. That is cut as a whole:
    // a counter may be left out, and never decreases.
    let mut sums: BTreeMap<(u32, String, &'static str), LockStatRow> = BTreeMap::new();
    for of in all {
        let (group, line, kind) = (of.group, line(&of.place), of.place.kind.name());
        let sum = sums.entry((group, line.clone(), kind)).or_default();
        (sum.group, sum.line, sum.kind) = (group, line, kind.into());
        sum.acquisitions += of.acquisitions;
        sum.waits += of.waits.count();
        sum.wait_ns = sum.wait_ns.saturating_add(of.waits.sum_ns);
    }
    let mut rows: Vec<_> = sums.into_values().collect();
    cut(&mut rows, LockStatRow::MOST, |row| (row.wait_ns, row.acquisitions));
    rows
}

/// Keeps the rows with the longest waits, in any order; how many go.
fn cut<T>(all: &mut Vec<T>, most: usize, waits: impl Fn(&T) -> (u64, u64)) -> usize {
    let more = all.len().saturating_sub(most);
    if more > 0 {
        all.sort_by_key(|row| std::cmp::Reverse(waits(row)));
        all.truncate(most);
    }
    more
}

/// A line as labels have it, without the directories of its file.
pub(crate) fn line(of: &LockPlace) -> String {
    let file = of.file.rsplit('/').next().unwrap_or(&of.file);
    format!("{file}:{}", of.line)
}

fn group_name(id: u32) -> Option<String> {
    Group::by_id(id).map(|group| group.name().to_owned())
}

fn place_row(of: &LockPlace) -> LockPlaceRow {
    LockPlaceRow {
        file: of.file.clone(),
        line: of.line,
        column: of.column,
        kind: of.kind.name().to_owned(),
        awaited: of.kind.is_awaited(),
        name: of.name.clone(),
    }
}

fn durations(of: &LockDurations) -> HistogramRow {
    HistogramRow::without_tasks(&of.histogram())
}

fn blame_row((by, ns): (LockHolder, u64)) -> LockBlameRow {
    let (by, group) = match by {
        LockHolder::Group(id) => (WireHeldBy::Group, group_name(id)),
        LockHolder::Before => (WireHeldBy::Before, None),
        LockHolder::Unknown => (WireHeldBy::Unknown, None),
        LockHolder::Others => (WireHeldBy::Others, None),
    };
    LockBlameRow { by, group, ns }
}

fn longest_row(of: &LongestWait) -> LockLongestRow {
    LockLongestRow { blame: blame_row((of.by, of.ns)), place: of.place.as_ref().map(place_row) }
}

fn line_row(of: &LockRow) -> LockLineRow {
    LockLineRow {
        place: place_row(&of.place),
        group: group_name(of.group),
        acquisitions: of.acquisitions,
        waits: durations(&of.waits),
        given_up: of.given_up,
        holds: durations(&of.holds),
        held_by: of.held_by.iter().copied().map(blame_row).collect(),
        longest: of.longest.as_ref().map(longest_row),
    }
}

fn user_row(of: &LockUser) -> LockUserRow {
    LockUserRow {
        number: of.number,
        address: of.address as u64,
        place: place_row(&of.place),
        group: group_name(of.group),
        task: of.task,
        tid: of.tid,
        for_ns: of.for_ns,
        timed: of.is_timed,
    }
}

fn cycle_row(of: Vec<Blocked>) -> LockCycleRow {
    let blocked = |it: Blocked| LockBlockedRow {
        waiter: user_row(&it.waiter),
        holder: user_row(&it.holder),
        ..LockBlockedRow::default()
    };
    LockCycleRow { blocked: of.into_iter().map(blocked).collect() }
}

#[cfg(test)]
mod tests {
    use dormouse_locks::Mutex;

    use super::*;

    #[test]
    fn rows_of_one_series_are_cut_together() {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        drop(Mutex::new(0).lock());
        let taken = read_locks().pop().expect("a line");
        let row = |line: usize, column, acquisitions| {
            let place = LockPlace { line: line as u32, column, ..taken.place.clone() };
            LockRow { place, acquisitions, ..taken.clone() }
        };
        let others = (1..=LockStatRow::MOST).map(|line| row(line, 1, 10));
        let rows = stat_rows_of(&others.chain([row(0, 1, 9), row(0, 2, 11)]).collect::<Vec<_>>());
        assert_eq!((rows.len(), rows[0].acquisitions), (LockStatRow::MOST, 20), "{:?}", rows[0]);
    }
}
