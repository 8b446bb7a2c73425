//! Many tests at once.
//!
//! # References
//!
//! Benjamini and Hochberg, Journal of the Royal Statistical Society B 57 (1995).

/// The p-values of many tests, each corrected for being one of many, in the same order.
///
/// If all tests with a corrected p-value of at most `a` are accepted, the share of false ones among
/// them is below `a` on average; if no difference is real, the probability of accepting any is
/// below `a`.
#[must_use]
pub fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[b].total_cmp(&p_values[a]));
    let mut corrected = p_values.to_vec();
    let mut least = 1.0_f64;
    for (place, &index) in order.iter().enumerate() {
        let rank = p_values.len() - place;
        least = least.min(p_values[index] * p_values.len() as f64 / rank as f64);
        corrected[index] = least;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_of_fifteen_are_found_as_published() {
        // Benjamini and Hochberg 1995, section 4.1: at 5 % the first four are found.
        let published = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
            0.6528, 0.7590, 1.0,
        ];
        let mut shuffled = published;
        shuffled.reverse();
        let found = benjamini_hochberg(&shuffled);
        assert_eq!(found.iter().filter(|&&p| p <= 0.05).count(), 4);
        assert!((found[14] - 0.0015).abs() < 1e-12 && (found[11] - 0.0095 * 15.0 / 4.0).abs() < 1e-12);
        assert!(found.windows(2).all(|pair| pair[0] >= pair[1]));
        assert_eq!(benjamini_hochberg(&[]), Vec::<f64>::new());
    }
}
