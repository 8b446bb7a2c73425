//! Intervals of means and medians.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::distributions::student_t_quantile;
use crate::summary::{Statistics, middle, sorted};

/// A confidence interval, and the quantity that it is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The quantity that lies in the interval.
    pub of: String,
    /// The method by which the interval was computed.
    pub method: String,
}

/// With as many digits as the format string requests (`{:.3}`).
impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.low, f)?;
        f.write_str(" .. ")?;
        fmt::Display::fmt(&self.high, f)
    }
}

impl Interval {
    /// Whether the whole interval lies between `-bound` and `bound`.
    #[must_use]
    pub fn is_within(&self, bound: f64) -> bool {
        self.low >= -bound && self.high <= bound
    }

    /// Whether `value` lies in the interval, including its ends.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// A number estimated from values, and the interval around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// The interval around it; `None` if there are too few values for the requested confidence.
    pub interval: Option<Interval>,
}

/// The 95 % interval of the mean of paired `differences` by Student's t; `None` for fewer than two.
#[must_use]
pub fn paired_interval(differences: &[f64]) -> Option<Interval> {
    let summary = Statistics::of(differences)?;
    let standard_error = summary.stddev? / (summary.n as f64).sqrt();
    let half = student_t_quantile(0.975, summary.n - 1) * standard_error;
    Some(Interval {
        low: summary.mean - half,
        high: summary.mean + half,
        of: "mean of the paired differences".to_owned(),
        method: format!("Student t, {} degrees of freedom", summary.n - 1),
    })
}

/// The interval of the median of paired `differences` by order statistics, whose coverage is at
/// least 95 %; `None` for fewer than six, because even the whole range of five values covers less.
#[must_use]
pub fn paired_median_interval(differences: &[f64]) -> Option<Interval> {
    let interval = median(differences, 0.95)?.interval?;
    Some(Interval { of: "median of the paired differences".to_owned(), ..interval })
}

/// The median, and its interval by order statistics, whose coverage is at least `confidence` (0.95
/// for 95 %). It assumes nothing about the distribution. `None` without values.
#[must_use]
pub fn median(values: &[f64], confidence: f64) -> Option<Estimate> {
    let sorted = sorted(values)?;
    let n = sorted.len();
    let interval = median_rank(n, confidence).map(|rank| Interval {
        low: sorted[rank - 1],
        high: sorted[n - rank],
        of: "median".to_owned(),
        method: format!("order statistics, {rank} from either end of {n}"),
    });
    Some(Estimate { value: middle(&sorted), interval })
}

/// The greatest rank from either end between which the median of `n` values lies with this
/// confidence: at most half the rest of Bin(n, 1/2) lies below it.
fn median_rank(n: usize, confidence: f64) -> Option<usize> {
    let tail = (1.0 - confidence) / 2.0;
    // In logarithms: 2⁻ⁿ is no number any more where n is a thousand.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = log_term.exp();
    let mut rank = 0;
    while below <= tail && rank < n / 2 {
        log_term += ((n - rank) as f64).ln() - ((rank + 1) as f64).ln();
        rank += 1;
        below += log_term.exp();
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-5 * b.abs().max(1.0)
    }

    #[test]
    fn the_paired_interval_agrees_with_hand_computation() {
        // Mean 3, sample variance 10/4, standard error sqrt(2.5/5) = sqrt(0.5), t(4) = 2.776445.
        let interval = paired_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!(close(interval.low, 3.0 - 2.776_445 * (0.5_f64).sqrt()));
        assert!(close(interval.high, 3.0 + 2.776_445 * (0.5_f64).sqrt()));
        assert!(interval.method.contains("4 degrees"));
        assert!(interval.is_within(5.0) && !interval.is_within(4.9));
        assert!(interval.contains(3.0) && !interval.contains(5.0));
        assert_eq!(format!("{interval:.2}"), "1.04 .. 4.96");
        assert_eq!(paired_interval(&[1.0]), None);
    }

    #[test]
    fn ranks_of_medians_agree_with_published_tables() {
        // Conover, Practical Nonparametric Statistics, table A3 (binomial, p = 0.5).
        let at_95 = [(5, None), (6, Some(1)), (8, Some(1)), (9, Some(2)), (20, Some(6)), (40, Some(14))];
        let at_99 = [(7, None), (8, Some(1)), (10, Some(1)), (20, Some(4)), (25, Some(6))];
        for (confidence, ranks) in [(0.95, &at_95[..]), (0.99, &at_99[..])] {
            for &(n, rank) in ranks {
                assert_eq!(median_rank(n, confidence), rank, "{n} at {confidence}");
            }
        }
        // 2^-n is no number for this n; the normal approximation gives 4902.
        assert!(median_rank(10_000, 0.95).unwrap().abs_diff(4902) <= 1);
    }

    #[test]
    fn no_confidence_is_too_wild() {
        for confidence in [-1.0, 0.0, 1.0, 2.0, f64::NAN] {
            for n in 0..5 {
                assert!(median_rank(n, confidence).is_none_or(|rank| rank * 2 <= n));
            }
        }
    }

    #[test]
    fn a_wild_value_leaves_the_medians_interval() {
        let mut differences: Vec<f64> = (1..=20).map(f64::from).collect();
        let calm = paired_median_interval(&differences).unwrap();
        assert!(close(calm.low, 6.0) && close(calm.high, 15.0));
        differences[19] = 1e9;
        assert_eq!(paired_median_interval(&differences).unwrap(), calm);
        assert_eq!(paired_median_interval(&differences[..5]), None);
        let few = median(&differences[..5], 0.95).unwrap();
        assert!(few.interval.is_none() && close(few.value, 3.0));
    }
}
