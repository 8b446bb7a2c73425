//! Waits for locks that take long: a rule like `lock>100ms`.
//!
//! A wait is seen while it lasts, or when it is over, and counts once.

use std::collections::HashSet;
use std::time::Duration;

use dormouse_locks::{LongWait, take_long_waits};

use super::condition::{Condition, why_not};
use super::readings::{Finding, Groups, INTERVAL, ReadingNeed, Readings, Span, of};
use crate::core::asleep::Part;
use crate::core::memory;
use crate::features::locks::verb::line;

/// The most waits that are read in one step.
const WAITS: usize = 1024;

#[derive(Debug)]
pub(crate) struct LockCondition {
    threshold: Duration,
    groups: Groups,
    highest_ns: u64,
    /// The waits that were over the threshold at the last reading, by their threads and beginnings.
    seen: HashSet<(u32, u64)>,
}

/// The waits that have taken longer, those that go on first.
pub(super) fn long_waits(longer_than_ns: u64) -> Vec<LongWait> {
    let mut waits = Vec::new();
    if memory::is_there(memory::SOME + WAITS * size_of::<LongWait>()) && waits.try_reserve(WAITS).is_ok() {
        take_long_waits(longer_than_ns, |wait| {
            if waits.len() < WAITS {
                waits.push(wait);
            }
        });
    }
    waits
}

impl LockCondition {
    pub(crate) fn new(threshold: Duration, groups: Groups) -> Self {
        Self { threshold, groups, highest_ns: 0, seen: HashSet::new() }
    }
}

impl Condition for LockCondition {
    fn every(&self) -> Option<Duration> {
        Some(INTERVAL)
    }

    fn part(&self) -> Option<Part> {
        Some(Part::Times)
    }

    fn needs(&self) -> ReadingNeed<'_> {
        ReadingNeed::LockWaits { longer_than_ns: self.threshold.as_nanos() as u64 }
    }

    fn evaluate(&mut self, readings: &Readings, armed: Duration) -> Option<Finding> {
        let (mut now, mut longest, mut times) = (HashSet::new(), None::<&LongWait>, 0);
        for wait in readings.lock_waits.iter().filter(|wait| self.groups.has(wait.group)) {
            let over = u128::from(wait.ns).checked_sub(self.threshold.as_nanos()).filter(|over| *over > 0);
            let Some(over) = over else { continue };
            self.highest_ns = self.highest_ns.max(wait.ns);
            let key = (wait.tid, wait.began);
            let is_known = self.seen.contains(&key) || now.contains(&key);
            if !wait.is_over {
                now.insert(key);
            }
            // One that was over the threshold when the trigger was armed is an old one.
            if is_known || over >= armed.as_nanos() {
                continue;
            }
            times += 1;
            if longest.is_none_or(|longest| longest.ns < wait.ns) {
                longest = Some(wait);
            }
        }
        self.seen = now;
        longest.map(|wait| finding(wait, times))
    }

    fn highest(&self) -> Option<String> {
        let span = |ns| Span(Duration::from_nanos(ns));
        (self.highest_ns > 0).then(|| format!("{} of {}", span(self.highest_ns), Span(self.threshold)))
    }

    fn why_not(&self) -> String {
        why_not(&self.groups, self.highest(), || "no such wait was seen".to_owned())
    }
}

fn finding(wait: &LongWait, times: u64) -> Finding {
    let place = wait.place();
    let by = match wait.held_by() {
        Some((group, held_at)) => format!(", held{} at {}", of_holder(group), line(&held_at)),
        None => ", whose holder is unknown".to_owned(),
    };
    let task = if wait.task == 0 { String::new() } else { format!(", task {}", wait.task) };
    Finding {
        words: format!(
            "a wait of {} for a {} at {} in thread {}{task}{}{by}",
            Span(Duration::from_nanos(wait.ns)),
            place.kind.name(),
            line(&place),
            wait.tid,
            of(wait.group)
        ),
        task: Some(wait.task).filter(|task| *task != 0),
        group: Some(wait.group).filter(|group| *group != 0),
        trace: None,
        times,
    }
}

/// The holder of a lock, for a sentence.
fn of_holder(group: u32) -> String {
    of(group).replacen(" of ", " by ", 1)
}
