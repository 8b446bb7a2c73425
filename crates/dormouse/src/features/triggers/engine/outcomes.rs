//! The outcomes of requests, and the objectives that they meet, over a while.
//!
//! The counts of the last while are kept in at most eleven readings: the difference of the newest
//! one and the oldest one is the while, and a tenth of it at most.

use std::collections::VecDeque;
use std::time::Duration;

use dormouse_protocol::{Objective, PercentText};

use super::condition::Condition;
use super::readings::{Finding, Groups, LONGEST, Readings, SECOND, Span, of};
use crate::core::asleep::Part;
use crate::core::ends::Ending;
use crate::core::group::Group;
use crate::core::memory;
use crate::core::tasks::TaskTotals;
use crate::features::triggers::rules::Counted;

/// A share of fewer requests than this says nothing.
const LEAST: u64 = 20;

/// The readings of a while, beside the newest.
const READINGS: u32 = 10;

/// Whose requests they are: a group's, by an objective if the rule is about these.
type Of = (u32, Option<Objective>);

/// Requests that have ended so far, and those that count.
type Ended = Vec<(Of, [u64; 2])>;

/// A whole, in millionths.
const MILLION: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct OutcomeCondition {
    counted: Counted,
    level: u64,
    length: Duration,
    groups: Groups,
    /// When they were taken, for how long the trigger had been armed; the oldest first.
    readings: VecDeque<(Duration, Ended)>,
    /// The highest value of a group, if one had enough requests.
    highest: Option<u64>,
}

impl OutcomeCondition {
    /// A rule on objectives counts the requests that missed them: more is worse, as in the others.
    pub(crate) fn new(counted: Counted, level: u64, length: Duration, groups: Groups) -> Self {
        let level = if counted == Counted::Met { MILLION.saturating_sub(level) } else { level };
        Self { counted, level, length, groups, readings: VecDeque::new(), highest: None }
    }

    fn ended(&self, group: Group) -> Ended {
        let by_outcome = |counted: fn(TaskTotals) -> u64| {
            let tasks = group.tasks();
            vec![((group.id(), None), [tasks.requests(), counted(tasks)])]
        };
        match self.counted {
            Counted::Failed => by_outcome(TaskTotals::failed),
            Counted::Cancelled => by_outcome(|tasks| tasks.outcomes()[Ending::Cancelled as usize]),
            Counted::Met => {
                let rows = group.read_objectives().into_iter();
                rows.map(|row| ((group.id(), Some(row.objective)), [row.all(), row.missed])).collect()
            }
        }
    }

    /// The time between two readings.
    fn apart(&self) -> Duration {
        (self.length / READINGS).max(SECOND)
    }

    /// The time since the last reading.
    fn since_last(&self, armed: Duration) -> Option<Duration> {
        self.readings.back().map(|(last, _)| armed.saturating_sub(*last))
    }

    /// Compares a reading with the oldest one of the while.
    fn judge(&mut self, armed: Duration, now: Ended) -> Option<Finding> {
        // After a gap (`sleep`, a disk that did not answer) the while begins anew: otherwise it
        // would be as long as the gap.
        if self.since_last(armed).is_some_and(|since| since > self.apart() + LONGEST) {
            self.readings.clear();
        }
        let is_old = |at: Duration| armed.saturating_sub(at) >= self.length;
        while self.readings.get(1).is_some_and(|(at, _)| is_old(*at)) {
            self.readings.pop_front();
        }
        let mut worst: Option<(u64, Of, u64)> = None;
        let (mut times, mut while_of) = (0, Duration::ZERO);
        if let Some((at, before)) = self.readings.front().filter(|(at, _)| is_old(*at)) {
            while_of = armed.saturating_sub(*at);
            for &(of, now) in &now {
                let before =
                    before.iter().find(|(before, _)| *before == of).map_or([0; 2], |(_, before)| *before);
                let [all, counted] = [0, 1].map(|n| now[n].saturating_sub(before[n]));
                let Some((value, is_over)) = self.value(all, counted, while_of) else { continue };
                self.highest = self.highest.max(Some(value));
                if is_over {
                    times += 1;
                    worst = worst.max(Some((value, of, all)));
                }
            }
        }
        if worst.is_some() {
            // It begins anew.
            self.readings.clear();
        }
        self.readings.push_back((armed, now));
        let (value, (group, objective), all) = worst?;
        let words = match self.counted {
            Counted::Failed => {
                format!("{value} % of {all} requests failed in {}{}", Span(while_of), of(group))
            }
            Counted::Cancelled => {
                format!("{value} requests cancelled each second, for {}{}", Span(while_of), of(group))
            }
            Counted::Met => {
                let objective = objective.unwrap_or_default();
                format!(
                    "{} % of {all} requests met {objective} in {}{}",
                    met(value),
                    Span(while_of),
                    of(group)
                )
            }
        };
        Some(Finding { words, task: None, group: Some(group), trace: None, times })
    }

    /// The value that is compared with the level, in whole numbers, and whether it is over that.
    /// `None` for a share of too few.
    fn value(&self, all: u64, counted: u64, length: Duration) -> Option<(u64, bool)> {
        let (value, one) = match self.counted {
            Counted::Failed | Counted::Met if all < LEAST => return None,
            Counted::Failed => (u128::from(counted) * 100, u128::from(all)),
            // A share that is missed is shown rounded up, so that one below its level looks so.
            Counted::Met => (u128::from(counted) * u128::from(MILLION), u128::from(all)),
            Counted::Cancelled => (u128::from(counted) * 1000, length.as_millis().max(1)),
        };
        let rounded = if self.counted == Counted::Met { value.div_ceil(one) } else { value / one };
        let rounded = u64::try_from(rounded).unwrap_or(u64::MAX);
        Some((rounded, value > u128::from(self.level) * one))
    }

    fn has_no_objective(&self) -> bool {
        let mut groups = Group::all().into_iter().filter(|group| self.groups.has(group.id()));
        groups.all(|group| group.read_objectives().is_empty())
    }
}

impl Condition for OutcomeCondition {
    fn every(&self) -> Option<Duration> {
        Some(SECOND)
    }

    fn part(&self) -> Option<Part> {
        (self.counted == Counted::Met).then_some(Part::Times)
    }

    fn evaluate(&mut self, _: &Readings, armed: Duration) -> Option<Finding> {
        let is_due = self.since_last(armed).is_none_or(|since| since >= self.apart());
        if !is_due || !memory::is_there(memory::SOME) {
            return None;
        }
        let groups = Group::all().into_iter().filter(|group| self.groups.has(group.id()));
        let now = groups.flat_map(|group| self.ended(group)).collect();
        self.judge(armed, now)
    }

    fn highest(&self) -> Option<String> {
        let (highest, level) = (self.highest?, self.level);
        Some(match self.counted {
            Counted::Failed => format!("{highest} % of {level} %"),
            Counted::Cancelled => format!("{highest}/s of {level}/s"),
            Counted::Met => format!("{} % of {} %", met(highest), met(level)),
        })
    }

    fn why_not(&self) -> String {
        let end = if self.counted == Counted::Met { "lowest" } else { "highest" };
        let seen = || self.highest().map(|highest| format!("{end} seen {highest}"));
        let none = match self.counted {
            Counted::Met if self.has_no_objective() => {
                "no group has an objective: set one by `Group::objective`, or by `--objective`".to_owned()
            }
            Counted::Failed | Counted::Met => {
                format!("no group has ended {LEAST} requests in {}", Span(self.length))
            }
            Counted::Cancelled => format!("not armed for {} yet", Span(self.length)),
        };
        self.groups.warning().or_else(seen).unwrap_or(none)
    }
}

/// The share that met an objective, for the share that missed it.
fn met(missed: u64) -> PercentText {
    PercentText(MILLION.saturating_sub(missed) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(counted: Counted, level: u64, seconds: u64) -> OutcomeCondition {
        OutcomeCondition::new(counted, level, Duration::from_secs(seconds), Groups(None))
    }

    /// The seconds in which a trigger fires. Group 7 ends these requests and outcomes in each
    /// second.
    fn fires(condition: &mut OutcomeCondition, each: impl Fn(u64) -> [u64; 2]) -> Vec<u64> {
        let mut sum = [0; 2];
        let mut all = Vec::new();
        for second in 0..30 {
            let now = vec![((3, None), [1000, 0]), ((7, None), sum)];
            if let Some(seen) = condition.judge(Duration::from_secs(second), now) {
                assert_eq!((seen.group, seen.times), (Some(7), 1), "{}", seen.words);
                all.push(second);
            }
            assert!(condition.readings.len() <= 11, "{}", condition.readings.len());
            let [more, counted] = each(second);
            sum = [sum[0] + more, sum[1] + counted];
        }
        all
    }

    #[test]
    fn a_share_of_errors_fires_over_its_length() {
        let of = |level, each: fn(u64) -> [u64; 2]| fires(&mut condition(Counted::Failed, level, 10), each);
        assert_eq!(of(5, |_| [100, 6]), [10, 20], "and begins anew");
        assert_eq!(of(5, |_| [100, 5]), [0; 0], "not over it");
        assert_eq!(of(5, |second| [100, if second == 14 { 51 } else { 0 }]), [15]);
        assert_eq!(of(5, |_| [2, 1]), [10, 20], "of twenty at least");
        assert_eq!(of(0, |_| [1, 1]), [0; 0], "of ten nothing");
    }

    #[test]
    fn a_gap_is_no_part_of_a_while() {
        let mut one = condition(Counted::Failed, 5, 10);
        let mut judge = |second, all, failed| {
            let seen = one.judge(Duration::from_secs(second), vec![((7, None), [all, failed])]);
            seen.map(|seen| seen.words)
        };
        assert_eq!(judge(0, 0, 0), None);
        assert_eq!(judge(28_800, 120_000, 8_400), None, "eight hours asleep");
        assert_eq!(judge(28_805, 120_500, 8_400), None, "half of the while");
        // A reading that comes 5 s late leaves no gap.
        let words = judge(28_811, 121_000, 8_460).unwrap();
        assert!(words.starts_with("6 % of 1000 requests failed in 11 s"), "{words}");
    }

    #[test]
    fn a_missed_objective_fires_over_its_length() {
        let of = |level, each: fn(u64) -> [u64; 2]| fires(&mut condition(Counted::Met, level, 10), each);
        assert_eq!(of(990_000, |_| [100, 2]), [10, 20], "and begins anew");
        assert_eq!(of(990_000, |_| [100, 1]), [0; 0], "met by as many as should");
        assert_eq!(of(990_000, |_| [1, 1]), [0; 0], "of ten nothing");
        let mut one = condition(Counted::Met, 999_500, 10);
        assert_eq!(fires(&mut one, |second| [1000, if second < 5 { 2 } else { 0 }]), [10]);
        assert_eq!(one.highest().unwrap(), "99.9 % of 99.95 %");
    }

    #[test]
    fn a_rate_of_cancelled_requests_fires() {
        let of = |level, each: fn(u64) -> [u64; 2]| fires(&mut condition(Counted::Cancelled, level, 1), each);
        assert_eq!(of(10, |second| [11, if second == 5 { 11 } else { 10 }]), [6]);
        assert_eq!(of(0, |second| [1, u64::from(second == 5)]), [6]);
    }
}
