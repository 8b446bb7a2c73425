//! What two snapshots say about the time between them.

use std::cmp::Ordering;
use std::collections::HashMap;

use dormouse::wire::GroupStat;
use serde::Serialize;

use crate::sample::Sample;
use crate::sample::tasks::Thread;

/// CPU time in all, and the share of one CPU over the interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Cpu {
    pub(crate) cpu_percent: f64,
    pub(crate) cpu_ns: u64,
}

/// One group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct GroupRow {
    pub(crate) id: u32,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) cpu: Cpu,
    pub(crate) polls_per_s: f64,
    pub(crate) polls: u64,
    pub(crate) alive: u64,
    pub(crate) started: u64,
    pub(crate) finished: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<Rate>,
}

/// An event of a group or a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Rate {
    pub(crate) event: String,
    /// Null where it is not counted.
    pub(crate) per_s: Option<f64>,
}

/// One thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ThreadRow {
    pub(crate) tid: u32,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) cpu: Cpu,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) events: Vec<Rate>,
}

/// A process between two snapshots.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct View {
    /// `CLOCK_MONOTONIC` of the later snapshot.
    pub(crate) time_mono_ns: u64,
    pub(crate) interval_ns: u64,
    pub(crate) process: Cpu,
    /// What only an agent knows.
    #[serde(flatten)]
    pub(crate) inside: Option<Inside>,
    pub(crate) threads: Vec<ThreadRow>,
    /// The events with a column of their own, in the order of the rows'.
    #[serde(skip)]
    pub(crate) events: Vec<String>,
}

/// Of a process with dormouse in it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Inside {
    /// Charged to no group.
    pub(crate) unattributed: Cpu,
    pub(crate) groups: Vec<GroupRow>,
    pub(crate) keys_on: usize,
    #[serde(rename = "records_dropped")]
    pub(crate) dropped: u64,
}

impl View {
    /// What happened from `before` to `after`, with these events. Rows are in the order of CPU use.
    pub(crate) fn between(before: &Sample, after: &Sample, events: &[String]) -> View {
        let interval_ns = after.mono_ns.saturating_sub(before.mono_ns);
        let cpu = |before: u64, after: u64| Cpu {
            // A total that a snapshot shows a little smaller than the last one did is no negative use.
            cpu_percent: ratio(after.saturating_sub(before), interval_ns) * 100.0,
            cpu_ns: after,
        };
        let rates = |of: &dyn Fn(&str) -> Option<(u64, u64)>| -> Vec<Rate> {
            let per_s = |(before, after): (u64, u64)| ratio(after.saturating_sub(before), interval_ns) * 1e9;
            events.iter().map(|event| Rate { event: event.clone(), per_s: of(event).map(per_s) }).collect()
        };
        let old_groups: HashMap<u32, _> =
            before.inside.iter().flat_map(|inside| &inside.groups).map(|group| (group.id, group)).collect();
        let old_unattributed = before.inside.as_ref().map_or(0, |inside| inside.unattributed_ns);
        let inside = after.inside.as_ref().map(|after| {
            let mut groups: Vec<GroupRow> = after
                .groups
                .iter()
                .map(|group| {
                    let (cpu_ns, entries) =
                        old_groups.get(&group.id).map_or((0, 0), |old| (old.cpu_ns, old.entries));
                    GroupRow {
                        id: group.id,
                        name: group.name.clone(),
                        cpu: cpu(cpu_ns, group.cpu_ns),
                        polls_per_s: ratio(group.entries.saturating_sub(entries), interval_ns) * 1e9,
                        polls: group.entries,
                        alive: group.alive,
                        started: group.started,
                        finished: group.finished,
                        events: rates(&|event| {
                            let before = old_groups.get(&group.id).and_then(|old| count(old, event));
                            Some((before.unwrap_or(0), count(group, event)?))
                        }),
                    }
                })
                .collect();
            groups.sort_by(|a, b| by_use(a.cpu, b.cpu).then_with(|| a.name.cmp(&b.name)));
            Inside {
                unattributed: cpu(old_unattributed, after.unattributed_ns),
                groups,
                keys_on: after.keys_on,
                dropped: after.dropped,
            }
        });
        // A thread id may be given again: a smaller total is another thread.
        let old_threads: HashMap<u32, &Thread> =
            before.threads.iter().map(|thread| (thread.tid, thread)).collect();
        let mut threads: Vec<ThreadRow> = after
            .threads
            .iter()
            .map(|thread| {
                let old = old_threads.get(&thread.tid).filter(|old| old.cpu_ns <= thread.cpu_ns);
                ThreadRow {
                    tid: thread.tid,
                    name: thread.name.clone(),
                    cpu: cpu(old.map_or(0, |old| old.cpu_ns), thread.cpu_ns),
                    events: rates(&|event| {
                        let before = old.and_then(|old| old.usage?.count(event));
                        Some((before.unwrap_or(0), thread.usage?.count(event)?))
                    }),
                }
            })
            .collect();
        threads.sort_by(|a, b| by_use(a.cpu, b.cpu).then_with(|| a.tid.cmp(&b.tid)));
        View {
            time_mono_ns: after.mono_ns,
            interval_ns,
            process: cpu(before.cpu_ns, after.cpu_ns),
            inside,
            threads,
            events: events.to_vec(),
        }
    }

    /// The groups, if there are any.
    pub(crate) fn groups(&self) -> &[GroupRow] {
        self.inside.as_ref().map_or(&[], |inside| &inside.groups)
    }
}

/// How often a group's event has happened so far.
fn count(group: &GroupStat, event: &str) -> Option<u64> {
    group.counts.iter().find(|count| count.event == event).map(|count| count.value)
}

/// More use first, then more time in all.
fn by_use(a: Cpu, b: Cpu) -> Ordering {
    b.cpu_percent.total_cmp(&a.cpu_percent).then(b.cpu_ns.cmp(&a.cpu_ns))
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use dormouse::wire::{Count, Stat, ThreadStat};

    fn group(id: u32, name: &str, cpu_ns: u64, entries: u64) -> GroupStat {
        let (alive, started, finished, counts) = (1, 3, 2, Vec::new());
        GroupStat { id, name: name.into(), cpu_ns, entries, alive, started, finished, counts }
    }

    fn thread(tid: u32, name: &str, cpu_ns: u64) -> ThreadStat {
        ThreadStat { tid, name: name.into(), cpu_ns }
    }

    /// Two snapshots, half a second apart.
    pub(crate) fn pair() -> (Sample, Sample) {
        let before = Stat {
            mono_ns: 1_000_000_000,
            took_ns: 0,
            process_cpu_ns: 100_000_000,
            unattributed_cpu_ns: 30_000_000,
            groups: vec![group(1, "GET /menu", 50_000_000, 100), group(2, "idle", 20_000_000, 7)],
            threads: vec![thread(10, "main", 90_000_000), thread(11, "reused", 80_000_000)],
            keys_on: 2,
            dropped: 0,
            clock: None,
        };
        let after = Stat {
            mono_ns: 1_500_000_000,
            took_ns: 0,
            process_cpu_ns: 600_000_000,
            unattributed_cpu_ns: 29_000_000,
            groups: vec![
                group(1, "GET /menu", 150_000_000, 1_100),
                group(2, "idle", 20_000_000, 7),
                group(3, "POST /brew", 401_000_000, 50),
            ],
            threads: vec![thread(10, "main", 500_000_000), thread(11, "worker", 100_000)],
            keys_on: 3,
            dropped: 4,
            clock: None,
        };
        (Sample::of_agent(before), Sample::of_agent(after))
    }

    #[test]
    fn rates_are_of_the_interval_alone() {
        let (before, after) = pair();
        let view = View::between(&before, &after, &[]);
        assert_eq!(view.interval_ns, 500_000_000);
        assert_eq!(view.process, Cpu { cpu_percent: 100.0, cpu_ns: 600_000_000 });
        let inside = view.inside.as_ref().expect("an agent told");
        assert_eq!(inside.unattributed, Cpu { cpu_percent: 0.0, cpu_ns: 29_000_000 }, "never negative");
        let groups: Vec<_> =
            view.groups().iter().map(|g| (g.name.as_str(), g.cpu.cpu_percent, g.polls_per_s)).collect();
        assert_eq!(
            groups,
            [
                ("POST /brew", 401_000_000.0 / 5e8 * 100.0, 100.0),
                ("GET /menu", 20.0, 2000.0),
                ("idle", 0.0, 0.0)
            ]
        );
        let threads: Vec<_> = view.threads.iter().map(|t| (t.tid, t.cpu.cpu_percent)).collect();
        assert_eq!(threads, [(10, 82.0), (11, 0.02)], "a thread id that was given again starts anew");
    }

    #[test]
    fn an_event_is_a_rate_where_it_is_counted_and_else_not_zero() {
        let (mut before, mut after) = pair();
        let count = |value| vec![Count { event: "sneezes".into(), value, enabled_ns: 1, running_ns: 1 }];
        before.inside.as_mut().unwrap().groups[0].counts = count(10);
        after.inside.as_mut().unwrap().groups[0].counts = count(35);
        let view = View::between(&before, &after, &["sneezes".into()]);
        let rates: Vec<_> =
            view.groups().iter().map(|group| (group.name.as_str(), group.events[0].per_s)).collect();
        assert_eq!(rates, [("POST /brew", None), ("GET /menu", Some(50.0)), ("idle", None)]);
        assert!(view.threads.iter().all(|thread| thread.events[0].per_s.is_none()));
    }

    #[test]
    fn no_time_between_snapshots_is_no_division_by_zero() {
        let (before, _) = pair();
        let view = View::between(&before, &before, &[]);
        assert!(view.groups().iter().all(|group| group.polls_per_s == 0.0 && group.cpu.cpu_percent == 0.0));
    }
}
