//! The ends of classic buckets.
//!
//! Values are counted in exponential buckets. The count at an end inside of one of these is
//! unknown, so a classic bucket ends where an exponential one of scale 2 does: at 2 to the power of
//! whole quarters. A time that is chosen moves to the nearest of these ends, which is at most 9 %
//! away, and its bucket carries that end. Counts are exact for histograms of scale 2 and of greater
//! scales; in a coarser one an end counts up to the last bound before it.

use std::fmt;
use std::time::Duration;

/// The most ends that can be chosen.
pub const MOST_BOUNDS: usize = 40;

const SHORTEST: Duration = Duration::from_micros(1);
const LONGEST: Duration = Duration::from_secs(3600);

/// Quarters of a power of 2.
const PER_POWER: i32 = 4;

/// The ends of classic buckets, in their order.
///
/// ```
/// use dormouse_metrics::ClassicBounds;
/// use std::time::Duration;
///
/// let times = [100, 250, 1000].map(Duration::from_millis);
/// let ends: Vec<f64> = ClassicBounds::near(&times)?.seconds().collect();
/// assert_eq!((format!("{:.3}", ends[0]), &ends[1..]), ("0.105".to_owned(), &[0.25, 1.0][..]));
/// # Ok::<(), dormouse_metrics::BoundsError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassicBounds(Vec<i32>);

/// Why times cannot be the ends of buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoundsError {
    /// There are none, or too many.
    Number {
        /// How many there are.
        number: usize,
    },
    /// A time is shorter or longer than any end.
    Range {
        /// The time.
        time: Duration,
    },
    /// A time is not longer than the one before.
    Order {
        /// The time before.
        before: Duration,
        /// The time.
        time: Duration,
    },
    /// Two times have the same nearest end.
    Same {
        /// The time before.
        before: Duration,
        /// The time.
        time: Duration,
    },
}

impl ClassicBounds {
    /// The ends that are nearest to these times.
    ///
    /// # Errors
    ///
    /// If there are none or more than [`MOST_BOUNDS`]; else for the first time that is shorter than
    /// a microsecond or longer than an hour, that is not longer than the one before, or that has
    /// the same end.
    pub fn near(times: &[Duration]) -> Result<Self, BoundsError> {
        if times.is_empty() || times.len() > MOST_BOUNDS {
            return Err(BoundsError::Number { number: times.len() });
        }
        let (mut quarters, mut before) = (Vec::with_capacity(times.len()), Duration::ZERO);
        for &time in times {
            if !(SHORTEST..=LONGEST).contains(&time) {
                return Err(BoundsError::Range { time });
            }
            if time <= before {
                return Err(BoundsError::Order { before, time });
            }
            let quarter = (time.as_secs_f64().log2() * f64::from(PER_POWER)).round() as i32;
            if quarters.last() == Some(&quarter) {
                return Err(BoundsError::Same { before, time });
            }
            quarters.push(quarter);
            before = time;
        }
        Ok(Self(quarters))
    }

    /// The ends at 2 to these powers.
    pub(crate) fn of_powers(powers: &[i32]) -> Self {
        Self(powers.iter().map(|power| power * PER_POWER).collect())
    }

    /// The ends, in seconds.
    pub fn seconds(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|quarter| (f64::from(*quarter) / f64::from(PER_POWER)).exp2())
    }

    /// The number of ends.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The ends, and for each the greatest index of a bucket that is below it, at that scale.
    fn at_scale(&self, scale: i32) -> impl Iterator<Item = (f64, i32)> {
        // The bucket with index `i` ends at power `(i + 1) / 2^scale`.
        let last = move |quarter: i32| (i64::from(quarter) << scale).div_euclid(i64::from(PER_POWER)) - 1;
        self.seconds().zip(self.0.iter().map(move |quarter| last(*quarter) as i32))
    }
}

/// The ends of classic buckets for one histogram after the other: they are computed again only
/// where the scale changes.
#[derive(Debug)]
pub(crate) struct ScaledBounds {
    bounds: ClassicBounds,
    scale: i32,
    ends: Vec<(f64, i32)>,
}

impl ScaledBounds {
    pub(crate) fn of(bounds: ClassicBounds) -> Self {
        let (scale, ends) = (0, bounds.at_scale(0).collect());
        Self { bounds, scale, ends }
    }

    /// The ends, and for each the greatest index of a bucket that is below it, at that scale.
    pub(crate) fn at_scale(&mut self, scale: i32) -> &[(f64, i32)] {
        if scale != self.scale {
            (self.scale, self.ends) = (scale, self.bounds.at_scale(scale).collect());
        }
        &self.ends
    }
}

impl fmt::Display for BoundsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { number } => {
                write!(f, "a histogram has from 1 to {MOST_BOUNDS} chosen buckets, not {number}")
            }
            Self::Range { time } => {
                write!(f, "no bucket ends at {time:?}: ends are from {SHORTEST:?} to {LONGEST:?}")
            }
            Self::Order { before, time } => {
                write!(
                    f,
                    "{time:?} comes after {before:?}: write ends from the shortest to the longest, each once"
                )
            }
            Self::Same { before, time } => write!(
                f,
                "{before:?} and {time:?} are too near to each other: ends are a factor of 1.19 apart"
            ),
        }
    }
}

impl std::error::Error for BoundsError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(millis: &[u64]) -> Result<ClassicBounds, BoundsError> {
        let times: Vec<_> = millis.iter().copied().map(Duration::from_millis).collect();
        ClassicBounds::near(&times)
    }

    #[test]
    fn ends_are_the_nearest_ones() {
        let times: Vec<_> =
            (0..MOST_BOUNDS as i32).map(|n| Duration::from_secs_f64(1.4_f64.powi(n) / 1e3)).collect();
        for (end, time) in ClassicBounds::near(&times).unwrap().seconds().zip(times) {
            let ratio = end / time.as_secs_f64();
            assert!((0.917..=1.0906).contains(&ratio), "{time:?}: {end}");
        }
        assert_eq!(near(&[125, 250, 500, 1000]).unwrap(), ClassicBounds::of_powers(&[-3, -2, -1, 0]));
    }

    #[test]
    fn indices_end_at_the_bound() {
        let bounds = ClassicBounds(vec![-13, -8, 3]);
        let mut scaled = ScaledBounds::of(bounds);
        let mut last = |scale| scaled.at_scale(scale).iter().map(|(_, last)| *last).collect::<Vec<_>>();
        assert_eq!(last(2), [-14, -9, 2]);
        assert_eq!(last(4), [-53, -33, 11]);
        assert_eq!(last(0), [-5, -3, -1], "the last bound before");
    }

    #[test]
    fn wrong_times_are_refused_by_name() {
        for (millis, part) in [
            (&[][..], "not 0"),
            (&[1; MOST_BOUNDS + 1], "not 41"),
            (&[0], "no bucket ends at 0ns"),
            (&[250, 3_600_001], "no bucket ends at 3600.001s"),
            (&[250, 100], "100ms comes after 250ms"),
            (&[250, 250], "250ms comes after 250ms"),
            (&[250, 260], "250ms and 260ms are too near"),
        ] {
            let refused = near(millis).unwrap_err().to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
