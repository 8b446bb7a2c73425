//! The measures of an experiment, and the differences of groups between two looks.

use std::collections::HashMap;
use std::str::FromStr;

use dormouse::waits::Histogram;
use dormouse_protocol::{CountRow, GroupRow, Stat};

use crate::sample::events::{EventRequest, TASK_CLOCK};
use crate::sample::totals;

/// Where the last bucket of latencies ends, for want of the longest one: 2^12 s.
const LONGEST_NS: u64 = 4_096_000_000_000;

/// The threads of dormouse in a service that work for an experiment, or for its keys.
const OWN_THREADS: [&str; 5] =
    ["dormouse", "dormouse-door", "dormouse-look", "dormouse-timer", "dormouse-budget"];

/// The quantity that is measured of each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Metric {
    /// CPU time.
    Cpu,
    /// The time from the begin of a request to the head of its response.
    Latency,
    /// Occurrences of an event.
    Event(String),
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Metric, String> {
        match text {
            "cpu-per-request" => Ok(Metric::Cpu),
            "latency" => Ok(Metric::Latency),
            event if event.is_empty() || event.contains(',') => {
                Err("it is one of cpu-per-request, latency, and an event of `dormouse list`".into())
            }
            event => Ok(Metric::Event(event.to_owned())),
        }
    }
}

impl Metric {
    /// The name as it is typed.
    pub(super) fn name(&self) -> &str {
        match self {
            Metric::Cpu => "cpu-per-request",
            Metric::Latency => "latency",
            Metric::Event(event) => event,
        }
    }

    /// The events that the service must count.
    pub(super) fn to_request(&self) -> EventRequest {
        match self {
            Metric::Event(event) => event.parse().unwrap_or_default(),
            _ => EventRequest::default(),
        }
    }

    /// The use of the time between two readings of the process whose first thread is `main`.
    pub(super) fn between(&self, before: &Stat, now: &Stat, main: u32) -> Turn {
        let since = now.since(before);
        // Tasks that live for long, as connections do, are no requests.
        let alive = |row: &GroupRow| row.alive.saturating_sub(row.long_lived.map_or(0, |long| long.tasks));
        let used = |row: &GroupRow| (row.id, Use { alive: alive(row), ..self.used(row) });
        let mut groups: HashMap<u32, Use> = since.groups.iter().map(used).collect();
        groups.retain(|_, used| *used != Use::default());
        let own_ns = own_cpu_ns(now, main).saturating_sub(own_cpu_ns(before, main));
        let whole = match self {
            Metric::Cpu => Some(since.process_cpu_ns.saturating_sub(own_ns) as f64),
            // Nobody counts these but groups.
            _ => None,
        };
        Turn { elapsed_ns: since.mono_ns, own_ns, whole, groups }
    }

    /// Why the measure is missing from a reading.
    pub(super) fn refusal(&self, of: &Stat) -> Option<String> {
        let is_missing = match self {
            Metric::Cpu => true,
            // Events are counted by no clock, but not while counts of groups are asleep.
            Metric::Event(event) => event == TASK_CLOCK || of.cpu_refused == of.limited,
            Metric::Latency => false,
        };
        totals::refusal(of).filter(|_| is_missing).or_else(|| self.uncounted(of))
    }

    /// The sentence about an event that no thread counts, as where there are no descriptors left.
    fn uncounted(&self, of: &Stat) -> Option<String> {
        let Metric::Event(event) = self else { return None };
        let mut counts =
            of.groups.iter().flat_map(|group| &group.counts).filter(|count| count.event == *event);
        let is_uncounted = |count: &CountRow| count.enabled_ns > 0 && !count.is_counted();
        counts.any(is_uncounted).then(|| format!("{event} was not counted so far: dormouse doctor shows why"))
    }

    /// The use that a group made of the time between, which `since` has.
    fn used(&self, since: &GroupRow) -> Use {
        match self {
            Metric::Cpu => Use::of(since.requests, since.cpu_ns),
            Metric::Event(event) => {
                let count = since.counts.iter().find(|count| count.event == *event);
                Use::of(since.requests, count.map_or(0, |count| count.value))
            }
            Metric::Latency => {
                let latencies = since.waits.as_ref().map(|waits| Histogram::from(&waits.requests));
                Use::of_latencies(&latencies.unwrap_or_default())
            }
        }
    }
}

/// CPU time of the threads of dormouse. (The first thread has the program's name.)
fn own_cpu_ns(stat: &Stat, main: u32) -> u64 {
    let is_own = |name: &str| OWN_THREADS.contains(&name);
    let own = stat.threads.iter().filter(|thread| thread.tid != main && is_own(&thread.name));
    own.map(|thread| thread.cpu_ns).sum()
}

/// The work of a process in one turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Turn {
    pub(super) elapsed_ns: u64,
    /// CPU time of the threads of dormouse, which is in no other figure.
    pub(super) own_ns: u64,
    /// The total of the process, unless only groups count.
    pub(super) whole: Option<f64>,
    /// By the group's number.
    pub(super) groups: HashMap<u32, Use>,
}

/// The use of one group's requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Use {
    pub(super) requests: u64,
    /// In all: nanoseconds, or occurrences.
    pub(super) amount: f64,
    /// Tasks that were there at the ends of turns, without those that live for long.
    pub(super) alive: u64,
    /// Place and number of each bucket that holds any, where latencies are measured.
    latencies: Vec<(usize, u64)>,
    /// The scale of the widest of these buckets.
    scale: i32,
}

impl Use {
    pub(super) fn of(requests: u64, amount: u64) -> Use {
        Use { requests, amount: amount as f64, ..Use::default() }
    }

    pub(super) fn of_latencies(all: &Histogram) -> Use {
        let latencies = all.buckets.iter().enumerate().filter(|(_, n)| **n > 0).map(|(at, &n)| (at, n));
        let (requests, amount) = (all.count(), all.sum_ns as f64);
        Use { requests, amount, alive: 0, latencies: latencies.collect(), scale: all.scale }
    }

    /// Adds what others used.
    pub(super) fn add(&mut self, other: &Use) {
        self.requests += other.requests;
        self.amount += other.amount;
        self.alive += other.alive;
        let has_any = !self.latencies.is_empty();
        self.scale = if has_any { self.scale.min(other.scale) } else { other.scale };
        self.latencies.extend_from_slice(&other.latencies);
    }

    /// The width of the widest of its buckets, as a factor.
    pub(super) fn bucket_factor(&self) -> f64 {
        (-f64::from(self.scale)).exp2().exp2()
    }

    /// The latency that 99 % do not exceed; 0 where there is none.
    pub(super) fn p99_ns(&self) -> f64 {
        let mut all = Histogram { max_ns: LONGEST_NS, scale: self.scale, ..Histogram::default() };
        for &(at, n) in &self.latencies {
            all.buckets[at] += n;
        }
        all.quantile_ns(0.99).unwrap_or(0) as f64
    }
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::LongLivedRow;

    use super::*;

    #[test]
    fn connections_do_not_lengthen_requests() {
        let stat = |mono_ns, requests| {
            let long_lived = Some(LongLivedRow { tasks: 400, age_ns: None });
            let group =
                GroupRow { id: 1, alive: 403, requests, cpu_ns: requests, long_lived, ..GroupRow::default() };
            Stat { mono_ns, groups: vec![group], ..Stat::default() }
        };
        let turn = Metric::Cpu.between(&stat(0, 10), &stat(1_000, 60), 1);
        assert_eq!((turn.groups[&1].requests, turn.groups[&1].alive), (50, 3));
    }

    #[test]
    fn refused_figures_are_no_measure() {
        let why = || Some("counts of groups are asleep".into());
        let [fine, false_clock, limited] = [
            Stat::default(),
            Stat { cpu_refused: Some("a clock is false".into()), ..Stat::default() },
            Stat { cpu_refused: why(), limited: why(), ..Stat::default() },
        ];
        let event = |name: &str| Metric::Event(name.to_owned());
        for (metric, [by_clock, by_limit]) in [
            (Metric::Cpu, [true, true]),
            (event("task-clock"), [true, true]),
            (event("page-faults"), [false, true]),
            (Metric::Latency, [false, false]),
        ] {
            assert_eq!(metric.refusal(&fine), None);
            assert_eq!(metric.refusal(&false_clock).is_some(), by_clock, "{metric:?}");
            assert_eq!(metric.refusal(&limited).is_some(), by_limit, "{metric:?}");
        }
        let counted = |running_ns| {
            let count = CountRow { event: "cycles".into(), value: 0, enabled_ns: 8, running_ns };
            let group = GroupRow { counts: vec![count], ..GroupRow::default() };
            event("cycles").refusal(&Stat { groups: vec![group], ..Stat::default() })
        };
        assert!(counted(4).is_none() && counted(0).unwrap().contains("cycles was not counted"));
        assert!(Metric::Cpu.refusal(&false_clock).unwrap().contains("a clock is false"));
    }
}
