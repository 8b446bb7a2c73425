//! How much one number grows with another, by Theil and Sen.
//!
//! The slope is the median of the slopes between any two points, so an extreme point has little
//! effect. A pair of points is weighted by its distance, because close points determine a slope
//! poorly.
//!
//! # References
//!
//! Theil, Proceedings of the Royal Netherlands Academy of Sciences 53 (1950); Sen, Journal of the
//! American Statistical Association 63 (1968); with weights: Sievers, the same 73 (1978).

/// How much `y` grows with `x`. `None` if all points have the same `x`.
#[must_use]
pub fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let pairs = points.iter().enumerate().flat_map(|(at, a)| points[at + 1..].iter().map(move |b| (a, b)));
    // Weight, and slope.
    let mut slopes: Vec<(f64, f64)> = pairs
        .map(|(a, b)| ((b.0 - a.0).abs(), (b.1 - a.1) / (b.0 - a.0)))
        .filter(|(apart, slope)| *apart > 0.0 && apart.is_finite() && slope.is_finite())
        .collect();
    slopes.sort_by(|a, b| a.1.total_cmp(&b.1));
    let half = slopes.iter().map(|(apart, _)| apart).sum::<f64>() / 2.0;
    let mut below = 0.0;
    slopes.into_iter().find_map(|(apart, slope)| {
        below += apart;
        (below >= half).then_some(slope)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wild_point_does_little() {
        let line = |x: f64| (x, 2.0 * x + 1.0);
        let mut points: Vec<(f64, f64)> = (0..10).map(|x| line(f64::from(x))).collect();
        assert_eq!(slope(&points), Some(2.0));
        points[9].1 = 1000.0;
        points[0].1 = -1000.0;
        assert_eq!(slope(&points), Some(2.0));
    }

    #[test]
    fn distant_points_count_for_more() {
        // Three slopes of about 100 between close points, and two of about 1 between distant ones.
        let points = [(0.0, 0.0), (0.01, 1.0), (0.02, 2.0), (10.0, 11.0)];
        assert!(slope(&points).is_some_and(|slope| slope < 1.2), "{:?}", slope(&points));
    }

    #[test]
    fn points_without_an_answer_have_none() {
        assert_eq!(slope(&[]), None);
        assert_eq!(slope(&[(1.0, 2.0)]), None);
        assert_eq!(slope(&[(1.0, 2.0), (1.0, 3.0)]), None);
        let wild = [(f64::NAN, 1.0), (0.0, f64::INFINITY), (f64::MAX, 0.0), (f64::MIN, 1.0)];
        assert_eq!(slope(&wild), None);
    }
}
