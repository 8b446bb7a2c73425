//! Memory of earlier readings of the process, so that no counter decreases, and none includes
//! another process.
//!
//! - **Threads that ended** take their time with them. A reading adds it as the last reading saw
//!   it: a thread that no reading has seen is in no sum.
//! - **A forked child** continues the counts of its parent's groups. They belong to the parent: a
//!   sum over both processes would contain them twice, and the child's CPU time begins at zero. So
//!   the child's figures are those since it was first read, or counted.
//!
//! - **A false clock** is detected between readings ([`clock_fault`]). From then on the CPU time of
//!   groups is refused, because their totals contain the false times.
//! - **Tasks that outlive their requests** are those that earlier readings have found without any.
//! - **Spawn sites** whose number of tasks keeps growing are those that it has grown for in earlier
//!   readings.
//!
//! # Locking
//!
//! One lock, which forks wait for, held while each thread's and each group's figures are processed.
//! The value belongs to one process: a child begins again at its first reading.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::ops::Range;

use dormouse_events::Event;
use dormouse_protocol::{CountedCpu, GroupRow, LongLivedRow, Outliving, SpawnSites, Stat};
use dormouse_sys::process::cgroup::ControlGroup;
use dormouse_sys::process::fork::{Mutex, Phase};
use dormouse_sys::process::identity;

use super::outliving::OutlivingReadings;
use super::spawn_readings::SpawnReadings;
use crate::core::clock_fault::clock_fault;
use crate::core::rows::group_rows;

static HISTORY: Mutex<History> = Mutex::new(Phase::Readings, History::of(None, Vec::new()));

/// Once the process has used this much CPU time since the earlier reading, the present one takes
/// its place. So a clock's jump shows, however much CPU time was used before it.
const STRETCH_NS: u64 = 1_000_000_000;

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
    /// CPU time at an earlier reading. That of the process was read before that of the groups.
    earlier: CountedCpu,
    /// Why the CPU time of groups is refused.
    refused: Option<&'static str>,
    /// Which tasks outlive their requests.
    outliving: OutlivingReadings,
    /// The numbers of tasks of spawn sites.
    spawn_readings: SpawnReadings,
    /// The control group in which the process was seen last.
    control_group: Option<ControlGroup>,
}

/// Somebody is about to count in this process, or to read it.
pub(crate) fn begin() {
    let process = identity::number();
    let is_known = HISTORY.lock().map_or(true, |history| history.process == process);
    if is_known {
        return;
    }
    // Not under the lock: a reading takes its time.
    let (inherited, outliving) = if identity::forks() > 0 {
        (group_rows(), OutlivingReadings::inherited())
    } else {
        (Vec::new(), OutlivingReadings::new())
    };
    if let Ok(mut history) = HISTORY.lock()
        && history.process != process
    {
        *history = History { outliving, ..History::of(process, inherited) };
    }
}

/// The control group in which the process was seen last, for a reader who gives it back.
pub(super) fn take_control_group() -> Option<ControlGroup> {
    HISTORY.lock().ok().and_then(|mut history| history.control_group.take())
}

pub(super) fn keep_control_group(group: ControlGroup) {
    if let Ok(mut history) = HISTORY.lock() {
        history.control_group = Some(group);
    }
}

/// Reads the tasks of all groups, and returns those with parts that outlive their requests.
pub(super) fn outliving() -> BTreeMap<u32, Outliving> {
    begin();
    HISTORY.lock().map(|mut history| history.outliving.read()).unwrap_or_default()
}

/// Reads the numbers of tasks of all spawn sites, if that is due.
pub(super) fn read_spawns() {
    begin();
    if let Ok(mut history) = HISTORY.lock() {
        history.spawn_readings.read();
    }
}

/// The spawn sites, and which of them keep growing.
pub(super) fn spawn_sites() -> SpawnSites {
    read_spawns();
    HISTORY.lock().map(|history| history.spawn_readings.sites()).unwrap_or_default()
}

/// Turns the figures of a reading into those of this process since it began, and refuses figures
/// that cannot be true. The threads were listed during `listed`, if they could be. The process had
/// used `begun_cpu_ns` before the groups were read.
pub(crate) fn settle(stat: &mut Stat, listed: Option<&Range<u64>>, begun_cpu_ns: u64) {
    let Ok(mut history) = HISTORY.lock() else { return };
    let inherited: HashMap<u32, &GroupRow> = history.inherited.iter().map(|row| (row.id, row)).collect();
    for group in &mut stat.groups {
        if let Some(before) = inherited.get(&group.id) {
            // The parent has not counted events that the child alone counts.
            let mut counts = std::mem::take(&mut group.counts);
            for count in &mut counts {
                if let Some(before) = before.counts.iter().find(|before| before.event == count.event) {
                    *count = count.since(before);
                }
            }
            *group = GroupRow { counts, ..group.since(before) };
            // Tasks of other threads are in the parent alone.
            group.alive = group.started.saturating_sub(group.finished);
            group.long_lived = group.long_lived.zip(before.long_lived).map(|(now, it)| LongLivedRow {
                tasks: now.tasks.saturating_sub(it.tasks),
                // Tasks of the parent are in that mean.
                age_ns: now.age_ns.filter(|_| it.tasks == 0),
            });
        }
    }
    let attributed = stat.groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.cpu_ns));
    stat.unattributed_cpu_ns = stat.process_cpu_ns.saturating_sub(attributed);
    let now = stat.threads.iter().map(|thread| (thread.tid, thread.runnable_ns));
    stat.runnable_ns = history.runnable_ns(&now.collect::<Vec<_>>(), listed);
    let now = CountedCpu { process_ns: stat.process_cpu_ns, groups_ns: attributed };
    if let Some(why) = history.refusal(now, begun_cpu_ns) {
        refuse(stat, why);
    }
}

/// Takes the CPU time of groups out of a reading.
fn refuse(stat: &mut Stat, why: &'static str) {
    stat.cpu_refused = Some(why.into());
    stat.unattributed_cpu_ns = stat.process_cpu_ns;
    stat.counted = None;
    for group in &mut stat.groups {
        group.cpu_ns = 0;
        group.counts.retain(|count| count.event != Event::TASK_CLOCK.name());
    }
}

impl History {
    const fn of(process: Option<NonZeroU64>, inherited: Vec<GroupRow>) -> Self {
        let earlier = CountedCpu { process_ns: 0, groups_ns: 0 };
        Self {
            process,
            inherited,
            threads: Vec::new(),
            ended_ns: 0,
            listed_ns: 0,
            earlier,
            refused: None,
            outliving: OutlivingReadings::new(),
            spawn_readings: SpawnReadings::new(),
            control_group: None,
        }
    }

    /// Compares a reading with an earlier one; the process had used `begun_cpu_ns` before it.
    fn refusal(&mut self, now: CountedCpu, begun_cpu_ns: u64) -> Option<&'static str> {
        let CountedCpu { process_ns, groups_ns } = now.since(self.earlier);
        self.refused = self.refused.or_else(|| clock_fault(groups_ns, process_ns));
        if process_ns >= STRETCH_NS {
            self.earlier = CountedCpu { process_ns: begun_cpu_ns, ..now };
        }
        self.refused
    }

    /// The time of all threads, including those that have ended; `None` if the kernel reports it
    /// for none.
    ///
    /// Two threads may read at once. A list that was begun before the last one was finished might
    /// contain threads that are known to have ended: it changes nothing, and its reader gets the
    /// sum so far. So does a reader who could not list the threads. A thread has at least the time
    /// that another reader has seen. (So the next thread with the same id counts once it has waited
    /// longer than the one before.)
    fn runnable_ns(&mut self, now: &[(u32, Option<u64>)], listed: Option<&Range<u64>>) -> Option<u64> {
        if let Some(listed) = listed.filter(|listed| listed.start >= self.listed_ns) {
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
        History::of(None, Vec::new())
    }

    #[test]
    fn a_clock_that_jumps_is_found() {
        const SECOND: u64 = 1_000_000_000;
        let mut history = empty();
        // An hour, in which groups had half of it; a reader that was late each time.
        for n in 1..=3600 {
            let now = CountedCpu { process_ns: n * SECOND, groups_ns: n * SECOND / 2 };
            assert_eq!(history.refusal(now, now.process_ns - SECOND / 2), None, "{n}");
        }
        // A clock jumps by a minute: less than the hour, and more than was used since.
        let now = CountedCpu { process_ns: 3601 * SECOND, groups_ns: 1860 * SECOND };
        assert!(history.refusal(now, now.process_ns).is_some());
        // The refusal stays, because the totals keep the false time.
        let later = CountedCpu { process_ns: 9000 * SECOND, ..now };
        assert!(history.refusal(later, later.process_ns).is_some());
    }

    #[test]
    fn time_of_ended_threads_stays() {
        let mut of = empty();
        let mut at = 0;
        let mut read = |now: &[(u32, Option<u64>)]| {
            at += 10;
            of.runnable_ns(now, Some(&(at..at + 1)))
        };
        assert_eq!(read(&[(1, None)]), None, "the kernel does not say");
        assert_eq!(read(&[(1, Some(10)), (5, Some(7)), (9, Some(1))]), Some(18));
        assert_eq!(read(&[(1, Some(12)), (9, Some(1))]), Some(20), "5 has ended");
        assert_eq!(read(&[(1, Some(12)), (9, None)]), Some(20), "9 is about to");
        assert_eq!(read(&[(1, Some(2))]), Some(20), "another thread has number 1, or none");
        assert_eq!(read(&[]), Some(20));
    }

    #[test]
    fn threads_that_cannot_be_listed_go_on() {
        let mut of = empty();
        let threads = [(1, Some(10)), (5, Some(7))];
        assert_eq!(of.runnable_ns(&threads, Some(&(10..11))), Some(17));
        assert_eq!(of.runnable_ns(&[], None), Some(17), "no descriptor is free");
        assert_eq!(of.runnable_ns(&threads, Some(&(30..31))), Some(17));
    }

    #[test]
    fn readings_at_once_count_nothing_twice() {
        let mut of = empty();
        assert_eq!(of.runnable_ns(&[(1, Some(10)), (5, Some(7))], Some(&(10..11))), Some(17));
        assert_eq!(of.runnable_ns(&[(1, Some(12))], Some(&(20..22))), Some(19), "5 has ended");
        assert_eq!(
            of.runnable_ns(&[(1, Some(11)), (5, Some(7))], Some(&(19..21))),
            Some(19),
            "an older list"
        );
        assert_eq!(of.runnable_ns(&[(1, Some(11))], Some(&(30..31))), Some(19), "read earlier, listed later");
        assert_eq!(of.runnable_ns(&[(1, Some(15))], Some(&(40..41))), Some(22));
    }
}
