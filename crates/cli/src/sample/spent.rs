//! What a process used between two samples.

use std::collections::HashMap;

use dormouse::wire::Count;

use super::Sample;
use super::events::TASK_CLOCK;
use super::tasks::{Thread, Usage, whole};

/// From one sample to a later one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spent {
    pub(crate) elapsed_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) usage: Option<Usage>,
    pub(crate) max_rss_bytes: Option<u64>,
    pub(crate) inside: Option<SpentInside>,
    pub(crate) threads: Vec<SpentThread>,
    /// CPU time of threads that no sample shows at both ends of their lives.
    pub(crate) others_ns: u64,
}

/// Of an agent's groups.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpentInside {
    /// The groups' time and the process's may begin and end apart by so much.
    pub(crate) skew_ns: u64,
    pub(crate) unattributed_ns: u64,
    pub(crate) groups: Vec<SpentGroup>,
}

/// One group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpentGroup {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) cpu_ns: u64,
    pub(crate) polls: u64,
    pub(crate) alive: u64,
    pub(crate) started: u64,
    pub(crate) finished: u64,
    pub(crate) counts: Vec<Count>,
}

/// One thread.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SpentThread {
    pub(crate) tid: u32,
    pub(crate) name: String,
    pub(crate) cpu_ns: u64,
    pub(crate) usage: Option<Usage>,
    pub(crate) has_ended: bool,
}

/// Samples from one on, with the threads that have ended since.
#[derive(Debug)]
pub(crate) struct Window {
    first: Sample,
    last: Sample,
    /// As they were seen last.
    ended: Vec<Thread>,
}

impl Window {
    /// Begins at `first`.
    pub(crate) fn new(first: Sample) -> Window {
        Window { last: first.clone(), first, ended: Vec::new() }
    }

    /// Begins with the process, at `mono_ns`, and goes on to `sample`.
    pub(crate) fn since_start(mono_ns: u64, sample: Sample) -> Window {
        Window { first: Sample::nothing(mono_ns), last: sample, ended: Vec::new() }
    }

    /// Goes on to `sample`.
    pub(crate) fn add(&mut self, sample: Sample) {
        let now: HashMap<_, u64> = sample.threads.iter().map(|thread| (key(thread), thread.cpu_ns)).collect();
        let old = std::mem::replace(&mut self.last, sample);
        // A smaller total is another thread with the same number.
        let ended = |thread: &Thread| now.get(&key(thread)).is_none_or(|&ns| ns < thread.cpu_ns);
        self.ended.extend(old.threads.into_iter().filter(ended));
    }

    /// The last sample.
    pub(crate) fn last(&self) -> &Sample {
        &self.last
    }

    /// From the first sample to the last.
    pub(crate) fn spent(&self) -> Spent {
        let (first, last) = (&self.first, &self.last);
        let before: HashMap<_, &Thread> = first.threads.iter().map(|thread| (key(thread), thread)).collect();
        let of_thread = |thread: &Thread, has_ended| {
            let before = before.get(&key(thread)).filter(|before| before.cpu_ns <= thread.cpu_ns);
            let usage_before = before.and_then(|before| before.usage).unwrap_or_default();
            SpentThread {
                tid: thread.tid,
                name: thread.name.clone(),
                cpu_ns: thread.cpu_ns - before.map_or(0, |before| before.cpu_ns),
                usage: thread.usage.map(|usage| usage.since(usage_before)),
                has_ended,
            }
        };
        let alive = last.threads.iter().map(|thread| of_thread(thread, false));
        let ended = self.ended.iter().map(|thread| of_thread(thread, true));
        let mut threads: Vec<SpentThread> = alive.chain(ended).collect();
        threads.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.tid.cmp(&b.tid)));

        let cpu_ns = last.cpu_ns.saturating_sub(first.cpu_ns);
        let usage = last.usage.map(|usage| {
            let mut usage = usage.since(first.usage.unwrap_or_default());
            // The process's own account of switches is that of the threads that are.
            let switches =
                threads.iter().filter_map(|thread| thread.usage).fold(Usage::default(), Usage::plus);
            (usage.voluntary, usage.involuntary) = (switches.voluntary, switches.involuntary);
            usage
        });
        Spent {
            elapsed_ns: last.mono_ns.saturating_sub(first.mono_ns),
            cpu_ns,
            usage,
            max_rss_bytes: last.max_rss_bytes,
            inside: self.inside(),
            others_ns: cpu_ns.saturating_sub(threads.iter().map(|thread| thread.cpu_ns).sum()),
            threads,
        }
    }

    fn inside(&self) -> Option<SpentInside> {
        let last = self.last.inside.as_ref()?;
        let first = self.first.inside.as_ref();
        let before: HashMap<u32, _> = first.iter().flat_map(|f| &f.groups).map(|g| (g.id, g)).collect();
        let mut groups: Vec<SpentGroup> = last
            .groups
            .iter()
            .map(|group| {
                let before = before.get(&group.id).copied();
                let since = |of: fn(&dormouse::wire::GroupStat) -> u64| {
                    of(group) - before.map_or(0, of).min(of(group))
                };
                SpentGroup {
                    id: group.id,
                    name: group.name.clone(),
                    cpu_ns: since(|g| g.cpu_ns),
                    polls: since(|g| g.entries),
                    alive: group.alive,
                    started: since(|g| g.started),
                    finished: since(|g| g.finished),
                    counts: counts(&group.counts, before.map_or(&[], |before| &before.counts)),
                }
            })
            .collect();
        groups.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.name.cmp(&b.name)));
        let unattributed = first.map_or(0, |first| first.unattributed_ns);
        let unattributed_ns = last.unattributed_ns.saturating_sub(unattributed);
        let skew_ns = first.map_or(0, |first| first.took_ns).max(last.took_ns);
        Some(SpentInside { skew_ns, unattributed_ns, groups })
    }
}

impl Spent {
    /// How often an event happened in the whole process, where the kernel tells.
    pub(crate) fn count(&self, event: &str) -> Option<Count> {
        let value = match event {
            TASK_CLOCK => self.cpu_ns,
            _ => self.usage?.count(event)?,
        };
        Some(whole(event, value, self.elapsed_ns))
    }
}

/// A smaller count than before began anew.
fn counts(after: &[Count], before: &[Count]) -> Vec<Count> {
    let since = |count: &Count| {
        let zero = Count { event: String::new(), value: 0, enabled_ns: 0, running_ns: 0 };
        let old =
            before.iter().find(|old| old.event == count.event && old.value <= count.value).unwrap_or(&zero);
        Count {
            event: count.event.clone(),
            value: count.value - old.value,
            enabled_ns: count.enabled_ns.saturating_sub(old.enabled_ns),
            running_ns: count.running_ns.saturating_sub(old.running_ns),
        }
    };
    after.iter().map(since).collect()
}

fn key(thread: &Thread) -> (u32, u64) {
    (thread.tid, thread.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Inside;
    use dormouse::wire::GroupStat;

    fn thread(tid: u32, start_ticks: u64, cpu_ns: u64, voluntary: u64) -> Thread {
        let usage = Some(Usage { voluntary, ..Usage::default() });
        Thread { tid, start_ticks, name: format!("t{start_ticks}"), cpu_ns, usage }
    }

    fn sample(seconds: u64, cpu_ns: u64, threads: Vec<Thread>) -> Sample {
        let usage = threads.iter().filter_map(|thread| thread.usage).fold(Usage::default(), Usage::plus);
        Sample { cpu_ns, usage: Some(usage), threads, ..Sample::nothing(seconds * 1_000_000_000) }
    }

    fn cpu(spent: &Spent) -> Vec<(&str, u64, bool)> {
        spent.threads.iter().map(|thread| (thread.name.as_str(), thread.cpu_ns, thread.has_ended)).collect()
    }

    #[test]
    fn a_thread_that_has_ended_keeps_what_it_used_as_it_was_seen_last() {
        let mut window = Window::new(sample(0, 50, vec![thread(1, 10, 30, 3), thread(2, 11, 20, 2)]));
        window.add(sample(1, 90, vec![thread(1, 10, 40, 4), thread(2, 11, 50, 9)]));
        window.add(sample(2, 100, vec![thread(1, 10, 45, 5)]));
        let spent = window.spent();
        assert_eq!(cpu(&spent), [("t11", 30, true), ("t10", 15, false)]);
        assert_eq!((spent.elapsed_ns, spent.cpu_ns, spent.others_ns), (2_000_000_000, 50, 5));
        // Switches go with their threads: the process's own account has lost those of the second.
        assert_eq!(spent.usage.map(|usage| usage.voluntary), Some(2 + 7));
    }

    #[test]
    fn a_thread_id_that_is_given_again_is_another_thread() {
        let mut window = Window::new(sample(0, 50, vec![thread(1, 10, 50, 0)]));
        window.add(sample(1, 70, vec![thread(1, 12, 8, 0)]));
        assert_eq!(cpu(&window.spent()), [("t12", 8, false), ("t10", 0, true)]);
        // An agent alone knows no start: there a smaller total tells.
        let mut window = Window::new(sample(0, 50, vec![thread(1, 0, 50, 0)]));
        window.add(sample(1, 70, vec![thread(1, 0, 8, 0)]));
        assert_eq!(cpu(&window.spent()), [("t0", 8, false), ("t0", 0, true)]);
    }

    #[test]
    fn a_group_is_counted_from_where_it_stood_and_a_new_one_from_nothing() {
        let count = |value, running_ns| Count {
            event: "sneezes".into(),
            value,
            enabled_ns: 2 * running_ns,
            running_ns,
        };
        let group = |id, cpu_ns, count| GroupStat {
            id,
            name: format!("g{id}"),
            cpu_ns,
            entries: cpu_ns,
            alive: 1,
            started: 2,
            finished: 1,
            counts: vec![count],
        };
        let with = |groups: Vec<GroupStat>, unattributed_ns| Sample {
            inside: Some(Inside { took_ns: 7, unattributed_ns, groups, keys_on: 0, dropped: 0 }),
            ..sample(0, 0, Vec::new())
        };
        let mut window = Window::new(with(vec![group(1, 10, count(5, 100))], 30));
        window.add(with(vec![group(1, 15, count(9, 150)), group(2, 40, count(3, 10))], 20));
        let inside = window.spent().inside.expect("an agent told");
        let seen: Vec<_> = inside.groups.iter().map(|g| (g.id, g.cpu_ns, g.counts[0].clone())).collect();
        assert_eq!(seen, [(2, 40, count(3, 10)), (1, 5, count(4, 50))]);
        assert_eq!((inside.unattributed_ns, inside.skew_ns), (0, 7), "never negative");
    }
}
