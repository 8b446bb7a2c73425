//! Readings of the process remember earlier ones, so that no counter goes back, and none tells of
//! another process.
//!
//! - **Threads that ended** take their time with them. A reading adds it as the last one saw it: a
//!   thread that no reading has seen is in no sum.
//! - **A forked child** goes on with the counts of its parent's groups. They are the parent's: a
//!   sum over both processes would have them twice, and the child's CPU time begins at zero. So the
//!   child's figures are those since it was first read, or counted.
//!
//! # Locking
//!
//! One lock, which forks wait for, held for a look at each thread's and each group's figures. The
//! value is of one process: a child begins again at its first look.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::ops::Range;

use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::process::identity;

use crate::group::Group;
use crate::wire::{CountRow, GroupRow, Stat};

static HISTORY: Mutex<History> = Mutex::new(
    Phase::Readings,
    History { process: None, inherited: Vec::new(), threads: Vec::new(), ended_ns: 0, listed_ns: 0 },
);

struct History {
    /// The process of all the rest.
    process: Option<NonZeroU64>,
    /// The figures of groups that a child has from its parent, in the order of their creation.
    inherited: Vec<GroupRow>,
    /// The threads of the last reading, each with its time; and when they had been listed.
    threads: Vec<(u32, u64)>,
    listed_ns: u64,
    /// The time of threads that have ended.
    ended_ns: u64,
}

/// Somebody is about to count in this process, or to read it.
pub(crate) fn begin() {
    let process = identity::number();
    let is_known = HISTORY.lock().map_or(true, |history| history.process == process);
    if is_known {
        return;
    }
    // Not under the lock: a reading takes its time.
    let inherited = if identity::forks() > 0 { groups() } else { Vec::new() };
    if let Ok(mut history) = HISTORY.lock()
        && history.process != process
    {
        *history = History { process, inherited, threads: Vec::new(), ended_ns: 0, listed_ns: 0 };
    }
}

/// All groups, with the counts of all events.
fn groups() -> Vec<GroupRow> {
    let row = |(stat, counts): (crate::GroupStat, Vec<_>)| {
        let counts = counts.iter().map(CountRow::from).collect();
        GroupRow { counts, ..GroupRow::from(stat) }
    };
    Group::read_all(true).into_iter().map(row).collect()
}

/// Makes the figures of a reading those of this process, since it began. Its threads were listed at
/// that time.
pub(crate) fn settle(stat: &mut Stat, listed: &Range<u64>) {
    let Ok(mut history) = HISTORY.lock() else { return };
    let inherited: HashMap<u32, &GroupRow> = history.inherited.iter().map(|row| (row.id, row)).collect();
    for group in &mut stat.groups {
        if let Some(before) = inherited.get(&group.id) {
            subtract(group, before);
        }
    }
    let attributed = stat.groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.cpu_ns));
    stat.unattributed_cpu_ns = stat.process_cpu_ns.saturating_sub(attributed);
    let now = stat.threads.iter().map(|thread| (thread.tid, thread.runnable_ns));
    stat.runnable_ns = history.runnable_ns(&now.collect::<Vec<_>>(), listed);
}

fn subtract(group: &mut GroupRow, before: &GroupRow) {
    let pairs = [
        (&mut group.cpu_ns, before.cpu_ns),
        (&mut group.entries, before.entries),
        (&mut group.started, before.started),
        (&mut group.finished, before.finished),
        (&mut group.requests, before.requests),
        (&mut group.polls, before.polls),
    ];
    for (now, before) in pairs {
        *now = now.saturating_sub(before);
    }
    // Tasks of other threads are in the parent alone.
    group.alive = group.started.saturating_sub(group.finished);
    for count in &mut group.counts {
        if let Some(before) = before.counts.iter().find(|before| before.event == count.event) {
            count.value = count.value.saturating_sub(before.value);
            count.enabled_ns = count.enabled_ns.saturating_sub(before.enabled_ns);
            count.running_ns = count.running_ns.saturating_sub(before.running_ns);
        }
    }
}

impl History {
    /// The time of all threads, also of those that have ended; `None`: the kernel says nothing of
    /// any.
    ///
    /// Two threads may read at once. A list that was not made wholly after the last one might have
    /// threads that are known to have ended: it changes nothing, and its reader is told the sum so
    /// far. A thread has at least the time that another reader has seen. (So the next thread of the
    /// same number counts once it has waited longer than the one before.)
    fn runnable_ns(&mut self, now: &[(u32, Option<u64>)], listed: &Range<u64>) -> Option<u64> {
        if listed.start >= self.listed_ns {
            self.listed_ns = listed.end;
            let mut before: HashMap<u32, u64> = self.threads.drain(..).collect();
            for (tid, ns) in now {
                // A thread without a time is about to end.
                if let Some(ns) = (*ns).max(before.remove(tid)) {
                    self.threads.push((*tid, ns));
                }
            }
            self.ended_ns = before.values().fold(self.ended_ns, |sum, ns| sum.saturating_add(*ns));
        }
        let is_known = !self.threads.is_empty() || self.ended_ns > 0;
        is_known.then(|| self.threads.iter().fold(self.ended_ns, |sum, (_, ns)| sum.saturating_add(*ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> History {
        History { process: None, inherited: Vec::new(), threads: Vec::new(), ended_ns: 0, listed_ns: 0 }
    }

    #[test]
    fn time_of_ended_threads_stays() {
        let mut of = empty();
        let mut at = 0;
        let mut read = |now: &[(u32, Option<u64>)]| {
            at += 10;
            of.runnable_ns(now, &(at..at + 1))
        };
        assert_eq!(read(&[(1, None)]), None, "the kernel does not say");
        assert_eq!(read(&[(1, Some(10)), (5, Some(7)), (9, Some(1))]), Some(18));
        assert_eq!(read(&[(1, Some(12)), (9, Some(1))]), Some(20), "5 has ended");
        assert_eq!(read(&[(1, Some(12)), (9, None)]), Some(20), "9 is about to");
        assert_eq!(read(&[(1, Some(2))]), Some(20), "another thread has number 1, or none");
        assert_eq!(read(&[]), Some(20));
    }

    #[test]
    fn readings_at_once_count_nothing_twice() {
        let mut of = empty();
        assert_eq!(of.runnable_ns(&[(1, Some(10)), (5, Some(7))], &(10..11)), Some(17));
        assert_eq!(of.runnable_ns(&[(1, Some(12))], &(20..22)), Some(19), "5 has ended");
        assert_eq!(of.runnable_ns(&[(1, Some(11)), (5, Some(7))], &(19..21)), Some(19), "an older list");
        assert_eq!(of.runnable_ns(&[(1, Some(11))], &(30..31)), Some(19), "read earlier, listed later");
        assert_eq!(of.runnable_ns(&[(1, Some(15))], &(40..41)), Some(22));
    }
}
