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
        Some(SpentInside { unattributed_ns: last.unattributed_ns.saturating_sub(unattributed), groups })
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
