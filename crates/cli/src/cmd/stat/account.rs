//! The use of a process over some time, as rows.

use std::cmp::Reverse;

use dormouse_protocol::figures::{CallSpan, GroupSpan, RuntimeSpan};
use dormouse_protocol::{EventInfo, Stat};

use crate::render::row::Row;
use crate::render::threads::ThreadSpan;
use crate::sample::delta::Delta;
use crate::sample::events::TASK_CLOCK;
use crate::sample::source::Source;
use crate::sample::totals::whole;

/// Which time the figures are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Interval,
    Total {
        /// The process is gone.
        has_ended: bool,
    },
}

/// The rows of a process and its parts, the busiest first.
pub(super) struct Account<'a> {
    pub(super) source: &'a Source,
    pub(super) delta: &'a Delta,
    pub(super) process: Row,
    /// Work in no group; `None` for a process without dormouse.
    pub(super) unattributed: Option<Row>,
    pub(super) groups: Vec<Row>,
    /// Outgoing calls, those that took the most time first; `None` if they were not asked for.
    pub(super) calls: Option<Vec<Row>>,
    pub(super) runtimes: Vec<Row>,
    pub(super) threads: Vec<Row>,
}

impl<'a> Account<'a> {
    pub(super) fn of(source: &'a Source, delta: &'a Delta) -> Account<'a> {
        let (cpu_ns, elapsed_ns, inside_ns) = (delta.cpu_ns, delta.elapsed_ns, delta.inside_ns);
        let clock = whole(TASK_CLOCK, cpu_ns, elapsed_ns);
        let kernels = delta.usage.iter().flat_map(|usage| usage.counts(elapsed_ns));
        let groups = delta.inside.iter().flat_map(|inside| {
            let is_refused = inside.cpu_refused.is_some();
            inside.groups.iter().map(move |group| {
                Row::group(&GroupSpan { interval_ns: inside_ns, ..GroupSpan::of(group, is_refused) })
            })
        });
        let runtimes = delta.inside.iter().flat_map(|inside| {
            inside.runtimes.iter().map(|row| Row::runtime(&RuntimeSpan { row, interval_ns: inside_ns }))
        });
        let alive = delta.threads.iter().map(|thread| (thread, false));
        let threads = alive.chain(delta.ended.iter().map(|thread| (thread, true)));
        let mut process = Row::sum("(process)", cpu_ns, cpu_ns, elapsed_ns, false);
        process.counts = std::iter::once(clock).chain(kernels).collect();
        let mut account = Account {
            source,
            delta,
            process,
            unattributed: delta.inside.as_ref().map(|inside| {
                let ns = inside.unattributed_cpu_ns;
                let is_refused = inside.cpu_refused.is_some();
                let mut row = Row::sum("(unattributed)", ns, ns, inside_ns, is_refused);
                row.counts.extend((!is_refused).then(|| whole(TASK_CLOCK, ns, inside_ns)));
                row
            }),
            groups: groups.collect(),
            calls: source.has_calls.then(|| delta.inside.as_ref().map(calls).unwrap_or_default()),
            runtimes: runtimes.collect(),
            threads: threads
                .map(|(thread, has_ended)| {
                    let (total, recent, interval_ns) = (thread, thread, elapsed_ns);
                    Row::thread(&ThreadSpan { total, recent, has_ended, interval_ns })
                })
                .collect(),
        };
        account.groups.sort_by(Row::by_use);
        account.threads.sort_by(Row::by_use);
        account
    }

    /// The events with a column of their own: CPU time has one anyway.
    pub(super) fn events(&self) -> impl Iterator<Item = &'a EventInfo> {
        let counted = &self.source.counted;
        counted.counted.iter().chain(&counted.refused).filter(|event| event.name != TASK_CLOCK)
    }
}

/// The rows of calls, those that took the most time first.
fn calls(inside: &Stat) -> Vec<Row> {
    let mut calls: Vec<_> = inside.calls.iter().collect();
    calls.sort_by_key(|row| Reverse(row.times.sum_ns));
    let name = |id: u32| inside.groups.iter().find(|group| group.id == id).map(|group| group.name.as_ref());
    calls.into_iter().map(|row| Row::call(&CallSpan { row, group: name(row.group) })).collect()
}
