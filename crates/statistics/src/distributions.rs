//! The distributions that the tests use: normal, Student's t, and those of rank sums.
//!
//! # References
//!
//! Abramowitz and Stegun, Handbook of Mathematical Functions, chapter 26 (numbers as cited);
//! Mann and Whitney, Annals of Mathematical Statistics 18 (1947); Wilcoxon, Biometrics 1 (1945).

use std::f64::consts::{FRAC_2_PI, PI};

/// The fraction of the standard normal distribution below `z`.
///
/// By its series (26.2.11) near the middle and its continued fraction (26.2.14) in the tails; the
/// error is below 10⁻¹².
#[must_use]
pub fn normal_cdf(z: f64) -> f64 {
    if z.is_nan() {
        return z;
    }
    let size = z.abs();
    let density = (-size * size / 2.0).exp() / (2.0 * PI).sqrt();
    let above = if size < 3.5 {
        let mut term = size;
        let mut sum = size;
        let mut odd = 1.0;
        while term > sum * 1e-17 {
            odd += 2.0;
            term *= size * size / odd;
            sum += term;
        }
        0.5 - density * sum
    } else if size < 40.0 {
        let tail = (1..=80).rev().fold(size, |below, step| size + f64::from(step) / below);
        density / tail
    } else {
        0.0
    };
    if z > 0.0 { 1.0 - above } else { above }
}

/// The value below which the fraction `probability` of the standard normal distribution lies.
///
/// Infinite at 0 and 1; NaN outside of that range.
#[must_use]
pub fn normal_quantile(probability: f64) -> f64 {
    quantile(probability, normal_cdf)
}

/// The value below which the fraction `probability` of Student's t distribution with `degrees`
/// degrees of freedom lies.
///
/// From the distribution in closed form (26.7.3, 26.7.4); beyond 1000 degrees by the expansion
/// about the normal quantile (26.7.5). Infinite at 0 and 1, and for zero degrees.
#[must_use]
pub fn student_t_quantile(probability: f64, degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY.copysign(probability - 0.5),
        1..=1000 => quantile(probability, |t| student_t_cdf(t, degrees)),
        _ => {
            let z = normal_quantile(probability);
            let v = degrees as f64;
            let (z3, z5) = (z.powi(3), z.powi(5));
            z + (z3 + z) / (4.0 * v) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * v * v)
        }
    }
}

fn student_t_cdf(t: f64, degrees: usize) -> f64 {
    let v = degrees as f64;
    let theta = t.abs().atan2(v.sqrt());
    let cosine_squared = theta.cos().powi(2);
    // 1 + a₁·cos² + a₁·a₂·cos⁴ + …, of which odd and even degrees have different factors.
    let is_odd = degrees % 2 == 1;
    let terms = if is_odd { (degrees - 1) / 2 } else { degrees / 2 };
    let mut term = 1.0;
    let mut sum = 0.0;
    for index in 1..=terms {
        sum += term;
        let i = 2.0 * index as f64;
        term *= cosine_squared * if is_odd { i / (i + 1.0) } else { (i - 1.0) / i };
    }
    let within =
        if is_odd { FRAC_2_PI * (theta + theta.sin() * theta.cos() * sum) } else { theta.sin() * sum };
    0.5 + within.copysign(t) / 2.0
}

/// Where the continuous, symmetric distribution `cdf` reaches `probability`, by bisection.
fn quantile(probability: f64, cdf: impl Fn(f64) -> f64) -> f64 {
    if !(0.0..=1.0).contains(&probability) {
        return f64::NAN;
    }
    // The lower half has all digits of a small share.
    let tail = probability.min(1.0 - probability);
    if tail == 0.0 {
        return f64::INFINITY.copysign(probability - 0.5);
    }
    let mut low = -1.0;
    while cdf(low) > tail && low > -1e300 {
        low *= 2.0;
    }
    let mut high = 0.0;
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            return if probability < 0.5 { middle } else { -middle };
        }
        if cdf(middle) < tail { low = middle } else { high = middle }
    }
}

/// How many of all ways to choose `chosen` of `items` give each sum: the value at `s` is for `s`.
///
/// For ranks this is the exact distribution of Mann and Whitney's rank sum, with ties if the items
/// are doubled midranks. Cost: `items` × `chosen` × the sum of all items.
pub(crate) fn sums_of_chosen(items: &[usize], chosen: usize) -> Vec<f64> {
    let total: usize = items.iter().sum();
    let width = total + 1;
    // At k × width + s: the ways to choose k of the items so far with the sum s.
    let mut ways = vec![0.0; (chosen + 1) * width];
    ways[0] = 1.0;
    for (count, &item) in items.iter().enumerate() {
        for k in (1..=chosen.min(count + 1)).rev() {
            for sum in item..width {
                ways[k * width + sum] += ways[(k - 1) * width + sum - item];
            }
        }
    }
    ways.split_off(chosen * width)
}

/// How many of all subsets of `items` give each sum: for ranks, the exact distribution of
/// Wilcoxon's signed-rank sum. Cost: `items` × the sum of all items.
pub(crate) fn sums_of_subsets(items: &[usize]) -> Vec<f64> {
    let mut ways = vec![0.0; items.iter().sum::<usize>() + 1];
    ways[0] = 1.0;
    for &item in items {
        for sum in (item..ways.len()).rev() {
            ways[sum] += ways[sum - item];
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_shares_agree_with_published_tables() {
        // Abramowitz and Stegun, table 26.1, and the tail at 5 from table 26.2.
        for (z, share) in [
            (0.0, 0.5),
            (0.5, 0.691_462_461_274_013),
            (1.0, 0.841_344_746_068_543),
            (1.96, 0.975_002_104_851_780),
            (2.0, 0.977_249_868_051_821),
            (3.0, 0.998_650_101_968_370),
        ] {
            assert!((normal_cdf(z) - share).abs() < 1e-12, "{z}: {}", normal_cdf(z));
            assert!((normal_cdf(-z) - (1.0 - share)).abs() < 1e-12, "{z}");
        }
        assert!((normal_cdf(-5.0) / 2.866_515_7e-7 - 1.0).abs() < 1e-7);
        assert!((normal_cdf(-3.499_999) / normal_cdf(-3.500_001) - 1.0).abs() < 1e-4);
        assert!(normal_cdf(-1e9) <= 0.0 && normal_cdf(1e9) >= 1.0 && normal_cdf(f64::NAN).is_nan());
    }

    #[test]
    fn normal_quantiles_agree_with_published_tables() {
        // Abramowitz and Stegun, table 26.5 and the percentage points below it.
        for (share, z) in
            [(0.9, 1.281_551_565_5), (0.975, 1.959_963_984_5), (0.995, 2.575_829_303_5), (0.5, 0.0)]
        {
            assert!((normal_quantile(share) - z).abs() < 1e-9, "{share}: {}", normal_quantile(share));
            assert!((normal_quantile(1.0 - share) + z).abs() < 1e-9, "{share}");
        }
        assert!(normal_quantile(1.0) > 1e308 && normal_quantile(0.0) < -1e308);
        assert!(normal_quantile(1.1).is_nan() && normal_quantile(f64::NAN).is_nan());
    }

    #[test]
    fn student_quantiles_agree_with_published_tables() {
        // Abramowitz and Stegun, table 26.10.
        for (degrees, at_975, at_995) in [
            (1, 12.706, 63.657),
            (2, 4.303, 9.925),
            (10, 2.228, 3.169),
            (29, 2.045, 2.756),
            (30, 2.042, 2.750),
            (40, 2.021, 2.704),
            (120, 1.980, 2.617),
        ] {
            let found = [0.975, 0.995].map(|share| student_t_quantile(share, degrees));
            assert!((found[0] - at_975).abs() < 6e-4, "{degrees}: {found:?}");
            assert!((found[1] - at_995).abs() < 6e-4, "{degrees}: {found:?}");
        }
        let both = [1000, 1001].map(|degrees| student_t_quantile(0.975, degrees));
        assert!((both[0] - both[1]).abs() < 1e-5, "the closed form meets the expansion: {both:?}");
        assert!(student_t_quantile(0.975, 0).is_infinite());
    }

    #[test]
    fn rank_sums_are_counted_as_by_hand() {
        // Two of {1, 2, 3}: 3, 4, 5. Subsets of {1, 2}: 0, 1, 2, 3.
        assert_eq!(sums_of_chosen(&[1, 2, 3], 2), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
        assert_eq!(sums_of_subsets(&[1, 2]), [1.0; 4]);
    }
}
