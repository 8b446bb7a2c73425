//! The difference of two samples, and the time for which a command watches a process.

use std::collections::HashMap;

use dormouse_protocol::Stat;

use super::totals::{Sample, Thread, Usage};

/// The use of a process from one sample to a later one: the rows of the later sample, with the
/// totals of the time between.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Delta {
    pub(crate) elapsed_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) usage: Option<Usage>,
    /// Since the start of the process.
    pub(crate) max_rss_bytes: Option<u64>,
    /// In the order of the later sample.
    pub(crate) threads: Vec<Thread>,
    /// Threads that ended in between, as the last sample with them showed them.
    pub(crate) ended: Vec<Thread>,
    /// Groups are in the order of the later sample; `alive`, `keys_on` and `dropped` are its.
    pub(crate) inside: Option<Stat>,
    /// The time that `inside` is of.
    pub(crate) inside_ns: u64,
}

impl Delta {
    /// The time from `first` to `last`; `ended` are threads that samples between them showed.
    pub(crate) fn between(first: &Sample, last: &Sample, ended: &[Thread]) -> Delta {
        let before: HashMap<_, &Thread> = first.threads.iter().map(|thread| (thread.key(), thread)).collect();
        let since = |thread: &Thread| {
            // A smaller total belongs to another thread with the same number.
            let before = before.get(&thread.key()).filter(|before| before.cpu_ns <= thread.cpu_ns);
            let usage = before.and_then(|before| before.usage).unwrap_or_default();
            Thread {
                cpu_ns: thread.cpu_ns - before.map_or(0, |before| before.cpu_ns),
                // Unless it was known before, what it waited since is not known either.
                runnable_ns: match before {
                    Some(before) => {
                        thread.runnable_ns.zip(before.runnable_ns).map(|(now, b)| now.saturating_sub(b))
                    }
                    None => thread.runnable_ns,
                },
                usage: thread.usage.map(|now| now.since(usage)),
                ..thread.clone()
            }
        };
        let threads: Vec<Thread> = last.threads.iter().map(since).collect();
        let ended: Vec<Thread> = ended.iter().map(since).collect();
        let usage = last.usage.map(|usage| {
            // The kernel's sum of switches leaves out threads that have ended.
            let parts = || threads.iter().chain(&ended).filter_map(|thread| thread.usage);
            Usage {
                voluntary_switches: parts().map(|usage| usage.voluntary_switches).sum(),
                involuntary_switches: parts().map(|usage| usage.involuntary_switches).sum(),
                ..usage.since(first.usage.unwrap_or_default())
            }
        });
        let elapsed_ns = last.mono_ns.saturating_sub(first.mono_ns);
        Delta {
            elapsed_ns,
            inside_ns: elapsed_ns,
            cpu_ns: last.cpu_ns.saturating_sub(first.cpu_ns),
            usage,
            max_rss_bytes: last.max_rss_bytes,
            threads,
            ended,
            inside: match (&last.inside, &first.inside) {
                (Some(now), Some(before)) => Some(now.since(before)),
                (Some(now), None) => Some(now.since_start()),
                (None, _) => None,
            },
        }
    }

    /// For how long threads waited for a CPU, in all; `None` where the kernel said it of none.
    pub(crate) fn runnable_ns(&self) -> Option<u64> {
        self.threads.iter().chain(&self.ended).filter_map(|thread| thread.runnable_ns).reduce(|a, b| a + b)
    }

    /// CPU time of threads that no sample shows at both ends of their lives.
    pub(crate) fn others_ns(&self) -> u64 {
        let threads = self.threads.iter().chain(&self.ended);
        threads.fold(self.cpu_ns, |rest, thread| rest.saturating_sub(thread.cpu_ns))
    }
}

/// Samples from one on, with the threads that ended since.
#[derive(Debug)]
pub(crate) struct Window {
    first: Sample,
    pub(crate) last: Sample,
    /// Their figures in the last sample that had them.
    ended: Vec<Thread>,
    /// When the figures from inside begin.
    inside_from_ns: u64,
}

impl Window {
    /// Begins at `first`.
    pub(crate) fn new(first: Sample) -> Window {
        let inside_from_ns = first.mono_ns;
        Window { last: first.clone(), first, ended: Vec::new(), inside_from_ns }
    }

    /// Begins with the process, at `mono_ns`, and goes on to `sample`. The figures from inside
    /// begin with that: CPU time of groups is counted from then on, and requests before had none.
    pub(crate) fn since_start(mono_ns: u64, sample: Sample) -> Window {
        let first = Sample { mono_ns, inside: sample.inside.clone(), ..Sample::default() };
        let inside_from_ns = sample.mono_ns;
        Window { first, last: sample, ended: Vec::new(), inside_from_ns }
    }

    /// Goes on to `sample`.
    pub(crate) fn add(&mut self, sample: Sample) {
        let now: HashMap<_, u64> =
            sample.threads.iter().map(|thread| (thread.key(), thread.cpu_ns)).collect();
        let old = std::mem::replace(&mut self.last, sample);
        self.ended.extend(old.threads);
        // A smaller total belongs to another thread with the same number. A thread that a sample
        // lacked may be there again.
        self.ended.retain(|thread| now.get(&thread.key()).is_none_or(|&ns| ns < thread.cpu_ns));
    }

    /// From the first sample to the last.
    pub(crate) fn delta(&self) -> Delta {
        let inside_ns = self.last.mono_ns.saturating_sub(self.inside_from_ns);
        Delta { inside_ns, ..Delta::between(&self.first, &self.last, &self.ended) }
    }
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::{CountRow, CpuLimits, GroupRow, Pressure, Stat, TaskPolls};

    use super::*;

    fn thread(tid: u32, start_ticks: u64, cpu_ns: u64, voluntary: u64) -> Thread {
        let usage = Some(Usage { voluntary_switches: voluntary, ..Usage::default() });
        let (name, runnable_ns) = (format!("t{start_ticks}"), Some(2 * cpu_ns));
        Thread { tid, inner_tid: tid, start_ticks, name, cpu_ns, runnable_ns, usage }
    }

    fn sample(seconds: u64, cpu_ns: u64, threads: Vec<Thread>) -> Sample {
        Sample {
            cpu_ns,
            usage: Some(Usage::default()),
            threads,
            mono_ns: seconds * 1_000_000_000,
            ..Sample::default()
        }
    }

    fn cpu(delta: &Delta) -> Vec<(&str, u64, bool)> {
        let alive = delta.threads.iter().map(|thread| (thread, false));
        let all = alive.chain(delta.ended.iter().map(|thread| (thread, true)));
        all.map(|(thread, has_ended)| (thread.name.as_str(), thread.cpu_ns, has_ended)).collect()
    }

    #[test]
    fn a_control_group_is_older_than_its_process() {
        let stat = Stat {
            pressure: Some(Pressure::default()),
            cpu_limits: Some(CpuLimits::default()),
            ..Stat::default()
        };
        let seen = Sample { inside: Some(stat), ..sample(1, 50, vec![]) };
        let inside = Delta::between(&Sample::default(), &seen, &[]).inside.unwrap();
        assert_eq!((inside.pressure, inside.cpu_limits), (None, None), "nobody knows what was before");
    }

    #[test]
    fn groups_of_a_command_begin_when_found() {
        let with = |seconds, cpu_ns, requests, of_group_ns| {
            let group = GroupRow { id: 1, requests, cpu_ns: of_group_ns, ..GroupRow::default() };
            Sample {
                inside: Some(Stat { groups: vec![group], ..Stat::default() }),
                ..sample(seconds, cpu_ns, vec![])
            }
        };
        // Nobody counted the CPU time of 500 requests.
        let mut window = Window::since_start(0, with(3, 900, 500, 0));
        window.add(with(5, 1000, 520, 80));
        let delta = window.delta();
        assert_eq!((delta.elapsed_ns, delta.cpu_ns, delta.inside_ns), (5_000_000_000, 1000, 2_000_000_000));
        let inside = delta.inside.unwrap();
        assert_eq!((inside.groups[0].requests, inside.groups[0].cpu_ns), (20, 80));
    }

    #[test]
    fn an_ended_thread_keeps_its_last_figures() {
        let mut window = Window::new(sample(0, 50, vec![thread(1, 10, 30, 3), thread(2, 11, 20, 2)]));
        window.add(sample(1, 90, vec![thread(1, 10, 40, 4), thread(2, 11, 50, 9)]));
        window.add(sample(2, 100, vec![thread(1, 10, 45, 5)]));
        let delta = window.delta();
        assert_eq!(cpu(&delta), [("t10", 15, false), ("t11", 30, true)]);
        assert_eq!((delta.elapsed_ns, delta.cpu_ns, delta.others_ns()), (2_000_000_000, 50, 5));
        assert_eq!(delta.runnable_ns(), Some(2 * (15 + 30)));
        // Switches go with their threads: the process's own account has lost those of the second.
        assert_eq!(delta.usage.map(|usage| usage.voluntary_switches), Some(2 + 7));
    }

    #[test]
    fn a_thread_that_is_back_has_not_ended() {
        let mut window = Window::new(sample(0, 50, vec![thread(1, 10, 30, 3), thread(2, 11, 20, 2)]));
        window.add(sample(1, 90, vec![thread(1, 10, 40, 4)]));
        window.add(sample(2, 150, vec![thread(1, 10, 45, 5), thread(2, 11, 80, 9)]));
        let delta = window.delta();
        assert_eq!(cpu(&delta), [("t10", 15, false), ("t11", 60, false)]);
        assert_eq!((delta.others_ns(), delta.runnable_ns()), (25, Some(2 * (15 + 60))));
        assert_eq!(delta.usage.map(|usage| usage.voluntary_switches), Some(2 + 7));
    }

    #[test]
    fn a_reused_thread_id_is_another_thread() {
        let mut window = Window::new(sample(0, 50, vec![thread(1, 10, 50, 0)]));
        window.add(sample(1, 70, vec![thread(1, 12, 8, 0)]));
        assert_eq!(cpu(&window.delta()), [("t12", 8, false), ("t10", 0, true)]);
        // If only the agent lists a thread its start is unknown: then a smaller total shows a new
        // thread.
        let mut window = Window::new(sample(0, 50, vec![thread(1, 0, 50, 0)]));
        window.add(sample(1, 70, vec![thread(1, 0, 8, 0)]));
        assert_eq!(cpu(&window.delta()), [("t0", 8, false), ("t0", 0, true)]);
    }

    #[test]
    fn polls_are_those_of_the_interval() {
        let with = |polls: Option<(u64, u64)>| {
            let polls = polls.map(|(all, in_groups)| TaskPolls { all, in_groups });
            Sample { inside: Some(Stat { polls, ..Stat::default() }), ..Sample::default() }
        };
        let share = |first, last| {
            let inside = Delta::between(&with(first), &with(last), &[]).inside;
            inside.and_then(|inside| inside.poll_coverage_percent())
        };
        assert_eq!(share(Some((100, 100)), Some((108, 106))), Some(75.0));
        assert_eq!(share(None, Some((8, 4))), Some(50.0), "a runtime has come");
        assert_eq!(share(Some((11, 10)), Some((12, 12))), Some(100.0), "never more than all");
        assert_eq!((share(Some((5, 5)), Some((5, 5))), share(None, None)), (None, None));
    }

    #[test]
    fn a_new_group_is_counted_from_nothing() {
        let count = |value, running_ns| CountRow {
            event: "sneezes".into(),
            value,
            enabled_ns: 2 * running_ns,
            running_ns,
        };
        let group = |id, cpu_ns, count| GroupRow { id, cpu_ns, counts: vec![count], ..GroupRow::default() };
        let with = |groups: Vec<GroupRow>, unattributed_cpu_ns| Sample {
            inside: Some(Stat { took_ns: 7, unattributed_cpu_ns, groups, ..Stat::default() }),
            ..sample(0, 0, Vec::new())
        };
        let mut window = Window::new(with(vec![group(1, 10, count(5, 100))], 30));
        window.add(with(vec![group(1, 15, count(9, 150)), group(2, 40, count(3, 10))], 20));
        let inside = window.delta().inside.expect("an agent told");
        let seen: Vec<_> = inside.groups.iter().map(|g| (g.id, g.cpu_ns, g.counts[0].clone())).collect();
        assert_eq!(seen, [(1, 5, count(4, 50)), (2, 40, count(3, 10))]);
        assert_eq!((inside.unattributed_cpu_ns, inside.took_ns), (0, 7), "never negative");
    }
}
