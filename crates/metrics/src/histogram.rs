//! Exponential histograms.
//!
//! # References
//!
//! OpenTelemetry, Metrics Data Model, `ExponentialHistogram`. Prometheus, "Native Histograms",
//! whose schema is the scale, and whose index is greater by one.

/// Values in exponential buckets: the bucket with index `i` holds values that are greater than
/// `b^i` and at most `b^(i+1)`, where `b` is 2^(2^-`scale`). The unit is the family's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExponentialHistogram {
    /// See above: from 0 to 8, which both OpenTelemetry and Prometheus have.
    pub scale: i32,
    /// Values up to this one are in the zero bucket.
    pub zero_threshold: f64,
    /// How many of them there are.
    pub zero_count: u64,
    /// Index and count of each bucket that holds any, in the order of indices.
    pub positive: Vec<(i32, u64)>,
    /// The sum of all values, where it is known.
    pub sum: Option<f64>,
    /// Single values that are known.
    pub exemplars: Vec<MetricExemplar>,
}

impl ExponentialHistogram {
    /// How many values there are.
    pub fn count(&self) -> u64 {
        // Counts of another process may be any numbers.
        self.positive.iter().fold(self.zero_count, |count, (_, n)| count.saturating_add(*n))
    }

    /// Whether it is one: scale and indices are in range, indices increase, and no more values are
    /// counted than a `double` can tell apart. Prometheus refuses a whole scrape for one that is
    /// not.
    pub fn is_valid(&self) -> bool {
        let is_in_order = self.positive.is_sorted_by(|(a, _), (b, _)| a < b);
        let ends = self.positive.first().into_iter().chain(self.positive.last());
        (0..=MAX_SCALE).contains(&self.scale)
            && is_in_order
            && ends.into_iter().all(|(index, _)| (-MAX_INDEX..MAX_INDEX).contains(index))
            && self.positive.iter().all(|(_, n)| *n < 1 << 53)
            && self.count() < 1 << 53
    }

    /// The last exemplar of the values beyond `above`, up to `end`.
    pub(crate) fn exemplar(&self, above: f64, end: f64) -> Option<&MetricExemplar> {
        self.exemplars.iter().rev().find(|one| one.value > above && one.value <= end)
    }

    /// How many values are at most 2 to this power; exact if the scale is not negative, and the
    /// zero threshold is not beyond it.
    pub(crate) fn up_to_power(&self, power: i32) -> u64 {
        let buckets = i64::from(power) << self.scale.clamp(0, 30);
        // The bucket with index `i` ends at power `(i + 1) / 2^scale`.
        let below = self.positive.iter().take_while(|(index, _)| i64::from(*index) < buckets);
        below.fold(self.zero_count, |count, (_, n)| count.saturating_add(*n))
    }
}

/// The greatest index, and its negative the least: 2 to the power of 1,024 is no number any more.
const MAX_INDEX: i32 = 1024 << MAX_SCALE;

/// The greatest scale that both Prometheus and OpenTelemetry have.
const MAX_SCALE: i32 = 8;

/// A single value, and the work that it is of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricExemplar {
    /// The value, in the family's unit.
    pub value: f64,
    /// The task; 0 if it is not known.
    pub task: u64,
    /// The ids of trace and span, if the work has any.
    pub trace: Option<([u8; 16], [u8; 8])>,
    /// When it was, in nanoseconds since 1970, if that is known.
    pub unix_ns: Option<u64>,
}

/// An id as texts have it.
pub(crate) fn hexadecimal(id: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    id.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_at_powers_of_two_are_exact() {
        let place = |value: f64| ((value.log2() * 4.0).ceil() as i32 - 1, 1);
        let values = [0.1, 0.25, 0.251, 0.3, 0.99, 1.0, 1.01, 4.0, 5.0];
        let mut positive: Vec<(i32, u64)> = values.map(place).to_vec();
        positive.dedup_by(|a, b| {
            a.0 == b.0 && {
                b.1 += a.1;
                true
            }
        });
        let of = ExponentialHistogram { scale: 2, zero_count: 3, positive, ..Default::default() };
        for power in -4..4 {
            let exact = values.iter().filter(|value| **value <= f64::from(power).exp2()).count() as u64;
            assert_eq!(of.up_to_power(power), exact + 3, "{power}");
        }
        assert_eq!(of.count(), 12);
    }
}
