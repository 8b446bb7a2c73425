//! The statistics of the reports, each under its own name.
//!
//! A row is summed up by mean, sample standard deviation, minimum, maximum and median of its
//! values, one value a round. Two rows are compared round by round, because a disturbance of a
//! shared machine lasts longer than a round and so falls on both: the interval is that of the *mean
//! of the paired differences*, by Student's t. It supposes that the mean of the differences is
//! about normal, which a dozen rounds give unless single rounds are wildly off. Where other work on
//! the machine throws single rounds off, the interval of the *median of the paired differences* by
//! order statistics stands: it supposes nothing of the distribution, and is wider.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::table::value;

/// The summary of one row's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    /// How many values.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (n − 1); none for a single value.
    pub stddev: Option<f64>,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Middle value, or the mean of the two in the middle.
    pub median: f64,
}

impl Statistics {
    /// Sums up `values`; none when there is nothing to sum up or something that is not a number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let n = values.len();
        let mean = mean(values);
        let stddev = (n > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (n - 1) as f64).sqrt()
        });
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self { n, mean, stddev, min: sorted[0], max: sorted[n - 1], median: middle(&sorted) })
    }
}

/// A 95 % interval, with the quantity that it encloses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The quantity that it encloses.
    pub of: String,
    /// How it was made.
    pub method: String,
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} .. {}", value(Some(self.low)), value(Some(self.high)))
    }
}

impl Interval {
    /// Whether all of it lies between `-bound` and `bound`.
    #[must_use]
    pub fn is_within(&self, bound: f64) -> bool {
        self.low >= -bound && self.high <= bound
    }
}

/// The 95 % interval of the mean of paired `differences` by Student's t; none for fewer than two.
#[must_use]
pub fn paired_interval(differences: &[f64]) -> Option<Interval> {
    let summary = Statistics::of(differences)?;
    let standard_error = summary.stddev? / (summary.n as f64).sqrt();
    let half = student_t_975(summary.n - 1) * standard_error;
    Some(Interval {
        low: summary.mean - half,
        high: summary.mean + half,
        of: "mean of the paired differences".to_owned(),
        method: format!("Student t, {} degrees of freedom", summary.n - 1),
    })
}

/// The interval of the median of paired `differences` by order statistics, whose coverage is at
/// least 95 %; none for fewer than six, of which not even the whole range covers that.
#[must_use]
pub fn paired_median_interval(differences: &[f64]) -> Option<Interval> {
    let n = Statistics::of(differences)?.n;
    let rank = median_rank(n)?;
    let mut sorted = differences.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(Interval {
        low: sorted[rank - 1],
        high: sorted[n - rank],
        of: "median of the paired differences".to_owned(),
        method: format!("order statistics, {rank} from either end of {n}"),
    })
}

/// The greatest rank from either end between which the median of `n` values lies with at least 95
/// %: at most 2.5 % of Bin(n, 1/2) lie below it.
fn median_rank(n: usize) -> Option<usize> {
    // In logarithms: 2⁻ⁿ is no number any more where n is a thousand.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = log_term.exp();
    let mut rank = 0;
    while below <= 0.025 {
        log_term += ((n - rank) as f64).ln() - ((rank + 1) as f64).ln();
        rank += 1;
        below += log_term.exp();
    }
    (rank > 0).then_some(rank)
}

/// The values at these parts of the sorted `values` (0.5: the median, 1.0: the largest), by nearest
/// rank upwards; zeros where there are none.
pub(crate) fn quantiles<const N: usize>(mut values: Vec<u64>, parts: [f64; N]) -> [f64; N] {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    parts.map(|part| values.get((part * last as f64).ceil() as usize).map_or(0.0, |&value| value as f64))
}

/// Median of `a` over median of `b`; none when either has none or the divisor is zero.
#[must_use]
pub fn ratio_of_medians(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (Statistics::of(a)?.median, Statistics::of(b)?.median);
    (b != 0.0).then_some(a / b)
}

/// The mean of the middle half: it ignores outliers as the median does, and is finer than the step
/// of the clock that the values come from. None when there are no values.
#[must_use]
pub fn midmean(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = sorted.len() / 4;
    let middle = &sorted[cut..sorted.len() - cut];
    (!middle.is_empty()).then(|| mean(middle))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]) }
}

/// The 97.5 % point of Student's t.
///
/// Tabulated to 30 degrees of freedom; beyond, the expansion about the normal quantile (Abramowitz
/// and Stegun 26.7.5), whose error there is below 10⁻⁵.
#[must_use]
pub fn student_t_975(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706_205, 4.302_653, 3.182_446, 2.776_445, 2.570_582, 2.446_912, 2.364_624, 2.306_004, 2.262_157,
        2.228_139, 2.200_985, 2.178_813, 2.160_369, 2.144_787, 2.131_450, 2.119_905, 2.109_816, 2.100_922,
        2.093_024, 2.085_963, 2.079_614, 2.073_873, 2.068_658, 2.063_899, 2.059_539, 2.055_529, 2.051_831,
        2.048_407, 2.045_230, 2.042_272,
    ];
    match degrees {
        0 => f64::INFINITY,
        1..=30 => TABLE[degrees - 1],
        _ => {
            let z = 1.959_963_985_f64;
            let v = degrees as f64;
            let (z3, z5, z7) = (z.powi(3), z.powi(5), z.powi(7));
            z + (z3 + z) / (4.0 * v)
                + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
                + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * v * v * v)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-5 * b.abs().max(1.0)
    }

    #[test]
    fn a_summary_agrees_with_hand_computed_values() {
        // Sum 40, mean 5; squares of deviations 9 1 1 1 0 0 4 16 = 32; sample variance 32/7.
        let summary = Statistics::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!(summary.n, 8);
        assert!(close(summary.mean, 5.0));
        assert!(close(summary.stddev.unwrap(), (32.0_f64 / 7.0).sqrt()));
        assert!(close(summary.median, 4.5));
        assert!(close(summary.min, 2.0));
        assert!(close(summary.max, 9.0));
    }

    #[test]
    fn the_median_of_unsorted_values_is_the_middle() {
        assert!(close(Statistics::of(&[9.0, 1.0, 3.0]).unwrap().median, 3.0));
    }

    #[test]
    fn one_value_has_neither_deviation_nor_interval() {
        assert_eq!(Statistics::of(&[1.0]).unwrap().stddev, None);
        assert_eq!(paired_interval(&[1.0]), None);
    }

    #[test]
    fn neither_nothing_nor_nan_has_a_summary() {
        assert_eq!(Statistics::of(&[]), None);
        assert_eq!(Statistics::of(&[1.0, f64::NAN]), None);
        assert_eq!(Statistics::of(&[1.0, f64::INFINITY]), None);
    }

    #[test]
    fn the_paired_interval_agrees_with_hand_computation() {
        // Mean 3, sample variance 10/4, standard error sqrt(2.5/5) = sqrt(0.5), t(4) = 2.776445.
        let interval = paired_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!(close(interval.low, 3.0 - 2.776_445 * (0.5_f64).sqrt()));
        assert!(close(interval.high, 3.0 + 2.776_445 * (0.5_f64).sqrt()));
        assert!(interval.method.contains("4 degrees"));
        assert!(interval.is_within(5.0));
        assert!(!interval.is_within(4.9));
    }

    #[test]
    fn ranks_of_medians_agree_with_published_tables() {
        for (n, rank) in [(5, None), (6, Some(1)), (8, Some(1)), (9, Some(2)), (20, Some(6)), (40, Some(14))]
        {
            assert_eq!(median_rank(n), rank, "{n}");
        }
        // 2^-n is no number for this n; the normal approximation gives 4902.
        assert!(median_rank(10_000).unwrap().abs_diff(4902) <= 1);
    }

    #[test]
    fn the_midmean_is_that_of_the_middle_half() {
        assert!(close(midmean(&[9e9, 2.0, 3.0, -1e9]).unwrap(), 2.5));
        assert!(close(midmean(&[4.0]).unwrap(), 4.0));
        assert_eq!(midmean(&[]), None);
    }

    #[test]
    fn quantiles_are_samples() {
        let found = quantiles(vec![5, 1, 3, 2, 4], [0.5, 0.99, 1.0]);
        assert!(found.into_iter().zip([3.0, 5.0, 5.0]).all(|(a, b)| close(a, b)), "{found:?}");
        assert!(close(quantiles(Vec::new(), [0.5])[0], 0.0));
    }

    #[test]
    fn a_wild_value_leaves_the_medians_interval() {
        let mut differences: Vec<f64> = (1..=20).map(f64::from).collect();
        let calm = paired_median_interval(&differences).unwrap();
        assert!(close(calm.low, 6.0) && close(calm.high, 15.0));
        differences[19] = 1e9;
        assert_eq!(paired_median_interval(&differences).unwrap(), calm);
        assert_eq!(paired_median_interval(&differences[..5]), None);
    }

    #[test]
    fn the_t_quantile_agrees_with_published_tables() {
        for (degrees, published) in [
            (1, 12.7062),
            (10, 2.2281),
            (30, 2.0423),
            (31, 2.0395),
            (40, 2.0211),
            (60, 2.0003),
            (120, 1.9799),
        ] {
            let t = student_t_975(degrees);
            assert!((t - published).abs() < 6e-5, "{degrees}: {t}");
        }
        assert!(student_t_975(0).is_infinite());
    }

    #[test]
    fn ratios_of_medians_ignore_outliers_and_refuse_zero() {
        let ratio = ratio_of_medians(&[40.0, 42.0, 9000.0], &[2.0, 2.0, 2.0]).unwrap();
        assert!(close(ratio, 21.0));
        assert_eq!(ratio_of_medians(&[1.0], &[0.0]), None);
        assert_eq!(ratio_of_medians(&[], &[1.0]), None);
    }
}
