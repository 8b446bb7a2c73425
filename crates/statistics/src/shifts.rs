//! How much larger one sample is than another, by Hodges and Lehmann.
//!
//! The shift between two samples is the median of all differences of a value of one and a value of
//! the other; that of pairs is the median of the means of any two differences. Its interval goes
//! from one of these numbers to another, at the rank that the corresponding test allows: it
//! contains the shifts after whose subtraction the test finds no difference.
//!
//! # References
//!
//! Hodges and Lehmann, Annals of Mathematical Statistics 34 (1963); Hollander and Wolfe,
//! Nonparametric Statistical Methods, sections 3.2, 3.3, 4.2 and 4.3.

use crate::distributions::{normal_quantile, sums_of_chosen, sums_of_subsets};
use crate::interval::{Estimate, Interval};
use crate::ranks::COUNTED;
use crate::summary::sorted;

/// How much larger `b` is than `a`, with the interval that belongs to
/// [`mann_whitney`](crate::mann_whitney). `None` if either has no values.
#[must_use]
pub fn shift(a: &[f64], b: &[f64], confidence: f64) -> Option<Estimate> {
    let (a, b) = (sorted(a)?, sorted(b)?);
    let (m, n) = (a.len(), b.len());
    let tail = (1.0 - confidence) / 2.0;
    let rank = if m + n <= COUNTED {
        let ways = sums_of_chosen(&(1..=m + n).collect::<Vec<_>>(), n);
        rank_within(ways.get(n * (n + 1) / 2..).unwrap_or_default(), &ways, tail)
    } else {
        let (m, n) = (m as f64, n as f64);
        rank_about_normal(m * n / 2.0, m * n * (m + n + 1.0) / 12.0, tail)
    };
    // For each value of `a`, from the smallest, fewer values of `b` are beyond the limit.
    let count = |limit: f64| {
        let mut within = 0;
        let counts = a.iter().map(|&a| {
            while within < n && b[within] - a <= limit {
                within += 1;
            }
            within as u64
        });
        counts.sum()
    };
    estimate(m as u64 * n as u64, rank, count, "shift of Hodges and Lehmann", "Mann and Whitney")
}

/// The center of paired `differences`, with the interval that belongs to
/// [`signed_rank`](crate::signed_rank). `None` without values.
#[must_use]
pub fn shift_of_pairs(differences: &[f64], confidence: f64) -> Option<Estimate> {
    let sorted = sorted(differences)?;
    let n = sorted.len();
    let tail = (1.0 - confidence) / 2.0;
    let all = n as u64 * (n as u64 + 1) / 2;
    let rank = if n <= COUNTED {
        let ways = sums_of_subsets(&(1..=n).collect::<Vec<_>>());
        rank_within(&ways, &ways, tail)
    } else {
        let n = n as f64;
        rank_about_normal(n * (n + 1.0) / 4.0, n * (n + 1.0) * (2.0 * n + 1.0) / 24.0, tail)
    };
    // Of each value with itself and the larger ones: the larger it is, the fewer are within.
    let count = |limit: f64| {
        let mut end = n;
        let counts = sorted.iter().enumerate().map(|(index, &value)| {
            while end > 0 && f64::midpoint(value, sorted[end - 1]) > limit {
                end -= 1;
            }
            end.saturating_sub(index) as u64
        });
        counts.sum()
    };
    estimate(all, rank, count, "shift of Hodges and Lehmann", "signed ranks")
}

/// The greatest rank from either end with at most `tail` of all `ways` below it, where `from` has
/// the ways for each count from zero.
fn rank_within(from: &[f64], ways: &[f64], tail: f64) -> Option<u64> {
    let allowed = tail * ways.iter().sum::<f64>();
    let mut below = 0.0;
    let fits = from.iter().take_while(|&&ways| {
        below += ways;
        below <= allowed
    });
    let rank = fits.count() as u64;
    (rank > 0).then_some(rank)
}

fn rank_about_normal(mean: f64, variance: f64, tail: f64) -> Option<u64> {
    let rank = (mean + normal_quantile(tail) * variance.sqrt()).floor();
    (rank >= 1.0).then_some(rank as u64)
}

/// The median of `all` numbers, and the interval from the `rank`-th smallest to the `rank`-th
/// largest. `count` returns how many numbers are at most a limit.
fn estimate(
    all: u64,
    rank: Option<u64>,
    count: impl Fn(f64) -> u64,
    of: &str,
    method: &str,
) -> Option<Estimate> {
    let nth = |rank: u64| nth_smallest(rank, &count);
    let interval = rank.filter(|&rank| rank <= all / 2).map(|rank| Interval {
        low: nth(rank),
        high: nth(all + 1 - rank),
        of: of.to_owned(),
        method: format!("{method}, {rank} from either end of {all}"),
    });
    let value = f64::midpoint(nth(all.div_ceil(2)), nth(all / 2 + 1));
    // The difference of two huge numbers may be none.
    let is_finite = |it: &Interval| it.low.is_finite() && it.high.is_finite();
    value.is_finite().then(|| Estimate { value, interval: interval.filter(is_finite) })
}

/// The smallest number that at least `rank` numbers do not exceed.
///
/// There are as many differences as pairs, so they are not written down: the answer is found bit by
/// bit, in 64 counts.
fn nth_smallest(rank: u64, count: &impl Fn(f64) -> u64) -> f64 {
    /// Floating-point numbers in their order are whole numbers in theirs.
    fn float(ordered: u64) -> f64 {
        f64::from_bits(if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered })
    }
    fn ordered(float: f64) -> u64 {
        let bits = float.to_bits();
        if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
    }
    let (mut low, mut high) = (ordered(f64::NEG_INFINITY), ordered(f64::INFINITY));
    while low < high {
        let middle = low + (high - low) / 2;
        if count(float(middle)) >= rank { high = middle } else { low = middle + 1 }
    }
    float(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::middle;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    /// Permeability of the human chorioamnion at term and at 12 to 26 weeks: Hollander and Wolfe,
    /// table 4.1 and example 4.1.
    const TERM: [f64; 10] = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
    const EARLY: [f64; 5] = [1.15, 0.88, 0.90, 0.74, 1.21];

    /// Hamilton's depression factor after a tranquillizer, less that before it: Hollander and
    /// Wolfe,
    /// table 3.1 and example 3.1.
    const AFTER_LESS_BEFORE: [f64; 9] =
        [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];

    #[test]
    fn shifts_agree_with_published_examples() {
        let found = shift(&TERM, &EARLY, 0.95).unwrap();
        assert!(close(found.value, -0.305), "{found:?}");
        let interval = found.interval.unwrap();
        assert!(close(interval.low, -0.76) && close(interval.high, 0.15), "{interval:?}");
        let found = shift_of_pairs(&AFTER_LESS_BEFORE, 0.95).unwrap();
        assert!(close(found.value, -0.46), "{found:?}");
        let interval = found.interval.unwrap();
        assert!(close(interval.low, -0.786) && close(interval.high, -0.010), "{interval:?}");
    }

    #[test]
    fn tests_agree_with_published_examples() {
        // P = 0.2544 and P = 0.0391, two-sided.
        let found = crate::mann_whitney(&TERM, &EARLY).unwrap();
        assert!((found.p - 0.2544).abs() < 5e-5 && close(found.statistic, 15.0), "{found:?}");
        let found = crate::signed_rank(&AFTER_LESS_BEFORE).unwrap();
        assert!((found.p - 0.0391).abs() < 5e-5 && close(found.statistic, 5.0), "{found:?}");
    }

    /// Every difference written down, for numbers that come from a small generator.
    #[test]
    fn shifts_are_medians_of_all_differences() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 60) as f64 - 7.0
        };
        for size in 1..40 {
            let a: Vec<f64> = (0..size).map(|_| next()).collect();
            let b: Vec<f64> = (0..40 - size).map(|_| next() * 1.5).collect();
            let mut all: Vec<f64> = a.iter().flat_map(|a| b.iter().map(move |b| b - a)).collect();
            all.sort_by(f64::total_cmp);
            assert!(close(shift(&a, &b, 0.95).unwrap().value, middle(&all)), "{a:?} {b:?}");
            let mut all: Vec<f64> = (0..size)
                .flat_map(|i| (i..size).map(move |j| (i, j)))
                .map(|(i, j)| f64::midpoint(a[i], a[j]))
                .collect();
            all.sort_by(f64::total_cmp);
            assert!(close(shift_of_pairs(&a, 0.95).unwrap().value, middle(&all)), "{a:?}");
        }
    }

    #[test]
    fn intervals_exclude_what_the_test_refuses() {
        let a: Vec<f64> = (0..8).map(f64::from).collect();
        for moved in 0..12 {
            let b: Vec<f64> = a.iter().map(|value| value + f64::from(moved) + 0.25).collect();
            let is_refused = crate::mann_whitney(&a, &b).unwrap().p <= 0.05;
            let interval = shift(&a, &b, 0.95).unwrap().interval.unwrap();
            assert_eq!(is_refused, !interval.contains(0.0), "{moved}: {interval:?}");
        }
    }

    #[test]
    fn few_and_wild_values_are_no_danger() {
        assert_eq!(shift(&[], &[1.0], 0.95), None);
        assert!(shift(&[1.0], &[2.0], 0.95).unwrap().interval.is_none());
        assert!(shift_of_pairs(&[1.0], 0.95).unwrap().interval.is_none());
        assert_eq!(shift(&[f64::MAX], &[f64::MIN], 0.95), None);
        for confidence in [-1.0, 0.0, 1.0, 2.0, f64::NAN] {
            let many: Vec<f64> = (0..100).map(f64::from).collect();
            for values in [&many[..3], &many] {
                let _ = (shift(values, values, confidence), shift_of_pairs(values, confidence));
            }
        }
    }
}
