//! The account: how much groups, the process, and our own threads have used so far.
//!
//! # Safety
//!
//! The unsafe code is one call of the C library, with a pointer for its result.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use dormouse_clock::{process_cpu_ns, process_exact};
use dormouse_events::Event;
use dormouse_profile::ProfileKind;
use dormouse_protocol::GroupRow;
use dormouse_sys::{perf, signals};

use crate::core::asleep;
use crate::core::group::Group;
use crate::core::rows::group_rows;

/// The account at one moment; or, as the difference of two, what was used in between.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Account {
    /// By group, in order of creation.
    pub(super) groups: Vec<GroupRow>,
    /// Whether groups are counted.
    pub(super) is_counted: bool,
    /// The use of the process, in the unit of the main column; `None` if it is unknown.
    pub(super) process: Option<u64>,
    /// By threads of ours, likewise.
    pub(super) own: u64,
    /// How often counts had been suspended by then.
    pub(super) stopped: u64,
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
        let groups = if kind == ProfileKind::Cpu {
            Group::read_all(false).into_iter().map(|(row, _)| row).collect()
        } else {
            group_rows()
        };
        let own =
            if kind == ProfileKind::Cpu { signals::own_cpu_ns(dormouse_clock::thread_cpu_ns_of) } else { 0 };
        let process = match kind {
            ProfileKind::Cpu => Some(cpu_of_process()),
            ProfileKind::Faults => Some(faults_of_process()),
            _ => None,
        };
        let is_counted = asleep::counts_asleep().is_none();
        Self { groups, is_counted, process, own, stopped: asleep::counts_stopped() }
    }

    /// The use of a group by column of values; `None` if the account lacks the column.
    pub(super) fn columns(&self, kind: ProfileKind, group: &GroupRow) -> [Option<u64>; 2] {
        events(kind).map(|event| {
            let event = event.filter(|_| self.is_counted)?;
            if event == Event::TASK_CLOCK {
                return Some(group.cpu_ns);
            }
            let count = group.counts.iter().find(|count| count.event == event.name());
            Some(count.map_or(0, |count| count.value))
        })
    }

    /// The use since `before`. Where counts stood still meanwhile, nothing is known of groups.
    pub(super) fn since(&self, before: &Self) -> Self {
        let process = self.process.map(|now| now.saturating_sub(before.process.unwrap_or(0)));
        let groups = GroupRow::all_since(&self.groups, &before.groups);
        let is_counted = before.is_counted && self.stopped == before.stopped;
        Self { groups, is_counted, process, own: self.own.saturating_sub(before.own), ..*self }
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
