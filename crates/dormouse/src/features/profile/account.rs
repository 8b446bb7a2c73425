//! The account: how much groups, the process, and our own threads have used so far.
//!
//! # Safety
//!
//! The unsafe code is one call of the C library, with a place for its answer.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use dormouse_clock::{process_cpu_ns, process_exact};
use dormouse_events::{Count, Event};
use dormouse_profile::ProfileKind;
use dormouse_sys::{perf, signals};

use crate::core::group::{Group, GroupStat};

/// The account at one moment; or, as the difference of two, what was used in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Account {
    /// By group, in order of creation.
    pub(super) groups: Vec<Used>,
    /// By the process, in the unit of the main column; `None`: nobody knows.
    pub(super) process: Option<u64>,
    /// By threads of ours, likewise.
    pub(super) own: u64,
}

/// The use of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) id: u32,
    pub(super) name: &'static str,
    /// By column of values; `None`: the column is not in the account.
    pub(super) columns: [Option<u64>; 2],
}

/// The events that are the columns of a kind.
pub(super) fn events(kind: ProfileKind) -> [Option<Event>; 2] {
    match kind {
        ProfileKind::Cpu => [None, Some(Event::TASK_CLOCK)],
        ProfileKind::Alloc => [Some(Event::ALLOC_COUNT), Some(Event::ALLOC_BYTES)],
        ProfileKind::Faults => [None, Some(Event::PAGE_FAULTS)],
        ProfileKind::Wall => [None, None],
    }
}

impl Account {
    /// Groups first, the process last: it has used at least what its groups have.
    pub(super) fn read(kind: ProfileKind) -> Self {
        let columns = |stat: &GroupStat, counts: &[Count]| {
            events(kind).map(|event| {
                let event = event?;
                if event == Event::TASK_CLOCK {
                    return Some(stat.cpu.as_nanos() as u64);
                }
                Some(counts.iter().find(|count| count.event == event).map_or(0, |count| count.value))
            })
        };
        let all = Group::read_all(kind != ProfileKind::Cpu);
        let row = |(stat, counts): &(GroupStat, Vec<Count>)| Used {
            id: stat.id,
            name: stat.name,
            columns: columns(stat, counts),
        };
        let groups = all.iter().map(row).collect();
        let own =
            if kind == ProfileKind::Cpu { signals::own_cpu_ns(dormouse_clock::thread_cpu_ns_of) } else { 0 };
        let process = match kind {
            ProfileKind::Cpu => Some(cpu_of_process()),
            ProfileKind::Faults => Some(faults_of_process()),
            _ => None,
        };
        Self { groups, process, own }
    }

    /// Leaves what is known where nobody counts.
    pub(super) fn is_not_counted(&mut self) {
        self.groups.iter_mut().for_each(|group| group.columns = [None; 2]);
    }

    /// The use since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then.unwrap_or(0)));
        let used = |now: &Used| {
            let then = before.groups.iter().find(|then| then.id == now.id);
            let then = then.map_or([None; 2], |then| then.columns);
            let columns = [less(now.columns[0], then[0]), less(now.columns[1], then[1])];
            Used { columns, ..*now }
        };
        Self {
            groups: self.groups.iter().map(used).collect(),
            process: less(self.process, before.process),
            own: self.own.saturating_sub(before.own),
        }
    }
}

fn cpu_of_process() -> u64 {
    // A filter may end the process for opening the list of threads. Without the list the kernel's
    // answer is behind by a tick for each thread that runs.
    if perf::is_filtered() { process_cpu_ns() } else { process_exact().unwrap_or_else(|_| process_cpu_ns()) }
}

fn faults_of_process() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid place. The call fails for an unknown `who` or a bad address only;
    // then `usage` stays zero.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt.cast_unsigned() + usage.ru_majflt.cast_unsigned()
}
