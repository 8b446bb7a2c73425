//! The origin's parameters: it ran on a machine with 32 logical processors and two memory nodes,
//! and its figures, in `origin.txt`, are means of ten runs.

/// Threads, as the origin ran them.
pub(super) const THREADS: [usize; 10] = [2, 5, 8, 12, 21, 30, 48, 79, 110, 128];

/// Calls of all threads together, as the origin's programs make them; values are scaled to that
/// number.
pub(super) const CALLS: usize = 5_000_000;

/// In percent of the figure before, as the origin gives it: positive is faster.
pub(super) fn gain(before: f64, after: f64) -> f64 {
    100.0 * (before - after) / before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origins_gains_follow_from_its_figures() {
        let mut seen = 0;
        for line in include_str!("origin.txt").lines() {
            let cells: Vec<&str> = line.split(" | ").collect();
            let &[_, before, after, percent] = &cells[..] else { continue };
            let Some(Ok(said)) = percent.strip_suffix('%').map(str::parse::<f64>) else { continue };
            let Ok(before) = before.parse::<f64>() else { continue };
            let gain = gain(before, after.parse().unwrap());
            // The figures are rounded to two digits, the gains were not made from those.
            assert!((gain - said).abs() < 0.5, "{line}: {gain}");
            seen += 1;
        }
        assert_eq!(seen, 5 * THREADS.len());
    }
}
