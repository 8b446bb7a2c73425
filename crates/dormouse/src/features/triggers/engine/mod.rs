//! The triggers: rules by which a recorder's file is written as soon as their event happens.
//!
//! | a trigger is | event | next |
//! |---|---|---|
//! | armed | its condition holds | due |
//! | armed | the same, too soon after its last file | armed; it counts that |
//! | due | no file is being written, and the last was begun a second ago | firing |
//! | due by a panic | at once: a file that is being written waits for this one | firing |
//! | firing | its file is in its place, or could not be written | armed |
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `store` | the directory of files, and the room that they may take |
//! | `readings` | the readings that all conditions share, and the finding of one condition |
//! | `condition` | on what a trigger fires, and how near that has come |
//! | `locks` | waits for locks that take long |
//! | `outcomes` | how requests ended over a while |
//! | `firing` | a file that is being written |
//!
//! # Cost
//!
//! Reads what requests and probes have left ten times a second, and CPU time once a second, each
//! only while a rule needs it. For a rule on requests, living tasks are scanned when the oldest one
//! below a threshold reaches it, at most ten times a second: in a service whose requests stay far
//! below the threshold there are few scans.

mod condition;
mod firing;
mod locks;
mod outcomes;
mod readings;
mod store;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use dormouse_locks::keep_long_waits;
use dormouse_protocol::{TriggerRow, TriggersAnswer};
use dormouse_waits::{LivingTask, SlowRequest, living, note_slow, raise_slow, take_slow};

use crate::core::asleep;
use crate::core::panics;
use crate::core::tasks::is_request;
use crate::features::recorder::engine::Recording;
use crate::features::triggers::rules::Rule;
use crate::lookout::{self, Engine};

use firing::Firing;
use readings::{CpuReading, Finding, INTERVAL, ReadingNeed, Readings, SECOND, Span};
use store::{Store, file_name};

pub(crate) use condition::{
    CommandCondition, Condition, CpuCondition, FieldCondition, Leases, LongPollCondition, PanicCondition,
    Polls, RequestCondition, requests,
};
pub(crate) use locks::LockCondition;
pub(crate) use outcomes::OutcomeCondition;
pub(crate) use readings::Groups;
pub(crate) use store::StoreSettings;

/// The least time between the beginnings of two files, whatever their rules; a panic's file does
/// not wait for it.
const APART: Duration = Duration::from_secs(1);

/// The most triggers.
const MOST: usize = 64;

/// For how long the result of a command is listed, if nobody removes it and there is room.
const LISTED: Duration = Duration::from_secs(30);

/// The most requests over a threshold of their groups that are read in one step.
const SLOW: usize = 1024;

/// A trigger.
#[derive(Debug)]
struct ArmedTrigger {
    number: u64,
    /// `None`: a command.
    rule: Option<Rule>,
    condition: Box<dyn Condition>,
    _leases: Leases,
    armed: Instant,
    /// When its condition is evaluated next by itself.
    next: Instant,
    due: Option<Finding>,
    fired: u64,
    fired_at: Option<Instant>,
    seen: Option<String>,
    file: Option<String>,
    passed_over: u64,
    /// Why its last file could not be written.
    fault: Option<String>,
    /// When its last file got into its place, or could not be written.
    written_at: Option<Instant>,
}

/// The requests that a rule waits for.
struct WantedRequests<'a> {
    armed: &'a [ArmedTrigger],
    /// By group: the lowest threshold of the rules that watch it. Globs are matched once.
    lowest_ns: HashMap<u32, u64>,
}

impl WantedRequests<'_> {
    fn lowest_ns(&mut self, group: u32) -> u64 {
        *self.lowest_ns.entry(group).or_insert_with(|| {
            let thresholds = self.armed.iter().filter_map(|armed| match armed.condition.needs() {
                ReadingNeed::Requests { longer_than_ns, groups } if groups.has(group) => Some(longer_than_ns),
                _ => None,
            });
            thresholds.min().unwrap_or(u64::MAX)
        })
    }
}

/// The triggers that are armed.
#[derive(Debug, Default)]
pub(crate) struct Triggers {
    armed: Vec<ArmedTrigger>,
    /// The files that are being written: the last one, and those that wait for it.
    firing: Vec<Firing>,
    /// When the last file was begun.
    begun: Option<Instant>,
    /// When living tasks are read next.
    living: Option<Instant>,
    /// When CPU time was read last, and its value then.
    second: Option<(Instant, CpuReading)>,
    /// Whether a panic has its file at once.
    is_ready: bool,
}

impl Engine for Triggers {
    fn step(&mut self, now: Instant, before: &mut [Box<dyn Engine>]) -> Option<Instant> {
        let mut none = Recording::default();
        self.judge(now, lookout::find(before).unwrap_or(&mut none))
    }

    /// Finishes files with the samples that they have. Otherwise their profiles would sample during
    /// the whole sleep, and after ten minutes another process would remove the unfinished file.
    fn rest(&mut self, before: &mut [Box<dyn Engine>]) {
        let mut none = Recording::default();
        while let Some(firing) = self.firing.pop() {
            self.write(firing, lookout::find(before).unwrap_or(&mut none));
        }
    }

    fn judges(&self) -> bool {
        true
    }

    fn is_empty(&self) -> bool {
        self.armed.is_empty()
    }

    fn end(&mut self, number: u64) {
        self.armed.retain(|armed| armed.number != number);
        self.firing.retain(|firing| firing.number != number);
        self.note_slow();
    }
}

impl Triggers {
    /// Arms a trigger; its number. Without a rule it fires at once.
    pub(crate) fn arm(
        &mut self,
        rule: Option<Rule>,
        condition: Box<dyn Condition>,
        leases: Leases,
    ) -> Result<u64, String> {
        // There are several engines in a process, one after the other.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let now = Instant::now();
        self.make_room(now);
        if self.armed.len() >= MOST {
            return Err(format!("there are {MOST} triggers already: remove one of them"));
        }
        let seen = Finding { words: "a command".to_owned(), ..Finding::default() };
        let due = rule.is_none().then_some(seen);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        self.armed.push(ArmedTrigger {
            number,
            rule,
            condition,
            _leases: leases,
            armed: now,
            next: now,
            due,
            fired: 0,
            fired_at: None,
            seen: None,
            file: None,
            passed_over: 0,
            fault: None,
            written_at: None,
        });
        self.note_slow();
        self.be_ready(now);
        Ok(number)
    }

    /// Drops results of commands that nobody has removed: the client of a newer one reads it some
    /// time after its file was written.
    fn make_room(&mut self, now: Instant) {
        let is_new = |at| now.saturating_duration_since(at) < LISTED;
        self.armed.retain(|armed| armed.done_at().is_none_or(is_new));
        if self.armed.len() >= MOST
            && let Some(oldest) = self.armed.iter().position(|armed| armed.done_at().is_some())
        {
            self.armed.remove(oldest);
        }
    }

    /// Whether there is a trigger of that number.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.armed.iter().any(|armed| armed.number == number)
    }

    /// Checks that files can be written, before one has to be: a filter of system calls that kills
    /// for that does so now, while a user is watching.
    pub(crate) fn check() -> Result<(), String> {
        let settings = StoreSettings::own();
        let store = Rc::new(Store::open(settings)?);
        let name = file_name("check", SystemTime::now());
        store.check(&name).map_err(|why| format!("cannot write to {}: {why}", settings.directory.display()))
    }

    /// The rules have changed.
    fn note_slow(&mut self) {
        note_slow(self.thresholds_ns().min());
        keep_long_waits(self.lock_threshold_ns());
        self.living = None;
    }

    fn needs(&self) -> impl Iterator<Item = ReadingNeed<'_>> {
        self.armed.iter().map(|armed| armed.condition.needs())
    }

    /// The thresholds of rules on requests.
    fn thresholds_ns(&self) -> impl Iterator<Item = u64> {
        self.needs().filter_map(|need| match need {
            ReadingNeed::Requests { longer_than_ns, .. } => Some(longer_than_ns),
            _ => None,
        })
    }

    /// The lowest threshold of rules on locks.
    fn lock_threshold_ns(&self) -> Option<u64> {
        let thresholds = self.needs().filter_map(|need| match need {
            ReadingNeed::LockWaits { longer_than_ns } => Some(longer_than_ns),
            _ => None,
        });
        thresholds.min()
    }

    /// Judges what has been seen, and writes files.
    fn judge(&mut self, now: Instant, recording: &mut Recording) -> Option<Instant> {
        if self.armed.is_empty() {
            self.is_ready = false;
            self.second = None;
            return None;
        }
        let readings = self.readings(now);
        for armed in &mut self.armed {
            armed.evaluate(now, &readings);
        }
        self.fire(now, recording);
        let panic = self.be_ready(now);
        let evaluations =
            self.armed.iter().filter(|armed| armed.condition.every().is_some()).map(|armed| armed.next);
        let is_due = self.armed.iter().any(|armed| armed.due.is_some());
        let next_file = match (self.firing.last(), self.begun) {
            (Some(firing), _) => Some(firing.until),
            (None, Some(begun)) if is_due => Some(begun + APART),
            _ => None,
        };
        evaluations.chain(next_file).chain(panic).min()
    }

    /// Has the next panic wait for its file, if it is time; else the time when it is.
    fn be_ready(&mut self, now: Instant) -> Option<Instant> {
        let waiting = self.armed.iter().filter(|armed| armed.is_panic());
        let Some(from) = waiting.map(ArmedTrigger::ready_from).min() else {
            // The guards that a panic waits by are gone with the last of them.
            self.is_ready = false;
            return None;
        };
        let is_ready = from <= now;
        // Only then: a panic takes it away, and the lookout has not seen that one yet.
        if is_ready && !std::mem::replace(&mut self.is_ready, is_ready) {
            panics::ready();
        }
        self.is_ready = is_ready;
        (!is_ready).then_some(from)
    }

    /// Reads what the conditions need.
    fn readings(&mut self, now: Instant) -> Readings {
        let has_cpu = self.needs().any(|need| matches!(need, ReadingNeed::Cpu));
        let lock_waits = self.lock_threshold_ns().map_or_else(Vec::new, locks::long_waits);
        let mut readings = Readings { lock_waits, ..Readings::default() };
        let thresholds: Vec<u64> = self.thresholds_ns().collect();
        let mut wanted = WantedRequests { armed: &self.armed, lowest_ns: HashMap::new() };
        if let Some(&lowest) = thresholds.iter().min() {
            if readings.slow.try_reserve(SLOW).is_err() {
                return readings;
            }
            if self.living.is_none_or(|next| next <= now) {
                let mut lasting = Vec::new();
                if lasting.try_reserve(SLOW).is_err() {
                    return readings;
                }
                // How long until one of the tasks, or one that begins now, gets to a threshold.
                let mut next_ns = lowest;
                for task in living().filter(|task| is_request(task.task)) {
                    // One that is answered was noted with its head, if it took long.
                    let LivingTask { task, group, trace, age_ns: Some(age_ns), answered_ns: None, .. } = task
                    else {
                        continue;
                    };
                    let left = thresholds.iter().filter_map(|threshold| threshold.checked_sub(age_ns)).min();
                    next_ns = left.map_or(next_ns, |left| next_ns.min(left));
                    if age_ns > lowest && lasting.len() < SLOW && age_ns > wanted.lowest_ns(group) {
                        lasting.push(SlowRequest { task, group, age_ns, trace });
                    }
                }
                self.living = Some(now + Duration::from_nanos(next_ns).max(INTERVAL));
                readings.living = Some(lasting);
            }
            readings.missed = take_slow(|request| {
                let lowest_ns = wanted.lowest_ns(request.group);
                if request.age_ns <= lowest_ns {
                    raise_slow(request.group, lowest_ns);
                } else if readings.slow.len() < SLOW {
                    readings.slow.push(request);
                }
            });
        }
        let is_second =
            self.second.as_ref().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= SECOND);
        if !is_second {
            return readings;
        }
        let total = if has_cpu { CpuReading::now() } else { CpuReading::default() };
        if let Some((before, old)) = self.second.replace((now, total)).filter(|_| has_cpu)
            && let Some((_, new)) = &self.second
        {
            readings.cpu = new.since(&old, now.saturating_duration_since(before));
        }
        readings
    }

    /// Begins the next file, or ends the one that is being written, if it is time.
    fn fire(&mut self, now: Instant, recording: &mut Recording) {
        // One part in a step: the lookout does its other duties in between.
        if let Some(firing) = self.firing.pop_if(|firing| firing.until <= now) {
            self.write(firing, recording);
        }
        let is_apart = self.begun.is_none_or(|begun| now.saturating_duration_since(begun) >= APART);
        let may_begin = self.firing.is_empty() && is_apart;
        // The one that has not had a file for the longest. The process may end by a panic.
        let due =
            self.armed.iter_mut().filter(|armed| armed.due.is_some() && (may_begin || armed.is_panic()));
        let Some(armed) = due.min_by_key(|armed| (!armed.is_panic(), armed.fired_at)) else { return };
        let Some(mut seen) = armed.due.take() else { return };
        seen.add_trace();
        self.begun = Some(now);
        armed.fired_at = Some(now);
        armed.seen = Some(seen.words.clone());
        let rule = armed.rule.as_ref().map(Rule::to_string);
        let is_hurried = armed.is_panic();
        match Firing::begin(armed.number, rule, &seen, is_hurried, recording) {
            Ok(firing) => self.firing.push(firing),
            Err(why) => armed.written(Err(why)),
        }
    }

    /// Writes the next part of a file.
    fn write(&mut self, mut firing: Firing, recording: &mut Recording) {
        let Some(file) = firing.step(recording).transpose() else { return self.firing.push(firing) };
        if let Some(armed) = self.armed.iter_mut().find(|armed| armed.number == firing.number) {
            armed.written(file.map(|path| path.display().to_string()));
        }
    }

    /// All triggers, or the one of that number.
    pub(crate) fn list(&self, only: Option<u64>) -> TriggersAnswer {
        let is_firing = |number| self.firing.iter().any(|firing| firing.number == number);
        let wanted = self.armed.iter().filter(|armed| only.is_none_or(|number| armed.number == number));
        let settings = StoreSettings::own();
        let store = Store::open(settings);
        let used = store.as_ref().ok().and_then(|store| store.used().ok());
        TriggersAnswer {
            triggers: wanted.map(|armed| armed.row(is_firing(armed.number))).collect(),
            directory: settings.directory.display().to_string(),
            used_bytes: used,
            budget_bytes: settings.budget,
            fault: store.err(),
        }
    }
}

impl ArmedTrigger {
    fn evaluate(&mut self, now: Instant, readings: &Readings) {
        if let Some(every) = self.condition.every() {
            // Readings that several need are for all of them; the rest goes by its own time.
            if self.next > now && !self.condition.needs().is_in(readings) {
                return;
            }
            self.next = now + every;
        }
        let armed = now.saturating_duration_since(self.armed);
        let Some(seen) = self.condition.evaluate(readings, armed) else { return };
        let every = self.rule.as_ref().map_or(Duration::ZERO, |rule| rule.every);
        if self.due.is_some() || self.fired_at.is_some_and(|at| now.saturating_duration_since(at) < every) {
            self.passed_over += seen.times;
        } else {
            self.due = Some(seen);
        }
    }

    fn is_panic(&self) -> bool {
        self.condition.is_hurried()
    }

    /// When the next file may be begun.
    fn ready_from(&self) -> Instant {
        let every = self.rule.as_ref().map_or(Duration::ZERO, |rule| rule.every);
        self.fired_at.map_or(self.armed, |fired| fired + every.max(APART))
    }

    /// When a command, which fires once, was done.
    fn done_at(&self) -> Option<Instant> {
        self.written_at.filter(|_| self.rule.is_none())
    }

    fn written(&mut self, file: Result<String, String>) {
        if self.is_panic() {
            panics::written();
        }
        self.written_at = Some(Instant::now());
        match file {
            Ok(path) => {
                self.fired += 1;
                self.file = Some(path);
                self.fault = None;
            }
            Err(why) => self.fault = Some(why),
        }
    }

    fn row(&self, is_firing: bool) -> TriggerRow {
        let ns = |length: Duration| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let every = self.rule.as_ref().map_or(Duration::ZERO, |rule| rule.every);
        TriggerRow {
            number: self.number,
            rule: self.rule.as_ref().map_or_else(|| "command".to_owned(), Rule::to_string),
            armed_for_ns: ns(self.armed.elapsed()),
            every_ns: ns(every),
            fired: self.fired,
            fired_ago_ns: self.fired_at.map(|at| ns(at.elapsed())),
            seen: self.seen.clone(),
            file: self.file.clone(),
            passed_over: self.passed_over,
            is_writing: is_firing || self.due.is_some(),
            highest: self.condition.highest(),
            why_not: self.why_not(is_firing, every),
        }
    }

    /// Why it does not fire.
    fn why_not(&self, is_firing: bool, every: Duration) -> String {
        if is_firing || self.due.is_some() {
            return "it is firing".to_owned();
        }
        let fault = self.fault.as_ref().map(|why| format!("no file: {why}"));
        let recent = self.fired_at.map(|at| at.elapsed()).filter(|ago| *ago < every).map(|ago| {
            let times = match self.passed_over {
                0 => String::new(),
                1 => "; seen once more in all".to_owned(),
                n => format!("; seen {n} times more in all"),
            };
            format!("fired {} ago, at most each {}{times}", Span(ago), Span(every))
        });
        let limited = self.condition.part().and_then(asleep::why_limited);
        if limited.is_none() && fault.is_none() && recent.is_none() {
            return self.condition.why_not();
        }
        let all = [limited, fault, recent, self.condition.warning()];
        all.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests;
