//! Verdicts on the pairs: a few looks at the data, whose intervals hold for all looks and rows
//! together.
//!
//! Each look gets a part of the total allowed error (a *spending function* of Lan and `DeMets`:
//! `t²` of it is spent when the part `t` of the time is over), divided among the rows of the look:
//! half of it is for the average of groups, where a small effect on all of them shows first.
//! Therefore groups, early looks and an end at any time add no error. The interval of a row is the
//! intersection of the intervals of all its looks.
//!
//! # References
//!
//! Lan, `DeMets`: Discrete sequential boundaries for clinical trials, Biometrika 70 (1983). Hodges,
//! Lehmann: Estimates of location based on rank tests, Ann. Math. Statist. 34 (1963).

use std::collections::BTreeMap;

use dormouse_statistics::{normal_quantile, shift_of_pairs};

use super::pairs::{Contrast, Statistic, Whose};

/// The probability that any row of an experiment shows what is not there.
pub(super) const ERROR: f64 = 0.002;

/// The parts of the time after which there is a look.
const LOOKS: [f64; 5] = [0.125, 0.25, 0.5, 0.75, 1.0];

/// The share of experiments that would show the least change that is called visible.
const POWER: f64 = 0.9;

/// The verdict on a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    More,
    Less,
    Nothing,
    /// Too few blocks to show anything.
    TooFew,
}

/// A row with its verdict. Changes are parts of the figure with the keys off.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub(super) contrast: Contrast,
    pub(super) verdict: Verdict,
    /// Infinite where there was nothing with the keys off.
    pub(super) change: Option<f64>,
    pub(super) interval: Option<[f64; 2]>,
    /// The least change that would have been seen.
    pub(super) visible: Option<f64>,
}

/// All looks of an experiment.
#[derive(Debug)]
pub(super) struct Judge {
    /// The total allowed error.
    error: f64,
    looks: usize,
    spent: f64,
    /// The part that the intervals of each row have in common so far.
    common: BTreeMap<(Whose, Statistic), [f64; 2]>,
    pub(super) findings: Vec<Finding>,
}

impl Judge {
    /// One that shows what is not there with at most this probability.
    pub(super) fn new(error: f64) -> Judge {
        Judge { error, looks: 0, spent: 0.0, common: BTreeMap::new(), findings: Vec::new() }
    }

    /// Looks at the rows if it is time to, after the part `t` of the time; the last look takes what
    /// is left. True if nothing new is to be expected.
    pub(super) fn look(&mut self, t: f64, is_last: bool, contrasts: impl FnOnce() -> Vec<Contrast>) -> bool {
        let due = LOOKS.get(self.looks).is_some_and(|&look| t >= look);
        if !is_last && !due {
            return false;
        }
        self.looks += LOOKS[self.looks.min(LOOKS.len())..].iter().filter(|&&look| t >= look).count();
        let spends = if is_last { self.error } else { self.error * t.min(1.0).powi(2) };
        let error = spends - std::mem::replace(&mut self.spent, spends);
        let contrasts = contrasts();
        let count = |is_average| {
            let is_meant = |row: &&Contrast| row.is_enough() && (row.whose == Whose::Average) == is_average;
            contrasts.iter().filter(is_meant).count()
        };
        let (average, others) = (count(true), count(false));
        let share = |row: &Contrast| match (row.whose, average) {
            (_, 0) => error / others.max(1) as f64,
            (Whose::Average, _) => error / 2.0,
            _ => error / 2.0 / others.max(1) as f64,
        };
        let shares: Vec<f64> = contrasts.iter().map(share).collect();
        self.findings =
            contrasts.into_iter().zip(shares).map(|(row, share)| self.judge(row, share)).collect();
        self.is_clear()
    }

    fn judge(&mut self, contrast: Contrast, error: f64) -> Finding {
        let now = shift_of_pairs(&contrast.differences, 1.0 - error).filter(|_| contrast.is_enough());
        let key = (contrast.whose, contrast.statistic);
        let estimate = now.as_ref().map(|now| change(now.value));
        let blur = contrast.blur;
        let seen = now
            .and_then(|now| now.interval)
            .map(|seen| [(1.0 + change(seen.low)) / blur - 1.0, (1.0 + change(seen.high)) * blur - 1.0]);
        let before = self.common.get(&key).copied();
        let interval = match (before, seen) {
            (Some(a), Some(b)) => {
                let common = [a[0].max(b[0]), a[1].min(b[1])];
                // An effect that has changed with time is that of all the time.
                Some(if common[0] <= common[1] { common } else { b })
            }
            (a, b) => a.or(b),
        };
        if let Some(interval) = interval {
            self.common.insert(key, interval);
        }
        let estimate = estimate.zip(interval).map(|(change, [low, high])| change.max(low).min(high));
        let verdict = match interval {
            None => Verdict::TooFew,
            Some([low, _]) if low > 0.0 => Verdict::More,
            Some([_, high]) if high < 0.0 => Verdict::Less,
            Some(_) => Verdict::Nothing,
        };
        // Half of an interval is this many standard errors, and an effect must be some more away
        // from zero.
        let errors = -normal_quantile(error / 2.0);
        let further = 1.0 + normal_quantile(POWER) / errors;
        let visible = seen.map(|[low, high]| (high - low) / 2.0 * further);
        Finding { contrast, verdict, change: estimate, interval, visible }
    }

    /// Whether an effect is known to within half of it, and every other row that has enough
    /// requests as well.
    fn is_clear(&self) -> bool {
        // Sizes of groups that mix both states are no good.
        let shown = |finding: &&Finding| {
            matches!(finding.verdict, Verdict::More | Verdict::Less) && !finding.contrast.is_mixed
        };
        let largest = self.findings.iter().filter(shown).filter_map(|finding| finding.change);
        let largest = largest.fold(0.0, |most: f64, change| most.max(change.abs()));
        let known = |finding: &Finding| match finding.interval {
            Some([low, high]) => high - low <= largest,
            None => !finding.contrast.is_enough(),
        };
        largest > 0.0 && self.findings.iter().all(known)
    }
}

/// A difference, a part of the mean of both states, as a part of the state with the keys off.
fn change(difference: f64) -> f64 {
    (1.0 + difference / 2.0) / (1.0 - difference / 2.0) - 1.0
}
