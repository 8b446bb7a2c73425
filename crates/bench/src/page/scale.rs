//! Values on pictures, and the axis that they lie on.
//!
//! Times of all units meet on one axis, in nanoseconds.

use crate::row::{Row, find};

/// The unit of times here.
const TIME: &str = "ns";

/// Units of time, and how many nanoseconds each is.
const TIMES: [(&str, f64); 5] = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];

/// Before the name of a row of which the mean is meant.
const MEAN: &str = "mean ";

/// Whether a text is a figure of an origin.
pub(super) fn is_given(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_digit())
}

/// The row that a text names, if it is no figure of an origin.
pub(super) fn name_of(text: &str) -> Option<&str> {
    (!text.is_empty() && !is_given(text)).then(|| text.strip_prefix(MEAN).unwrap_or(text))
}

/// A figure of an origin, or the middle of a row with the middle half of its values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    pub(super) middle: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    unit: String,
}

impl Figure {
    /// The figure that `text` stands for: a number with its unit (`57 ms`), the median of a row by
    /// its name, or its mean (`mean NAME`).
    pub(super) fn of(text: &str, rows: &[Row]) -> Option<Self> {
        if is_given(text) {
            let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
            let number = number.parse().ok()?;
            return Some(Self::new(number, number, number, unit));
        }
        let row = find(rows, name_of(text)?);
        let middle = if text.starts_with(MEAN) { row.mean } else { row.median }?;
        let mut values = row.values.clone();
        values.sort_by(f64::total_cmp);
        let quarter = values.len() / 4;
        let low = values.get(quarter).copied().unwrap_or(middle);
        let high = values.iter().nth_back(quarter).copied().unwrap_or(middle);
        Some(Self::new(middle, low, high, &row.unit))
    }

    fn new(middle: f64, low: f64, high: f64, unit: &str) -> Self {
        match TIMES.iter().find(|(name, _)| *name == unit) {
            Some((_, by)) => {
                Self { middle: middle * by, low: low * by, high: high * by, unit: TIME.to_owned() }
            }
            None => Self { middle, low, high, unit: unit.to_owned() },
        }
    }

    /// The middle, without the spread around it.
    pub(super) fn alone(&self) -> Self {
        Self { low: self.middle, high: self.middle, ..self.clone() }
    }

    pub(super) fn words(&self) -> String {
        words(self.middle, &self.unit)
    }

    pub(super) fn is_time(&self) -> bool {
        self.unit == TIME
    }
}

/// A number with its unit, short.
fn words(number: f64, unit: &str) -> String {
    let (number, unit) = match (unit, number.abs()) {
        (TIME, size) if size >= 1e9 => (number / 1e9, "s"),
        (TIME, size) if size >= 1e6 => (number / 1e6, "ms"),
        (TIME, size) if size >= 1e3 => (number / 1e3, "µs"),
        _ => (number, unit),
    };
    let digits = match number.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let number = format!("{number:.digits$}");
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// How values are spread over an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Ten times as much lies as far away everywhere; values are above 0.
    Log,
    /// From 0 on, or from below it.
    Linear,
}

/// An axis that holds some values.
#[derive(Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    step: f64,
    unit: String,
}

impl Axis {
    /// The axis for these figures; none if they leave nothing to draw.
    pub(super) fn of<'f>(scale: Scale, figures: impl Iterator<Item = &'f Figure> + Clone) -> Option<Self> {
        let unit = figures.clone().next()?.unit.clone();
        let ends = figures.flat_map(|figure| [figure.low, figure.middle, figure.high]);
        let shown = ends.filter(|end| end.is_finite() && (scale == Scale::Linear || *end > 0.0));
        let (least, most) =
            shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), end| (low.min(end), high.max(end)));
        if least > most {
            return None;
        }
        Some(match scale {
            Scale::Log => {
                let (low, high) = (least.log10().floor(), most.log10().ceil());
                let high = if high > low { high } else { low + 1.0 };
                Self { scale, low, high, step: ((high - low) / 7.0).ceil(), unit }
            }
            Scale::Linear => {
                let (least, most) = (least.min(0.0), most.max(0.0));
                let step = round_step(if most > least { most - least } else { 1.0 } / 4.0);
                Self {
                    scale,
                    low: (least / step).floor() * step,
                    high: (most / step).ceil() * step,
                    step,
                    unit,
                }
            }
        })
    }

    /// The place of a number, from 0 to 1; none if it has none.
    pub(super) fn place(&self, number: f64) -> Option<f64> {
        let at = match self.scale {
            Scale::Log if number > 0.0 => number.log10(),
            Scale::Log => return None,
            Scale::Linear => number,
        };
        let place = (at - self.low) / (self.high - self.low);
        place.is_finite().then_some(place.clamp(0.0, 1.0))
    }

    /// Places with their words.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let count = ((self.high - self.low) / self.step + 1e-9).floor() as u32;
        let steps = (0..=count).map(|number| self.low + f64::from(number) * self.step);
        let numbers: Vec<f64> = match self.scale {
            Scale::Linear => steps.collect(),
            // Two powers of ten say little about what lies between them.
            Scale::Log if self.high - self.low <= 1.0 => {
                steps.flat_map(|at| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powf(at))).collect()
            }
            Scale::Log => steps.map(|at| 10_f64.powf(at)).collect(),
        };
        let place = |number: f64| match self.scale {
            Scale::Linear => (number - self.low) / (self.high - self.low),
            Scale::Log => (number.log10() - self.low) / (self.high - self.low),
        };
        let ticks = numbers.into_iter().map(|number| (place(number), self.tick(number)));
        ticks.filter(|(place, _)| *place < 1.0 + 1e-9).collect()
    }

    fn tick(&self, number: f64) -> String {
        let words = words(number, &self.unit);
        let (number, unit) = words.split_once(' ').unwrap_or((&words, ""));
        let short =
            if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
        // A long unit stands in the title.
        if unit.chars().count() > 2 || unit.is_empty() { short.to_owned() } else { format!("{short} {unit}") }
    }
}

/// 1, 2 or 5 times a power of ten, at least as large.
fn round_step(least: f64) -> f64 {
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= least).unwrap_or(least)
}

/// How many times the one is the other, in words: `41× less`.
pub(super) fn ratio(before: &Figure, after: &Figure) -> Option<String> {
    let times = before.middle / after.middle;
    let (times, word) = if times >= 1.0 { (times, "less") } else { (1.0 / times, "more") };
    let digits = usize::from(times < 9.95);
    (before.is_time() && times.is_finite() && times >= 1.05).then(|| format!("{times:.digits$}× {word}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Spec;

    fn rows() -> Vec<Row> {
        vec![Row::new(&Spec::new("a", "us"), Ok(vec![1.0, 1.0, 2.0, 2.0, 9.0]))]
    }

    #[test]
    fn figures_are_given_or_measured() {
        let given = Figure::of("57 ms", &[]).unwrap();
        assert_eq!((given.middle, given.words()), (57e6, "57.0 ms".to_owned()));
        let median = Figure::of("a", &rows()).unwrap();
        assert_eq!((median.low, median.middle, median.high), (1e3, 2e3, 2e3), "the middle half");
        assert_eq!(Figure::of("mean a", &rows()).unwrap().words(), "3.00 µs");
        assert_eq!(Figure::of("50.61 %", &[]).unwrap().words(), "50.6 %");
        assert_eq!(Figure::of("b", &rows()), None);
        let ratio = |a, b| ratio(&Figure::of(a, &rows()).unwrap(), &Figure::of(b, &rows()).unwrap());
        assert_eq!(ratio("57 ms", "1.4 ms").as_deref(), Some("41× less"));
        assert_eq!(ratio("a", "5 us").as_deref(), Some("2.5× more"));
        assert_eq!(ratio("9 us", "1 us").as_deref(), Some("9.0× less"));
        assert_eq!(ratio("1 %", "2 %"), None);
    }

    #[test]
    fn a_log_axis_has_powers_of_ten() {
        let figures = [Figure::of("20 us", &[]).unwrap(), Figure::of("3 ms", &[]).unwrap()];
        let axis = Axis::of(Scale::Log, figures.iter()).unwrap();
        let words: Vec<String> = axis.ticks().into_iter().map(|(_, words)| words).collect();
        assert_eq!(words, ["10 µs", "100 µs", "1 ms", "10 ms"]);
        let near = [Figure::of("2 s", &[]).unwrap(), Figure::of("9 s", &[]).unwrap()];
        let words: Vec<String> =
            Axis::of(Scale::Log, near.iter()).unwrap().ticks().into_iter().map(|(_, words)| words).collect();
        assert_eq!(words, ["1 s", "2 s", "5 s", "10 s"]);
        assert_eq!((axis.place(1e4), axis.place(1e7), axis.place(0.0)), (Some(0.0), Some(1.0), None));
    }

    #[test]
    fn a_linear_axis_begins_at_zero() {
        let figures = [Figure::of("50.6 %", &[]).unwrap(), Figure::of("99.97 %", &[]).unwrap()];
        let axis = Axis::of(Scale::Linear, figures.iter()).unwrap();
        let words: Vec<String> = axis.ticks().into_iter().map(|(_, words)| words).collect();
        assert_eq!(words, ["0 %", "50 %", "100 %"]);
        assert!(Axis::of(Scale::Linear, [].iter()).is_none());
    }
}
