//! How many holders use how many slots, in a form that gives the maximum over any number of holders
//! in a few steps.
//!
//! # Invariants
//!
//! `counts[k]` holders use exactly `k + 1` slots. Holders without slots are not counted.

use crate::MOST_SLOTS;

/// A histogram of holders by slots used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Histogram {
    counts: [u32; MOST_SLOTS as usize],
}

impl Histogram {
    /// One holder uses `to` slots instead of `from`.
    pub(crate) fn shift(&mut self, from: u32, to: u32) {
        if from > 0 {
            self.counts[from as usize - 1] -= 1;
        }
        if to > 0 {
            self.counts[to as usize - 1] += 1;
        }
    }

    /// The most slots that any holder uses.
    pub(crate) fn most(&self) -> u32 {
        self.counts.iter().rposition(|&count| count > 0).map_or(0, |index| index as u32 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_is_that_of_the_greatest_holder() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.most(), 0);
        for (from, to, most) in
            [(0, 2, 2), (0, 2, 2), (2, MOST_SLOTS, MOST_SLOTS), (MOST_SLOTS, 0, 2), (2, 1, 1)]
        {
            histogram.shift(from, to);
            assert_eq!(histogram.most(), most, "{from} -> {to}");
        }
        histogram.shift(1, 0);
        assert_eq!(histogram, Histogram::default());
    }
}
