//! Numbers that summarize values.

/// The summary of a row's values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    /// The number of values.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation (n − 1); `None` for a single value.
    pub stddev: Option<f64>,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// Middle value, or the mean of the two in the middle.
    pub median: f64,
}

impl Statistics {
    /// The summary of `values`; `None` if there are none or one is not a number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values)?;
        let n = values.len();
        let mean = mean(values);
        let stddev = (n > 1).then(|| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (n - 1) as f64).sqrt()
        });
        Some(Self { n, mean, stddev, min: sorted[0], max: sorted[n - 1], median: middle(&sorted) })
    }
}

/// The values at these parts of the sorted `values` (0.5: the median, 1.0: the largest), by nearest
/// rank upwards; zeros if there are no values.
#[must_use]
pub fn quantiles<const N: usize>(mut values: Vec<u64>, parts: [f64; N]) -> [f64; N] {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    parts.map(|part| values.get((part * last as f64).ceil() as usize).map_or(0.0, |&value| value as f64))
}

/// Median of `a` divided by median of `b`; `None` if either has no values or the divisor is zero.
#[must_use]
pub fn ratio_of_medians(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (Statistics::of(a)?.median, Statistics::of(b)?.median);
    (b != 0.0).then_some(a / b)
}

/// The mean of the middle half of the values: it ignores outliers as the median does, and is finer
/// than the resolution of the clock that the values come from. `None` without values.
#[must_use]
pub fn midmean(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values)?;
    let cut = sorted.len() / 4;
    Some(mean(&sorted[cut..sorted.len() - cut]))
}

/// The geometric mean; `None` unless all values are above zero.
#[must_use]
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let is_positive = |value: &f64| *value > 0.0 && value.is_finite();
    if values.is_empty() || !values.iter().all(is_positive) {
        return None;
    }
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    Some(mean(&logarithms).exp())
}

/// The values in order, if there are any and all are finite.
pub(crate) fn sorted(values: &[f64]) -> Option<Vec<f64>> {
    if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(sorted)
}

/// The median of values in order, of which there is at least one.
pub(crate) fn middle(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    if n % 2 == 1 { sorted[n / 2] } else { f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]) }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
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
    fn one_value_has_no_deviation() {
        assert_eq!(Statistics::of(&[1.0]).unwrap().stddev, None);
    }

    #[test]
    fn neither_nothing_nor_nan_has_a_summary() {
        assert_eq!(Statistics::of(&[]), None);
        assert_eq!(Statistics::of(&[1.0, f64::NAN]), None);
        assert_eq!(Statistics::of(&[1.0, f64::INFINITY]), None);
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
    fn ratios_of_medians_ignore_outliers_and_refuse_zero() {
        let ratio = ratio_of_medians(&[40.0, 42.0, 9000.0], &[2.0, 2.0, 2.0]).unwrap();
        assert!(close(ratio, 21.0));
        assert_eq!(ratio_of_medians(&[1.0], &[0.0]), None);
        assert_eq!(ratio_of_medians(&[], &[1.0]), None);
    }

    #[test]
    fn the_geometric_mean_balances_ratios() {
        assert!(close(geometric_mean(&[2.0, 0.5]).unwrap(), 1.0));
        assert!(close(geometric_mean(&[1e-200, 1e200, 1e-300, 1e300]).unwrap(), 1.0));
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert_eq!(geometric_mean(&[]), None);
    }
}
