//! The times of groups.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use dormouse_clock::{stamp, ticks_to_ns};

use crate::buckets::Histogram;
use crate::living::{TaskState, stamps};
use crate::rows::{self, GROUPS, Shelf, Time, row_of};
use crate::slab;
use crate::waiting::run;

/// The times of a group since the first [`crate::Waiting`], in nanoseconds. Those of the present
/// waits of living tasks are included in the sums.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupWaits {
    /// The number of the group.
    pub group: u32,
    /// Time in polls, without those of other tasks inside of them: on a CPU, or not.
    pub poll_ns: u64,
    /// Time from wakes to the polls that followed.
    pub runnable_ns: u64,
    /// Time from the ends of polls to the wakes that followed.
    pub await_ns: u64,
    /// The lengths of polls.
    pub polls: Histogram,
    /// The times from a wake to its poll.
    pub delays: Histogram,
    /// The times from the end of a poll to a wake.
    pub awaits: Histogram,
    /// The ages of requests at their ends.
    pub requests: Histogram,
}

impl GroupWaits {
    /// The times since `before`, an earlier look at the group.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            group: self.group,
            poll_ns: self.poll_ns.saturating_sub(before.poll_ns),
            runnable_ns: self.runnable_ns.saturating_sub(before.runnable_ns),
            await_ns: self.await_ns.saturating_sub(before.await_ns),
            polls: self.polls.since(&before.polls),
            delays: self.delays.since(&before.delays),
            awaits: self.awaits.since(&before.awaits),
            requests: self.requests.since(&before.requests),
        }
    }
}

/// Reads all groups that have times, in order of their numbers. Groups whose numbers are past the
/// table's share number 0.
///
/// # Cost
///
/// A look at each thread's rows, and at each living task. Nobody is stopped.
pub fn read() -> Vec<GroupWaits> {
    let run = run();
    let shelves: Vec<_> = rows::shelves().map(|(_, shelf)| shelf).collect();
    let mut groups: Vec<_> = (0..GROUPS).filter_map(|row| read_row(row, &shelves, run)).collect();
    for (row, ticks) in runnable(run) {
        if let Ok(at) = groups.binary_search_by_key(&(row as u32), |of| of.group) {
            // They wait, and were counted with those that await.
            let ns = ticks_to_ns(ticks).min(groups[at].await_ns);
            groups[at].await_ns -= ns;
            groups[at].runnable_ns += ns;
        }
    }
    groups
}

fn read_row(number: usize, shelves: &[&Shelf], run: u64) -> Option<GroupWaits> {
    let rows = || shelves.iter().filter_map(|shelf| shelf.peek(number));
    rows().next()?;
    let mut ticks = [0_u64; 3];
    let (mut open, mut beginnings) = (0_u64, 0_u64);
    // One moment for all rows: waits that begin in one and end in another add up to theirs.
    let now = stamp();
    for row in rows() {
        let sums = row.sums(run);
        for (to, from) in ticks.iter_mut().zip(sums.ticks) {
            *to = to.wrapping_add(from);
        }
        if sums.polling != 0 {
            ticks[Time::Poll as usize] += now.saturating_sub(sums.polling);
        }
        open = open.wrapping_add(sums.open);
        beginnings = beginnings.wrapping_add(sums.beginnings);
    }
    let lasting = open.wrapping_mul(now).wrapping_sub(beginnings).cast_signed();
    ticks[Time::Await as usize] += lasting.max(0).cast_unsigned();
    let [poll_ns, runnable_ns, await_ns] = ticks.map(ticks_to_ns);
    let mut of = GroupWaits { group: number as u32, poll_ns, runnable_ns, await_ns, ..GroupWaits::default() };
    for row in rows() {
        row.add_to(Time::Poll, &mut of.polls);
        row.add_to(Time::Runnable, &mut of.delays);
        row.add_to(Time::Await, &mut of.awaits);
        row.add_to(Time::Request, &mut of.requests);
    }
    Some(of)
}

/// For how long the tasks that are runnable have been so, by the numbers of their rows.
fn runnable(run: u64) -> HashMap<usize, u64> {
    let mut rows = HashMap::new();
    for slot in slab::all().filter(|slot| slot.woken.load(Ordering::Relaxed) != 0) {
        let Some((stamps, now)) = stamps(slot, run) else { continue };
        if let (TaskState::Runnable, from, _) = stamps.until(now) {
            *rows.entry(row_of(slot.group.load(Ordering::Relaxed))).or_insert(0) += now.saturating_sub(from);
        }
    }
    rows
}
