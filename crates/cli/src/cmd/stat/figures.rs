//! One figure over several runs of a command.

use serde::Serialize;

/// Mean and spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Figure {
    pub(super) mean: f64,
    /// The standard deviation of the runs, not of the mean; 0 for a single run.
    pub(super) stddev: f64,
    /// `stddev` as a part of `mean`.
    pub(super) stddev_percent: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Figure {
    /// The figure of at least one value.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Figure {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let stddev = if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        Figure {
            mean,
            stddev,
            stddev_percent: if mean == 0.0 { 0.0 } else { stddev / mean * 100.0 },
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_that_of_a_sample() {
        let figure = Figure::of([2.0, 4.0, 6.0]);
        let expected = Figure { mean: 4.0, stddev: 2.0, stddev_percent: 50.0, min: 2.0, max: 6.0 };
        assert_eq!(figure, expected);
        assert_eq!(
            Figure::of([3.0]),
            Figure { mean: 3.0, stddev: 0.0, stddev_percent: 0.0, min: 3.0, max: 3.0 }
        );
        assert!(Figure::of([0.0, 0.0]).stddev_percent == 0.0, "nothing of nothing");
    }
}
