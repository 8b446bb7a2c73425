//! The sums of a counter, as a meter wants them: a sum never decreases, and is in each collection.
//!
//! An SDK computes the difference between two collections without a check, of unsigned numbers, and
//! counts from zero what was missing in the former one. Two sums may be read at once, for two
//! readers: one that was not begun after the last has ended changes nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

use ::opentelemetry::KeyValue;
use dormouse_metrics::{Exposition, MetricFamily, MetricKind, MetricValue};
use dormouse_protocol::CallRow;

/// The sets of attributes that an instrument shows: the default limit of an SDK, of which one is
/// for those beyond.
pub(super) const MOST_SETS: usize = 1999;

/// The sets that are kept: more than all groups have. Names that change all the time, as of
/// runtimes, are not kept without end.
const MOST_KEPT: usize = 16 << 10;

/// The figures, and when they were read.
pub(super) struct CollectedReading {
    pub(super) begun: Instant,
    pub(super) ended: Instant,
    pub(super) figures: Exposition,
}

pub(super) fn attributes<'a>(labels: impl Iterator<Item = (&'static str, &'a str)>) -> Vec<KeyValue> {
    labels.map(|(name, value)| KeyValue::new(name, value.to_owned())).collect()
}

/// The sums of one counter, by attributes.
#[derive(Default)]
pub(super) struct Sums {
    /// When the last reading ended.
    until: Option<Instant>,
    all: HashMap<Vec<KeyValue>, Sum>,
}

struct Sum {
    /// Its number, in the order in which sums have come.
    number: usize,
    /// The last value of the counter.
    last: u64,
    /// The sum of the last values before it began anew.
    before: u64,
}

impl Sums {
    /// Adds what has come in a reading.
    pub(super) fn add(&mut self, reading: &CollectedReading, family: &MetricFamily) {
        if self.until.is_some_and(|until| reading.begun < until) {
            return;
        }
        self.until = Some(reading.ended);
        for (value, labels) in reading.figures.values_of(family) {
            let (MetricValue::Count(value) | MetricValue::Nanoseconds(value)) = value else { continue };
            let number = self.all.len();
            let sum = match self.all.entry(attributes(labels)) {
                Entry::Occupied(sum) => sum.into_mut(),
                Entry::Vacant(_) if number == MOST_KEPT => continue,
                Entry::Vacant(sum) => sum.insert(Sum { number, last: 0, before: 0 }),
            };
            if value >= sum.last {
                sum.last = value;
            } else if family.kind == MetricKind::OlderCounter {
                sum.before += std::mem::replace(&mut sum.last, value);
            }
        }
    }

    /// Calls `observe` with each sum, and with one of all that are too many.
    pub(super) fn each(&self, mut observe: impl FnMut(u64, &[KeyValue])) {
        let (mut others, mut rest) = (None, 0);
        for (attributes, Sum { number, last, before }) in &self.all {
            if *number < MOST_SETS - 1 {
                observe(before + last, attributes);
                continue;
            }
            rest += before + last;
            if *number == MOST_SETS - 1 {
                let others_of = |it: &KeyValue| KeyValue::new(it.key.clone(), CallRow::OTHERS);
                others = Some(attributes.iter().map(others_of).collect::<Vec<_>>());
            }
        }
        if let Some(others) = others {
            observe(rest, &others);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dormouse_metrics::{ExposedProcess, LabelSet};
    use dormouse_protocol::figures::{OBJECTIVE_REQUESTS, REQUESTS};

    use super::*;

    fn reading(family: &'static MetricFamily, values: &[(&str, u64)]) -> CollectedReading {
        let (begun, mut figures) = (Instant::now(), Exposition::new());
        let mut part = figures.process(ExposedProcess::default());
        for (group, value) in values {
            let labels = [part.labels(&[("group", group)]), LabelSet::NONE];
            part.add(family, labels, MetricValue::Count(*value));
        }
        CollectedReading { begun, ended: Instant::now(), figures }
    }

    fn shown(sums: &Sums) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        sums.each(|sum, of| assert_eq!(all.insert(of[0].value.to_string(), sum), None));
        all
    }

    fn after(family: &'static MetricFamily, readings: &[&[(&str, u64)]]) -> Vec<(String, u64)> {
        let mut sums = Sums::default();
        for values in readings {
            sums.add(&reading(family, values), family);
        }
        shown(&sums).into_iter().collect()
    }

    #[test]
    fn sums_go_on_where_counters_begin_anew() {
        let readings: [&[(&str, u64)]; 4] = [&[("a", 7)], &[("a", 2)], &[("a", 5)], &[("a", 1)]];
        assert_eq!(after(&OBJECTIVE_REQUESTS, &readings), [("a".to_owned(), 13)]);
        // A counter that begins with the process does not begin anew: its figure was corrected.
        assert_eq!(after(&REQUESTS, &readings), [("a".to_owned(), 7)]);
    }

    #[test]
    fn sums_stay_while_counters_are_absent() {
        let readings: [&[(&str, u64)]; 3] = [&[("a", 7), ("b", 1)], &[("b", 2)], &[]];
        let kept = [("a".to_owned(), 7), ("b".to_owned(), 2)];
        assert_eq!(after(&REQUESTS, &readings), kept);
    }

    #[test]
    fn an_older_reading_is_no_change() {
        let mut sums = Sums::default();
        let early = reading(&OBJECTIVE_REQUESTS, &[("a", 7)]);
        sums.add(&reading(&OBJECTIVE_REQUESTS, &[("a", 8)]), &OBJECTIVE_REQUESTS);
        sums.add(&early, &OBJECTIVE_REQUESTS);
        assert_eq!(shown(&sums)["a"], 8);
    }

    #[test]
    fn sets_beyond_the_limit_are_added_up() {
        let mut sums = Sums::default();
        let names: Vec<String> = (0..MOST_SETS + 500).map(|n| format!("{n:05}")).collect();
        let mut counts = |counted: &[(&str, u64)]| {
            sums.add(&reading(&REQUESTS, counted), &REQUESTS);
            shown(&sums)
        };
        let counted: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 3)).collect();
        assert_eq!(counts(&counted[..MOST_SETS - 1]).len(), MOST_SETS - 1);
        let all = counts(&counted);
        assert_eq!((all.len(), all[CallRow::OTHERS]), (MOST_SETS, 501 * 3));
        // Those that are shown stay, and the sum of the others, too.
        let reversed: Vec<(&str, u64)> = counted.iter().rev().take(600).copied().collect();
        assert_eq!(counts(&reversed), all);
        let many: Vec<String> = (0..MOST_KEPT + 9).map(|n| n.to_string()).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 3)).collect();
        assert_eq!(counts(&many)[CallRow::OTHERS], (MOST_KEPT - MOST_SETS + 1) as u64 * 3);
    }
}
