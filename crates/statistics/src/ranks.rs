//! Rank tests: whether one sample tends to be larger than another, whatever their distribution.
//!
//! Values are replaced by their ranks, equal values by the mean of the ranks that they share
//! (doubled here, to stay whole). If there is no difference, every assignment of these ranks is
//! equally likely; the p-value is the share of assignments whose sum is at least as far from its
//! mean as the one found. For few values the assignments are counted, including ties; for many, the
//! sum is about normal, with the variance corrected for ties and half a step for continuity.

use crate::distributions::{normal_cdf, sums_of_chosen, sums_of_subsets};
use crate::summary::sorted;

/// The most values of both samples, or pairs, whose ways are counted.
pub(crate) const COUNTED: usize = 40;

/// The result of a rank test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankTest {
    /// The probability of a difference like this or larger, in either direction, if there is no
    /// real one.
    pub p: f64,
    /// Mann and Whitney's U: the number of pairs in which the second sample's value is larger, with
    /// ties counted as half; or Wilcoxon's sum of the ranks of the positive differences.
    pub statistic: f64,
    /// Whether the p-value was computed by counting, not by approximation.
    pub is_exact: bool,
}

/// The two-sided test of Mann and Whitney: whether `b` tends to be larger or smaller than `a`.
/// `None` if either has no values.
#[must_use]
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<RankTest> {
    let (a_sorted, b_sorted) = (sorted(a)?, sorted(b)?);
    let (m, n) = (a_sorted.len(), b_sorted.len());
    let both = [a_sorted, b_sorted].concat();
    let Ranks { doubled, ties } = Ranks::of(&both);
    let found: usize = doubled[m..].iter().sum();
    let total = (m + n) as f64;
    let statistic = found as f64 / 2.0 - n as f64 * (n as f64 + 1.0) / 2.0;
    if m + n <= COUNTED {
        let ways = sums_of_chosen(&doubled, n);
        // The doubled mean of a doubled sum, n × (m + n + 1), is whole.
        return Some(RankTest { p: share_as_far(&ways, found, n * (m + n + 1)), statistic, is_exact: true });
    }
    let (m, n) = (m as f64, n as f64);
    let variance = m * n / 12.0 * (total + 1.0 - ties / (total * (total - 1.0)));
    Some(RankTest { p: about_normal(statistic - m * n / 2.0, variance), statistic, is_exact: false })
}

/// Wilcoxon's two-sided signed-rank test: whether paired `differences` tend to lie on one side of
/// zero. Differences of zero are left out; `None` if no other is left.
#[must_use]
pub fn signed_rank(differences: &[f64]) -> Option<RankTest> {
    let all = sorted(differences)?;
    let kept: Vec<f64> = all.into_iter().filter(|&difference| difference != 0.0).collect();
    if kept.is_empty() {
        return None;
    }
    let sizes: Vec<f64> = kept.iter().map(|difference| difference.abs()).collect();
    let Ranks { doubled, ties } = Ranks::of(&sizes);
    let found: usize =
        kept.iter().zip(&doubled).filter(|(difference, _)| **difference > 0.0).map(|(_, rank)| rank).sum();
    let statistic = found as f64 / 2.0;
    if kept.len() <= COUNTED {
        let p = share_as_far(&sums_of_subsets(&doubled), found, doubled.iter().sum::<usize>() / 2);
        return Some(RankTest { p, statistic, is_exact: true });
    }
    let n = kept.len() as f64;
    let variance = n * (n + 1.0) * (2.0 * n + 1.0) / 24.0 - ties / 48.0;
    Some(RankTest { p: about_normal(statistic - n * (n + 1.0) / 4.0, variance), statistic, is_exact: false })
}

/// The share of the `ways` whose sum is at least as far from `mean` as `found`.
fn share_as_far(ways: &[f64], found: usize, mean: usize) -> f64 {
    let far = found.abs_diff(mean);
    let as_far = ways.iter().enumerate().filter(|(sum, _)| sum.abs_diff(mean) >= far).map(|(_, ways)| ways);
    (as_far.sum::<f64>() / ways.iter().sum::<f64>()).min(1.0)
}

/// The p-value of a sum so far from its mean.
fn about_normal(distance: f64, variance: f64) -> f64 {
    let beyond = (distance.abs() - 0.5).max(0.0);
    // All values are equal.
    if variance <= 0.0 { 1.0 } else { (2.0 * normal_cdf(-beyond / variance.sqrt())).min(1.0) }
}

/// The ranks of values, and how much they are tied.
struct Ranks {
    /// Twice the rank of each value.
    doubled: Vec<usize>,
    /// The sum of t³ − t over all runs of t equal values.
    ties: f64,
}

impl Ranks {
    fn of(values: &[f64]) -> Self {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
        let mut ranks = Self { doubled: vec![0; values.len()], ties: 0.0 };
        let mut before = 0;
        for equal in order.chunk_by(|&a, &b| values[a] >= values[b]) {
            let t = equal.len();
            // The ranks before + 1 to before + t, whose mean is half of the first and the last.
            for &index in equal {
                ranks.doubled[index] = 2 * before + 1 + t;
            }
            ranks.ties += (t as f64).powi(3) - t as f64;
            before += t;
        }
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn separated_samples_agree_with_the_published_table() {
        // Mann and Whitney 1947, table I: of n = m values, the chance of U = 0 is one in the ways
        // to
        // choose; both tails are twice that.
        for (n, p) in [(3_u32, 0.1), (4, 2.0 / 70.0), (5, 2.0 / 252.0), (8, 2.0 / 12_870.0)] {
            let a: Vec<f64> = (0..n).map(f64::from).collect();
            let b: Vec<f64> = (n..2 * n).map(f64::from).collect();
            let test = mann_whitney(&a, &b).unwrap();
            assert!(test.is_exact && close(test.p, p), "{n}: {test:?}");
            assert!(close(test.statistic, f64::from(n * n)));
            assert_eq!(mann_whitney(&b, &a).unwrap().p.to_bits(), test.p.to_bits());
        }
    }

    #[test]
    fn critical_values_agree_with_the_published_table() {
        // The largest U that is significant at 5 %, two-sided (Siegel, Nonparametric Statistics,
        // table K): n = m = 8: 13; 10: 23; 20: 127.
        for (n, critical) in [(8, 13), (10, 23), (20, 127)] {
            let ways = sums_of_chosen(&(1..=2 * n).collect::<Vec<_>>(), n);
            let all: f64 = ways.iter().sum();
            let least = n * (n + 1) / 2;
            let tail = |u: usize| 2.0 * ways[..=least + u].iter().sum::<f64>() / all;
            assert!(tail(critical) <= 0.05 && tail(critical + 1) > 0.05, "{n}: {}", tail(critical));
        }
    }

    #[test]
    fn signed_ranks_agree_with_the_published_table() {
        // The largest rank sum that is significant at 5 %, two-sided (Wilcoxon 1945, extended by
        // Siegel, table G): n = 6: 0; 10: 8; 20: 52; 25: 89.
        for (n, critical) in [(6, 0), (10, 8), (20, 52), (25, 89)] {
            let ways = sums_of_subsets(&(1..=n).collect::<Vec<_>>());
            let all: f64 = ways.iter().sum();
            let tail = |sum: usize| 2.0 * ways[..=sum].iter().sum::<f64>() / all;
            assert!(tail(critical) <= 0.05 && tail(critical + 1) > 0.05, "{n}: {}", tail(critical));
        }
    }

    /// The obvious way: all deals of the values to the two samples.
    fn by_permutation(a: &[f64], b: &[f64]) -> f64 {
        let both = [a, b].concat();
        let larger = |mask: u32| -> f64 {
            let part = |side: bool| (0..both.len()).filter(move |i| (mask >> i & 1 == 1) == side);
            let pairs = part(false).flat_map(|i| part(true).map(move |j| (i, j)));
            pairs
                .map(|(i, j)| f64::midpoint(f64::from(both[j].partial_cmp(&both[i]).unwrap() as i8), 1.0))
                .sum()
        };
        let mean = (a.len() * b.len()) as f64 / 2.0;
        let found = larger(((1 << b.len()) - 1) << a.len()) - mean;
        let deals = (0..1_u32 << both.len()).filter(|mask| mask.count_ones() as usize == b.len());
        let (far, all) = deals.fold((0, 0), |(far, all), mask| {
            (far + u32::from((larger(mask) - mean).abs() >= found.abs() - 1e-9), all + 1)
        });
        f64::from(far) / f64::from(all)
    }

    #[test]
    fn ties_are_counted_as_by_permutation() {
        for (a, b) in [
            (vec![1.0, 1.0, 2.0], vec![2.0, 3.0, 3.0, 3.0]),
            (vec![1.0, 2.0, 2.0, 5.0, 5.0], vec![2.0, 5.0, 7.0]),
            (vec![4.0; 4], vec![4.0; 3]),
            (vec![0.0, -0.0], vec![0.0, 1.0, 1.0, -1.0]),
        ] {
            let (p, expected) = (mann_whitney(&a, &b).unwrap().p, by_permutation(&a, &b));
            assert!((p - expected).abs() < 1e-9, "{a:?} {b:?}: {p} not {expected}");
        }
    }

    #[test]
    fn the_approximation_meets_the_counted_ways() {
        // 20 and 20 are counted, 20 and 21 are not; a value in the middle changes little.
        let a: Vec<f64> = (0..20).map(|i| f64::from(i * 2)).collect();
        let mut b: Vec<f64> = (0..20).map(|i| f64::from(i * 2 + 13)).collect();
        let counted = mann_whitney(&a, &b).unwrap();
        b.push(26.5);
        let approximate = mann_whitney(&a, &b).unwrap();
        assert!(counted.is_exact && !approximate.is_exact);
        assert!((counted.p / approximate.p - 1.0).abs() < 0.25, "{counted:?} {approximate:?}");

        let mut differences: Vec<f64> = (0..40).map(|i| f64::from(i) - 12.3).collect();
        let counted = signed_rank(&differences).unwrap();
        differences.push(7.9);
        let approximate = signed_rank(&differences).unwrap();
        assert!(counted.is_exact && !approximate.is_exact);
        assert!((counted.p / approximate.p - 1.0).abs() < 0.25, "{counted:?} {approximate:?}");
    }

    #[test]
    fn equal_values_show_nothing() {
        for n in [3, 100] {
            assert!(close(mann_whitney(&vec![7.0; n], &vec![7.0; n]).unwrap().p, 1.0));
        }
        assert_eq!(signed_rank(&[0.0; 9]), None);
        assert_eq!(mann_whitney(&[], &[1.0]), None);
        assert_eq!(mann_whitney(&[f64::NAN], &[1.0]), None);
    }
}
