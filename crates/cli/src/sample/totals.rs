//! A process at one moment: totals since its start.
//!
//! An agent reports groups, and threads to the nanosecond; the kernel reports any process's threads
//! ([`super::tasks`]). A sample has both, or only the kernel's part.

use std::collections::HashMap;

use dormouse_protocol::{CountRow, Stat, ThreadStat};
use serde::Serialize;

use crate::text::clean;

/// CPU time, switches and faults of a thread or a process so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Usage {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
}

/// One thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Thread {
    /// The thread id as seen from here.
    pub(crate) tid: u32,
    /// In the service's own namespace: what its agent calls it.
    pub(crate) inner_tid: u32,
    /// With `tid` never reused; 0 if only the agent lists the thread.
    pub(crate) start_ticks: u64,
    pub(crate) name: String,
    pub(crate) cpu_ns: u64,
    /// For how long it waited for a CPU; `None` if the kernel does not report it.
    pub(crate) runnable_ns: Option<u64>,
    /// Absent where `/proc` does not show it.
    #[serde(flatten)]
    pub(crate) usage: Option<Usage>,
}

/// A process at one moment; totals since its start, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    /// `CLOCK_MONOTONIC`.
    pub(crate) mono_ns: u64,
    pub(crate) cpu_ns: u64,
    /// Absent where `/proc` does not show it; its switches are those of `threads`.
    pub(crate) usage: Option<Usage>,
    pub(crate) max_rss_bytes: Option<u64>,
    pub(crate) threads: Vec<Thread>,
    /// The part that only an agent provides, without threads.
    pub(crate) inside: Option<Stat>,
}

impl Sample {
    /// An agent's answer; the kernel's part is not in it.
    pub(crate) fn of_agent(mut stat: Stat) -> Sample {
        let thread = |t: ThreadStat| Thread {
            tid: t.tid,
            inner_tid: t.tid,
            start_ticks: 0,
            name: t.name,
            cpu_ns: t.cpu_ns,
            runnable_ns: t.runnable_ns,
            usage: None,
        };
        Sample {
            mono_ns: stat.mono_ns,
            cpu_ns: stat.process_cpu_ns,
            usage: None,
            max_rss_bytes: None,
            threads: std::mem::take(&mut stat.threads).into_iter().map(thread).collect(),
            inside: Some(stat),
        }
    }

    /// Adds the kernel's part. The agent's times are the better ones; a thread that the agent saw
    /// and the kernel does not has ended in between.
    pub(crate) fn join(&mut self, kernel: Sample) {
        self.usage = kernel.usage;
        self.max_rss_bytes = kernel.max_rss_bytes;
        let told: HashMap<u32, &Thread> =
            self.threads.iter().map(|thread| (thread.inner_tid, thread)).collect();
        let best = |thread: Thread| match told.get(&thread.inner_tid) {
            Some(told) => Thread {
                cpu_ns: told.cpu_ns,
                // An older agent does not report it.
                runnable_ns: told.runnable_ns.or(thread.runnable_ns),
                ..thread
            },
            None => thread,
        };
        self.threads = kernel.threads.into_iter().map(best).collect();
    }
}

/// The sentence about CPU time that is refused.
pub(crate) fn refusal(inside: &Stat) -> Option<String> {
    let why = inside.cpu_refused.as_ref()?;
    Some(format!("CPU time of groups is refused: {}", clean(why)))
}

impl Thread {
    /// The thread for all its life: a number is given again.
    pub(crate) fn key(&self) -> (u32, u64) {
        (self.tid, self.start_ticks)
    }
}

impl Usage {
    /// The difference to `before`; 0 where a counter shows less.
    pub(crate) fn since(self, before: Usage) -> Usage {
        Usage {
            user_ns: self.user_ns.saturating_sub(before.user_ns),
            system_ns: self.system_ns.saturating_sub(before.system_ns),
            voluntary_switches: self.voluntary_switches.saturating_sub(before.voluntary_switches),
            involuntary_switches: self.involuntary_switches.saturating_sub(before.involuntary_switches),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
        }
    }

    pub(crate) fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }

    pub(crate) fn faults(&self) -> u64 {
        self.minor_faults + self.major_faults
    }

    /// Whether the kernel counts an event of that name for every thread and process.
    pub(crate) fn has(event: &str) -> bool {
        Usage::default().counts(0).iter().any(|count| count.event == event)
    }

    /// The events that the kernel counts for every thread and process, over `elapsed_ns`.
    pub(crate) fn counts(&self, elapsed_ns: u64) -> Vec<CountRow> {
        [
            ("context-switches", self.switches()),
            ("page-faults", self.faults()),
            ("major-faults", self.major_faults),
        ]
        .map(|(event, value)| whole(event, value, elapsed_ns))
        .into()
    }
}

/// `value` as a count that was taken all the time.
pub(crate) fn whole(event: &str, value: u64, elapsed_ns: u64) -> CountRow {
    CountRow { event: event.to_owned().into(), value, enabled_ns: elapsed_ns, running_ns: elapsed_ns }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two answers of a service, a second apart, as `tests/figures/readings.json` has them; or the
    /// same with CPU time of groups refused.
    pub(crate) fn answers(is_refused: bool) -> [Stat; 2] {
        let text = include_str!("../../../../tests/figures/readings.json");
        let mut both: serde_json::Value = serde_json::from_str(text).unwrap();
        ["before", "now"].map(|name| {
            let mut stat: Stat = serde_json::from_value(both[name].take()).unwrap();
            if is_refused {
                stat.cpu_refused = Some("a clock is false".into());
                stat.counted = None;
                for group in &mut stat.groups {
                    group.cpu_ns = 0;
                    group.counts.retain(|count| count.event != "task-clock");
                    group.waits.iter_mut().for_each(|waits| waits.on_cpu_ns = None);
                }
            }
            stat
        })
    }

    /// Two fixed samples, including the kernel's part.
    pub(crate) fn fixed(is_refused: bool) -> [Sample; 2] {
        answers(is_refused).map(|stat| {
            let n = stat.keys_on as u64;
            let usage = |n: u64| Usage {
                user_ns: 700_000_000 * n,
                system_ns: 10_000_000 * n,
                voluntary_switches: 5 * n * n,
                involuntary_switches: n,
                minor_faults: 100 * n,
                major_faults: n / 3,
            };
            let mut sample = Sample::of_agent(stat);
            for thread in &mut sample.threads {
                (thread.start_ticks, thread.usage) = (1, Some(usage(n)));
            }
            sample.threads[0].tid = 6010;
            Sample { usage: Some(usage(2 * n)), max_rss_bytes: Some(9 << 20), ..sample }
        })
    }

    #[test]
    fn agents_threads_go_by_their_inner_number() {
        let thread = |tid, cpu_ns| ThreadStat { tid, name: String::new(), cpu_ns, runnable_ns: None };
        let threads = vec![thread(3, 7), thread(6114, 1)];
        let mut sample = Sample::of_agent(Stat { process_cpu_ns: 9, threads, ..Stat::default() });
        let thread = Thread {
            tid: 6114,
            inner_tid: 3,
            start_ticks: 1,
            name: "brew".into(),
            cpu_ns: 5,
            runnable_ns: Some(2),
            usage: None,
        };
        sample.join(Sample { cpu_ns: 9, threads: vec![thread], ..Sample::default() });
        let [thread] = &sample.threads[..] else { panic!("one thread is seen: {sample:?}") };
        assert_eq!((thread.tid, thread.inner_tid, thread.cpu_ns), (6114, 3, 7));
        assert_eq!(thread.runnable_ns, Some(2), "the agent did not tell");
    }
}
