//! Exponential histograms.
//!
//! # References
//!
//! OpenTelemetry, Metrics Data Model, `ExponentialHistogram`. Prometheus, "Native Histograms",
//! whose schema is the scale, and whose index is greater by one.

use std::borrow::Cow;

use crate::bounds::MOST_BOUNDS;
use crate::value::MetricValue;

/// Values in exponential buckets: the bucket with index `i` holds values that are greater than
/// `b^i` and at most `b^(i+1)`, where `b` is 2^(2^-`scale`). The unit is the family's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExponentialHistogram {
    /// The exponent that determines `b`, see above: from 0 to 8, which both OpenTelemetry and
    /// Prometheus support.
    pub scale: i32,
    /// Values up to this one are in the zero bucket.
    pub zero_threshold: f64,
    /// The number of values in the zero bucket.
    pub zero_count: u64,
    /// Index and count of each bucket that is not empty, in the order of indices.
    pub positive: Vec<(i32, u64)>,
    /// The sum of all values, if it is known.
    pub sum: Option<MetricValue>,
    /// Single values of the histogram, with the request that each belongs to.
    pub exemplars: Vec<MetricExemplar>,
}

impl ExponentialHistogram {
    /// The number of values.
    pub fn count(&self) -> u64 {
        // Counts of another process may be any numbers.
        self.positive.iter().fold(self.zero_count, |count, (_, n)| count.saturating_add(*n))
    }

    /// Whether the histogram is valid: scale and indices are in range, indices increase, and the
    /// count is not larger than a `double` can represent exactly. Prometheus refuses a whole scrape
    /// for an invalid one.
    pub fn is_valid(&self) -> bool {
        let is_in_order = self.positive.is_sorted_by(|(a, _), (b, _)| a < b);
        let ends = self.positive.first().into_iter().chain(self.positive.last());
        (0..=MAX_SCALE).contains(&self.scale)
            && is_in_order
            && ends.into_iter().all(|(index, _)| (-MAX_INDEX..MAX_INDEX).contains(index))
            && self.positive.iter().all(|(_, n)| *n < 1 << 53)
            && self.count() < 1 << 53
    }

    /// Its values in classic buckets, which end at these ends ([`ScaledBounds`] of its scale), and
    /// at infinity. Counts are exact as far as the bounds are ([`bounds`](crate::bounds)), if the
    /// zero threshold is not beyond the first end.
    ///
    /// [`ScaledBounds`]: crate::bounds::ScaledBounds
    pub(crate) fn classic<'a>(&'a self, ends: &'a [(f64, i32)]) -> impl Iterator<Item = ClassicBucket<'a>> {
        let (mut rest, mut count) = (self.positive.iter().peekable(), self.zero_count);
        let exemplars = self.exemplars_of(ends);
        ends.iter().copied().chain([(f64::INFINITY, i32::MAX)]).zip(exemplars).map(
            move |((end, last), exemplar)| {
                while let Some((_, n)) = rest.next_if(|(index, _)| *index <= last) {
                    count += n;
                }
                ClassicBucket { end, count, exemplar }
            },
        )
    }

    /// The last exemplar in each bucket with such an end, and in the one without an end.
    fn exemplars_of(&self, ends: &[(f64, i32)]) -> [Option<&MetricExemplar>; MOST_BOUNDS + 1] {
        let mut exemplars = [None; MOST_BOUNDS + 1];
        for one in &self.exemplars {
            let value = one.value.as_f64();
            if value.is_nan() {
                continue;
            }
            if let Some(bucket) = exemplars.get_mut(ends.partition_point(|(end, _)| *end < value)) {
                *bucket = Some(one);
            }
        }
        exemplars
    }
}

/// The counts from the first bucket to the last one, also of those between that hold nothing; of a
/// valid histogram.
pub(crate) fn counts(buckets: &[(i32, u64)]) -> impl Iterator<Item = u64> {
    let mut next = buckets.first().map_or(0, |(index, _)| *index);
    buckets.iter().flat_map(move |&(index, n)| {
        let empty = index - next;
        next = index + 1;
        (0..empty).map(|_| 0).chain([n])
    })
}

/// A bucket as classic histograms have it.
pub(crate) struct ClassicBucket<'a> {
    /// The end, which belongs to it.
    pub(crate) end: f64,
    /// How many values are in it and in those before.
    pub(crate) count: u64,
    /// The last exemplar of its values, without those of buckets before.
    pub(crate) exemplar: Option<&'a MetricExemplar>,
}

/// The greatest index, and its negative the least: 2 to the power of 1,024 is no number any more.
const MAX_INDEX: i32 = 1024 << MAX_SCALE;

/// The greatest scale that both Prometheus and OpenTelemetry have.
const MAX_SCALE: i32 = 8;

/// A single value, and the work that it belongs to.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricExemplar {
    /// The value.
    pub value: MetricValue,
    /// The number of the task; 0 if it is unknown.
    pub task: u64,
    /// The ids of trace and span, if the work has any.
    pub trace: Option<([u8; 16], [u8; 8])>,
    /// How the work ended, if that is known. All formats leave out a word of more than 34
    /// characters.
    pub outcome: Option<Cow<'static, str>>,
    /// When the value was measured, in nanoseconds since 1970, if that is known.
    pub unix_ns: Option<u64>,
}

/// By the rules of `OpenMetrics` all labels of an exemplar have 128 characters at most. Trace, span
/// and task take 87 of them, and the word `outcome` 7.
const LONGEST_OUTCOME: usize = 34;

impl MetricExemplar {
    /// The outcome, as a label's value.
    pub(crate) fn outcome_label(&self) -> Option<&str> {
        self.outcome
            .as_deref()
            .filter(|word| word.len() <= LONGEST_OUTCOME || word.chars().count() <= LONGEST_OUTCOME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::{ClassicBounds, ScaledBounds};

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
        let powers: Vec<i32> = (-4..4).collect();
        let mut bounds = ScaledBounds::of(ClassicBounds::of_powers(&powers));
        let buckets: Vec<_> =
            of.classic(bounds.at_scale(2)).map(|bucket| (bucket.end, bucket.count)).collect();
        for (power, &(end, count)) in powers.iter().zip(&buckets) {
            let exact = values.iter().filter(|value| **value <= f64::from(*power).exp2()).count() as u64;
            assert_eq!((end, count), (f64::from(*power).exp2(), exact + 3), "{power}");
        }
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 12)));
        assert_eq!(of.count(), 12);
    }
}
