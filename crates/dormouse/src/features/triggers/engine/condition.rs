//! The condition of each kind of trigger, and how close it has come to its threshold.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use dormouse_events::Counting;
use dormouse_locks::LockTimes;
use dormouse_waits::{Histogram, Histograms, SlowRequest, Waiting, living, read_each};

use super::readings::{Finding, Groups, INTERVAL, ReadingNeed, Readings, SECOND, Span, of};
use crate::core::asleep::Part;
use crate::core::group::Group;
use crate::core::memory;
use crate::core::panics::{self, PanicWait};
use crate::core::record::RecordKind;
use crate::core::tasks::is_request;
use crate::core::trace::Trace;
use crate::features::learning::Placed;
use crate::features::long_polls::LongPoll;
use crate::features::triggers::rules::{Comparison, Limit, number};

/// The memory of a reading: the sums of all groups, and the times of one.
const READING: usize = 128 * 1024;

/// Reports of long polls that are taken at once.
const REPORTS: usize = 64;

/// The takings and counts that a trigger has as long as it lives.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    pub(crate) _waiting: Option<Waiting>,
    pub(crate) _placed: Option<Placed>,
    pub(crate) _counting: Option<Counting>,
    pub(crate) _locks: Option<LockTimes>,
}

/// The condition on which a trigger fires. Each kind is one implementation of this.
pub(crate) trait Condition: fmt::Debug + Send {
    /// How often it is evaluated; `None`: others wake the lookout for it.
    fn every(&self) -> Option<Duration>;

    /// The readings that it needs.
    fn needs(&self) -> ReadingNeed<'_> {
        ReadingNeed::Nothing
    }

    /// Returns its finding since the last time, if it holds. The trigger has been armed for
    /// `armed`.
    fn evaluate(&mut self, readings: &Readings, armed: Duration) -> Option<Finding>;

    /// How close it has come to its threshold, in words.
    fn highest(&self) -> Option<String> {
        None
    }

    /// A reason why it may never hold.
    fn warning(&self) -> Option<String> {
        None
    }

    /// Why it has not held yet.
    fn why_not(&self) -> String;

    /// The part of dormouse without which it sees nothing, if that can be suspended by itself.
    fn part(&self) -> Option<Part> {
        None
    }

    /// Whether the process may end by what it waits for, so that its file is written at once.
    fn is_hurried(&self) -> bool {
        false
    }
}

/// The first of these: no group matches, how close it has come, or that `nothing` was seen.
pub(super) fn why_not(groups: &Groups, highest: Option<String>, nothing: impl FnOnce() -> String) -> String {
    let seen = || highest.map(|highest| format!("highest seen {highest}"));
    groups.warning().or_else(seen).unwrap_or_else(nothing)
}

/// A panic.
#[derive(Debug)]
pub(crate) struct PanicCondition {
    _wait: PanicWait,
    count: u64,
}

/// A request of the command, which fires at once.
#[derive(Debug)]
pub(crate) struct CommandCondition;

#[derive(Debug)]
pub(crate) struct RequestCondition {
    threshold: Duration,
    groups: Groups,
    /// The requests that had ended when the trigger was armed.
    before: Box<Histogram>,
    highest_ns: u64,
    /// Requests of any group that took longer than the lowest threshold, and were not seen.
    missed: u64,
    /// The tasks that were over the threshold at the last reading of living ones.
    seen: HashSet<u64>,
}

/// Reports on long polls as they come, at most the given number at once. Dropping it ends them.
pub(crate) struct Polls(pub(crate) Box<dyn FnMut(usize) -> Vec<LongPoll> + Send>);

impl fmt::Debug for Polls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Polls")
    }
}

#[derive(Debug)]
pub(crate) struct LongPollCondition {
    pub(crate) threshold: Duration,
    pub(crate) groups: Groups,
    pub(crate) polls: Polls,
    /// The number of the last poll that was seen.
    pub(crate) last: u64,
    pub(crate) highest: Duration,
}

#[derive(Debug)]
pub(crate) struct CpuCondition {
    pub(crate) percent: u64,
    pub(crate) length: Duration,
    pub(crate) groups: Groups,
    /// For how long each group has been over the level; the process is 0.
    pub(crate) over: HashMap<u32, Duration>,
    pub(crate) highest: u64,
    /// Why the CPU time of groups was refused at the last reading.
    pub(crate) refused: Option<&'static str>,
}

#[derive(Debug)]
pub(crate) struct FieldCondition {
    pub(crate) path: String,
    pub(crate) comparison: Comparison,
    pub(crate) limit: Limit,
    pub(crate) trace: Trace,
    /// By the number of a probe, which of its values it is.
    pub(crate) places: HashMap<u32, usize>,
    pub(crate) records: u64,
    /// Records of any probe that were lost in rings and in the queue.
    pub(crate) lost: u64,
    /// The nearest value.
    pub(crate) nearest: Option<f64>,
}

impl PanicCondition {
    pub(crate) fn new(wait: PanicWait) -> Self {
        Self { _wait: wait, count: PanicWait::count() }
    }
}

impl Condition for PanicCondition {
    fn every(&self) -> Option<Duration> {
        None
    }

    fn evaluate(&mut self, _: &Readings, _: Duration) -> Option<Finding> {
        let (now, seen) = PanicWait::seen()?;
        let times = now - std::mem::replace(&mut self.count, now);
        // Without the hook only the guard of its task has seen it.
        let line = if seen.line == 0 { String::new() } else { format!(", at line {}", seen.line) };
        (times > 0).then(|| Finding {
            words: format!("a panic in thread {}{line}, in task {}{}", seen.tid, seen.task, of(seen.group)),
            task: Some(seen.task).filter(|task| *task != 0),
            group: Some(seen.group).filter(|group| *group != 0),
            trace: None,
            times,
        })
    }

    fn warning(&self) -> Option<String> {
        panics::warning().map(|(why, fix)| format!("{why}; {fix}"))
    }

    fn why_not(&self) -> String {
        self.warning().unwrap_or_else(|| "no panic was seen".to_owned())
    }

    fn is_hurried(&self) -> bool {
        true
    }
}

impl Condition for CommandCondition {
    fn every(&self) -> Option<Duration> {
        None
    }

    fn evaluate(&mut self, _: &Readings, _: Duration) -> Option<Finding> {
        None
    }

    fn why_not(&self) -> String {
        "it fires once".to_owned()
    }
}

impl Condition for RequestCondition {
    fn every(&self) -> Option<Duration> {
        Some(INTERVAL)
    }

    fn part(&self) -> Option<Part> {
        Some(Part::Times)
    }

    fn needs(&self) -> ReadingNeed<'_> {
        ReadingNeed::Requests { longer_than_ns: self.threshold_ns(), groups: &self.groups }
    }

    fn evaluate(&mut self, readings: &Readings, armed: Duration) -> Option<Finding> {
        self.missed += readings.missed;
        let threshold = self.threshold_ns();
        let living = readings.living.as_deref().unwrap_or_default();
        let (mut living_now, mut longest, mut times) = (HashSet::new(), None::<&SlowRequest>, 0);
        if living_now.try_reserve(living.len()).is_err() {
            return None;
        }
        for (at, request) in living.iter().chain(&readings.slow).enumerate() {
            let Some(over) = request.age_ns.checked_sub(threshold).filter(|over| *over > 0) else { continue };
            if !self.groups.has(request.group) {
                continue;
            }
            self.highest_ns = self.highest_ns.max(request.age_ns);
            // One that has ended may have been seen when it went on.
            let is_known = self.seen.contains(&request.task) || living_now.contains(&request.task);
            if at < living.len() {
                living_now.insert(request.task);
            }
            // One that was over the threshold when the trigger was armed is an old one.
            if is_known || u128::from(over) >= armed.as_nanos() {
                continue;
            }
            times += 1;
            if longest.is_none_or(|longest| longest.age_ns < request.age_ns) {
                longest = Some(request);
            }
        }
        if readings.living.is_some() {
            self.seen = living_now;
        }
        let request = longest?;
        Some(Finding {
            words: format!(
                "a request of {}, task {}{}",
                Span(Duration::from_nanos(request.age_ns)),
                request.task,
                of(request.group)
            ),
            task: Some(request.task),
            group: Some(request.group),
            trace: request.trace,
            times,
        })
    }

    fn highest(&self) -> Option<String> {
        self.longest().map(|longest| format!("{} of {}", Span(longest), Span(self.threshold)))
    }

    fn why_not(&self) -> String {
        let nothing = || "no request has begun since it was armed".to_owned();
        let why = why_not(&self.groups, self.highest(), nothing);
        match self.missed {
            0 => why,
            missed => format!("{why}; {missed} slow requests were missed, perhaps of these groups"),
        }
    }
}

impl RequestCondition {
    /// `before`: the requests that have ended so far.
    pub(crate) fn new(threshold: Duration, groups: Groups, before: Box<Histogram>) -> Self {
        Self { threshold, groups, before, highest_ns: 0, missed: 0, seen: HashSet::new() }
    }

    fn threshold_ns(&self) -> u64 {
        self.threshold.as_nanos() as u64
    }

    /// The longest request since the trigger was armed, with those that go on.
    fn longest(&self) -> Option<Duration> {
        let since = requests(&self.groups).map(|now| now.since(&self.before).max_ns);
        let living = living().filter(|task| is_request(task.task) && self.groups.has(task.group));
        let living = living.filter(|task| task.answered_ns.is_none()).filter_map(|task| task.age_ns).max();
        let highest = self.highest_ns.max(since.unwrap_or(0)).max(living.unwrap_or(0));
        (highest > 0).then(|| Duration::from_nanos(highest))
    }
}

/// The ages of the requests of these groups that have ended so far; `None` without memory.
pub(crate) fn requests(groups: &Groups) -> Option<Box<Histogram>> {
    if !memory::is_there(memory::SOME + READING) {
        return None;
    }
    let mut sum = Box::<Histogram>::default();
    read_each(Histograms::Requests, |of| {
        if groups.has(of.group) {
            sum.buckets.iter_mut().zip(&of.requests.buckets).for_each(|(to, from)| *to += from);
            sum.max_ns = sum.max_ns.max(of.requests.max_ns);
        }
    });
    Some(sum)
}

impl Condition for LongPollCondition {
    fn every(&self) -> Option<Duration> {
        None
    }

    fn evaluate(&mut self, _: &Readings, _: Duration) -> Option<Finding> {
        let (mut seen, mut times) = (None, 0);
        for report in (self.polls.0)(REPORTS) {
            let group = report.group.map_or(0, Group::id);
            if !self.groups.has(group) {
                continue;
            }
            self.highest = report.lasted.max(self.highest);
            // One poll is seen once, however often it is reported.
            if report.number > self.last && report.lasted >= self.threshold {
                self.last = report.number;
                times += 1;
                let (lasted, tid, thread) = (Span(report.lasted), report.tid, &report.thread);
                let whose = of(group);
                let words = format!(
                    "a poll of {lasted} so far in thread {tid} ({thread}), task {}{whose}",
                    report.task
                );
                seen =
                    Some(Finding { words, task: Some(report.task), group: Some(group), trace: None, times });
            }
        }
        seen
    }

    fn highest(&self) -> Option<String> {
        let Self { threshold, highest, .. } = self;
        (!highest.is_zero()).then(|| format!("{} of {}", Span(*highest), Span(*threshold)))
    }

    fn why_not(&self) -> String {
        let nothing = || format!("no poll of {} was seen", Span(self.threshold));
        why_not(&self.groups, self.highest(), nothing)
    }
}

impl Condition for CpuCondition {
    fn every(&self) -> Option<Duration> {
        Some(SECOND)
    }

    fn part(&self) -> Option<Part> {
        self.groups.0.is_some().then_some(Part::Counts)
    }

    fn needs(&self) -> ReadingNeed<'_> {
        ReadingNeed::Cpu
    }

    fn evaluate(&mut self, readings: &Readings, _: Duration) -> Option<Finding> {
        let Some(cpu) = &readings.cpu else {
            // Nothing was read for a while: what comes next is no part of the same time.
            self.over.clear();
            return None;
        };
        self.refused = cpu.refused.filter(|_| self.groups.0.is_some());
        if self.refused.is_some() {
            self.over.clear();
            return None;
        }
        let length_ns = cpu.length.as_nanos().max(1);
        let process = self.groups.0.is_none().then_some((0, cpu.used.process_cpu_ns));
        let groups = cpu.used.groups.iter().map(|group| (group.id, group.cpu_ns));
        let groups = groups.filter(|(group, _)| self.groups.0.is_some() && self.groups.has(*group));
        let (mut seen, mut times) = (None, 0);
        for (group, ns) in process.into_iter().chain(groups) {
            let hundredfold = u128::from(ns) * 100;
            let percent = u64::try_from(hundredfold / length_ns).unwrap_or(u64::MAX);
            self.highest = self.highest.max(percent);
            // Not rounded: 1.9 % is more than 1 %.
            if hundredfold <= u128::from(self.percent) * length_ns {
                self.over.remove(&group);
                continue;
            }
            let over = self.over.entry(group).or_default();
            *over += cpu.length;
            if *over < self.length {
                continue;
            }
            times += 1;
            if seen.is_none() {
                let (over, what) =
                    (Span(*over), if group == 0 { " of the process".to_owned() } else { of(group) });
                let words = format!("over {} % of a CPU for {over}, {percent} % at last{what}", self.percent);
                let group = Some(group).filter(|group| *group != 0);
                seen = Some(Finding { words, task: None, group, trace: None, times });
            }
        }
        if seen.is_some() {
            // It begins anew.
            self.over.clear();
        }
        seen.map(|seen| Finding { times, ..seen })
    }

    fn highest(&self) -> Option<String> {
        Some(format!("{} % of {} %", self.highest, self.percent))
    }

    fn why_not(&self) -> String {
        let refused = || self.refused.map(|why| format!("CPU time of groups is refused: {why}"));
        let known = self.groups.warning().or_else(refused).or_else(|| self.lasting());
        known.unwrap_or_else(|| why_not(&self.groups, self.highest(), String::new))
    }
}

impl CpuCondition {
    fn lasting(&self) -> Option<String> {
        let longest = self.over.values().max()?;
        Some(format!("over {} % for {} of {}", self.percent, Span(*longest), Span(self.length)))
    }
}

impl Condition for FieldCondition {
    fn every(&self) -> Option<Duration> {
        Some(INTERVAL)
    }

    fn part(&self) -> Option<Part> {
        Some(Part::Records)
    }

    fn evaluate(&mut self, _: &Readings, _: Duration) -> Option<Finding> {
        let Self { path, comparison, limit, trace, places, records, lost, nearest } = self;
        let dropped = trace.dropped();
        *lost += dropped.rings + dropped.trace;
        let (mut seen, mut times) = (None, 0);
        trace.poll(|_, thread, record| {
            let place = places.get(&record.probe).filter(|_| record.phase != RecordKind::Exit);
            let Some(value) = place.and_then(|place| record.values.get(*place)) else { return };
            *records += 1;
            if let Some(number) = number(value).filter(|number| !number.is_nan()) {
                let is_nearer = |before: f64| match comparison {
                    Comparison::Less | Comparison::LessOrEqual => number < before,
                    _ => number > before,
                };
                if nearest.is_none_or(is_nearer) {
                    *nearest = Some(number);
                }
            }
            if comparison.holds(value, limit) != Some(true) {
                return;
            }
            times += 1;
            if seen.is_none() {
                seen = Some(Finding {
                    words: format!(
                        "{path} is {value} in thread {}, task {}{}",
                        thread.tid,
                        record.task,
                        of(record.group)
                    ),
                    task: Some(record.task).filter(|task| *task != 0),
                    group: Some(record.group).filter(|group| *group != 0),
                    trace: None,
                    times,
                });
            }
        });
        seen.map(|seen| Finding { times, ..seen })
    }

    fn highest(&self) -> Option<String> {
        Some(format!("{} of {}", self.nearest?, self.limit))
    }

    fn why_not(&self) -> String {
        let nearest = match self.comparison {
            Comparison::Less | Comparison::LessOrEqual => "lowest",
            _ => "highest",
        };
        let lost = match self.lost {
            0 => String::new(),
            lost => format!("; {lost} records were lost, perhaps of this probe"),
        };
        match (self.records, self.nearest) {
            (0, _) => format!("no record of {} yet{lost}", self.path),
            (_, Some(value)) => format!("{nearest} seen {value} of {}{lost}", self.limit),
            (records, None) => format!("{records} records, none with {}{lost}", self.limit),
        }
    }
}
