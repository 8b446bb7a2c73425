//! A row: the use of a group, a thread or the process, as figures.
//!
//! `top`, `stat` and `demo` make the same rows. The tables of figures ([`GROUP_FIGURES`],
//! [`THREAD_FIGURES`](super::threads::THREAD_FIGURES)) list the figures of each view and document.

#[cfg(test)]
mod schema;

use std::cmp::Ordering;

use dormouse_protocol::CountRow;
use dormouse_protocol::figures::{
    CALL_FIGURES, CallSpan, Figure, FigureJson, FigurePart, FigureSums, FigureValue, GROUP_FIGURES,
    GroupSpan, RUNTIME_FIGURES, RuntimeSpan, percent, ratio,
};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::threads::{THREAD_FIGURES, ThreadSpan};
use crate::sample::events::TASK_CLOCK;

/// The figures of one group, thread or sum.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// The CPU time of the interval in percent. `None` if there is no interval, or if CPU time is
    /// refused.
    pub(crate) cpu_percent: Option<f64>,
    pub(crate) cpu_ns: Option<u64>,
    /// A thread's number here, and the one in its own namespace.
    pub(crate) tid: Option<(u32, u32)>,
    /// Whether the thread has ended.
    pub(crate) has_ended: bool,
    /// Whether it is known where the row's tasks spend their time.
    pub(crate) has_waits: bool,
    /// In the order of the table.
    values: Vec<FigureValue>,
    /// Events over the interval; an event that is missing is not counted.
    pub(crate) counts: Vec<CountRow>,
    interval_ns: u64,
}

impl Row {
    /// A group.
    pub(crate) fn group(group: &GroupSpan<'_>) -> Row {
        let GroupSpan { now, counted, recent, interval_ns, is_refused } = *group;
        let is_believed = |count: &&CountRow| !is_refused || count.event != TASK_CLOCK;
        Row {
            cpu_percent: (!is_refused).then(|| percent(recent.cpu_ns, interval_ns)),
            cpu_ns: (!is_refused).then_some(counted.cpu_ns),
            has_waits: recent.waits.is_some(),
            values: GROUP_FIGURES.iter().map(|figure| figure.value(group)).collect(),
            counts: recent.counts.iter().filter(is_believed).cloned().collect(),
            ..Row::empty(&now.name, interval_ns)
        }
    }

    /// A thread.
    pub(crate) fn thread(thread: &ThreadSpan<'_>) -> Row {
        let ThreadSpan { total, recent, has_ended, interval_ns } = *thread;
        let usage = recent.usage.as_ref();
        Row {
            cpu_percent: Some(percent(recent.cpu_ns, interval_ns)),
            cpu_ns: Some(total.cpu_ns),
            tid: Some((total.tid, total.inner_tid)),
            has_ended,
            values: THREAD_FIGURES.iter().map(|figure| (figure.of)(thread)).collect(),
            counts: usage.map(|usage| usage.counts(interval_ns)).unwrap_or_default(),
            ..Row::empty(&total.name, interval_ns)
        }
    }

    /// The calls of a group to a peer.
    pub(crate) fn call(calls: &CallSpan<'_>) -> Row {
        Row {
            values: CALL_FIGURES.iter().map(|figure| (figure.of)(calls)).collect(),
            ..Row::empty(calls.group.unwrap_or("(no group)"), 0)
        }
    }

    /// A runtime.
    pub(crate) fn runtime(runtime: &RuntimeSpan<'_>) -> Row {
        Row {
            values: RUNTIME_FIGURES.iter().map(|figure| (figure.of)(runtime)).collect(),
            ..Row::empty(&runtime.row.name, runtime.interval_ns)
        }
    }

    /// A sum among groups: CPU time since counting began, and in the last `interval_ns`; nothing
    /// where it is refused.
    pub(crate) fn sum(name: &str, total_ns: u64, recent_ns: u64, interval_ns: u64, is_refused: bool) -> Row {
        let row = Row::empty(name, interval_ns);
        if is_refused {
            return row;
        }
        row.with_cpu(GROUP_FIGURES, Some(percent(recent_ns, interval_ns)), total_ns)
    }

    /// A sum among groups, of no interval.
    pub(crate) fn total(name: &str, ns: u64) -> Row {
        Row::empty(name, 0).with_cpu(GROUP_FIGURES, None, ns)
    }

    /// A sum among threads.
    pub(crate) fn threads(name: &str, ns: u64, interval_ns: u64) -> Row {
        Row::empty(name, interval_ns).with_cpu(&THREAD_FIGURES, Some(percent(ns, interval_ns)), ns)
    }

    fn empty(name: &str, interval_ns: u64) -> Row {
        Row {
            name: name.to_owned(),
            cpu_percent: None,
            cpu_ns: None,
            tid: None,
            has_ended: false,
            has_waits: false,
            values: Vec::new(),
            counts: Vec::new(),
            interval_ns,
        }
    }

    fn with_cpu<Of>(self, figures: &[Figure<Of>], cpu_percent: Option<f64>, cpu_ns: u64) -> Row {
        let value = |figure: &Figure<Of>| match figure.of_sums {
            Some(FigureSums::CpuPercent) => cpu_percent.map_or(FigureValue::Absent, Into::into),
            Some(FigureSums::CpuNs) => cpu_ns.into(),
            None => FigureValue::Absent,
        };
        let values = figures.iter().map(value).collect();
        Row { cpu_percent, cpu_ns: Some(cpu_ns), values, ..self }
    }

    /// The number of the figure at that place of the table.
    pub(crate) fn value(&self, place: usize, part: FigurePart) -> FigureValue {
        self.values.get(place).map_or(FigureValue::Absent, |value| value.part(part))
    }

    /// How often an event happened in the interval, where it was to be counted.
    pub(crate) fn count(&self, event: &str) -> Option<&CountRow> {
        self.counts.iter().find(|count| count.event == event)
    }

    /// How often per second, where it was counted.
    pub(crate) fn rate(&self, event: &str) -> Option<f64> {
        let count = self.count(event).filter(|count| count.is_counted())?;
        Some(ratio(count.value, self.interval_ns) * 1e9)
    }

    /// The part of a document for the row, whose figures are those of the table.
    pub(crate) fn in_document<Of>(
        &self,
        figures: &'static [Figure<Of>],
        document: FigureJson,
    ) -> RowDocument<'_, Of> {
        RowDocument { row: self, figures, document }
    }

    /// The order of rows: most CPU time in the interval first, then in all, then by number or name.
    pub(crate) fn by_use(&self, other: &Row) -> Ordering {
        let by_percent = other.cpu_percent.partial_cmp(&self.cpu_percent).unwrap_or(Ordering::Equal);
        let use_order = by_percent.then_with(|| other.cpu_ns.cmp(&self.cpu_ns));
        use_order.then_with(|| match (self.tid, other.tid) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => self.name.cmp(&other.name),
        })
    }
}

/// A row as JSON: the figures that the document has and the row knows.
#[derive(Debug)]
pub(crate) struct RowDocument<'a, Of: 'static> {
    row: &'a Row,
    figures: &'static [Figure<Of>],
    document: FigureJson,
}

impl<Of> RowDocument<'_, Of> {
    /// The figures of the row itself, or those of its times.
    fn entries(&self, in_waits: bool) -> impl Iterator<Item = (&'static str, &FigureValue)> {
        let all = self.figures.iter().zip(&self.row.values);
        let entries = all.filter(move |(figure, value)| {
            figure.in_waits == in_waits
                && figure.json.is_in(self.document)
                && !matches!(value, FigureValue::Absent)
        });
        entries.map(|(figure, value)| (figure.key, value))
    }
}

impl<Of> Serialize for RowDocument<'_, Of> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Waits<'a, Of: 'static>(&'a RowDocument<'a, Of>);

        impl<Of> Serialize for Waits<'_, Of> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.entries(true))
            }
        }

        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.entries(false) {
            map.serialize_entry(key, value)?;
        }
        if self.row.has_waits {
            map.serialize_entry("waits", &Waits(self))?;
        }
        map.end()
    }
}

#[cfg(test)]
impl Row {
    /// A group's figure by its key.
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        let place = GROUP_FIGURES.iter().position(|figure| figure.key == key).expect("a figure");
        self.value(place, FigurePart::All).number()
    }
}
