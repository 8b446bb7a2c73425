//! A row: the use of a group, a thread or the process, as named figures.
//!
//! `top`, `stat` and `demo` make the same rows and differ in the fields that they choose, for
//! tables ([`super::column`]) and for JSON ([`Chosen`]).

use std::cmp::Ordering;

use dormouse_protocol::{CountRow, GroupRow, Stat};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::waits::{WaitFigures, slowest_trace};
use crate::sample::events::TASK_CLOCK;
use crate::sample::totals::Thread;

/// The figures of one group, thread or sum.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// By their keys in JSON.
    fields: Map<String, Value>,
    /// Events over the interval; an event that is missing is not counted.
    pub(crate) counts: Vec<CountRow>,
    interval_ns: u64,
}

impl Row {
    /// A sum: CPU time since counting began, and in the last `interval_ns`.
    pub(crate) fn sum(name: &str, total_ns: u64, recent_ns: u64, interval_ns: u64) -> Row {
        Row::of(&Value::Null, name, total_ns, recent_ns, interval_ns)
    }

    /// CPU time of no interval.
    pub(crate) fn total(name: &str, ns: u64) -> Row {
        let mut row = Row::sum(name, ns, 0, 0);
        row.fields.remove("cpu_percent");
        row
    }

    /// A group: its totals `now`, since counting began, and in the last `interval_ns`.
    pub(crate) fn group(now: &GroupRow, total: &GroupRow, recent: &GroupRow, interval_ns: u64) -> Row {
        let mut row = Row::of(now, &now.name, total.cpu_ns, recent.cpu_ns, interval_ns);
        row.set("cpu_ns_per_request", total.cpu_ns.checked_div(total.requests));
        row.set("requests_per_s", row.per_s(recent.requests));
        row.set("polls_per_s", row.per_s(recent.polls));
        row.fields.remove("waits");
        if let Some(waits) = recent.waits.as_deref().map(WaitFigures::of)
            && let Ok(waits) = serde_json::to_value(waits)
        {
            row.set("waits", waits);
        }
        if let Some(requests) = total.waits.as_ref().map(|waits| &waits.requests).filter(|of| of.max_ns > 0) {
            row.set("slowest_ns", requests.max_ns);
            row.set("slowest_task", requests.max_task);
            if let Some(trace) = slowest_trace(requests) {
                row.set("slowest_trace_id", trace.to_string());
            }
        }
        Row { counts: recent.counts.clone(), ..row }
    }

    /// A thread: since counting began, and in the last `interval_ns`.
    pub(crate) fn thread(total: &Thread, recent: &Thread, has_ended: bool, interval_ns: u64) -> Row {
        let mut row = Row::of(total, &total.name, total.cpu_ns, recent.cpu_ns, interval_ns);
        row.set("runnable_percent", recent.runnable_ns.map(|ns| ratio(ns, interval_ns) * 100.0));
        row.set("ended", has_ended);
        if total.inner_tid == total.tid {
            row.fields.remove("inner_tid");
        }
        if let Some(usage) = &total.usage {
            row.set("switches", usage.switches());
            row.set("faults", usage.faults());
        }
        let counts = recent.usage.as_ref().map(|usage| usage.counts(interval_ns));
        Row { counts: counts.unwrap_or_default(), ..row }
    }

    /// The fields of `subject`, with CPU time over them.
    fn of(subject: &impl Serialize, name: &str, total_ns: u64, recent_ns: u64, interval_ns: u64) -> Row {
        let fields = match serde_json::to_value(subject) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let mut row = Row { name: name.to_owned(), fields, counts: Vec::new(), interval_ns };
        row.set("cpu_ns", total_ns);
        row.set("cpu_percent", ratio(recent_ns, interval_ns) * 100.0);
        row
    }

    /// The row without CPU time, if CPU time of groups and of work in no group is refused.
    pub(crate) fn believed(mut self, inside: &Stat) -> Row {
        if inside.cpu_refused.is_none() {
            return self;
        }
        for field in ["cpu_ns", "cpu_percent", "cpu_ns_per_request"] {
            self.fields.remove(field);
        }
        self.counts.retain(|count| count.event != TASK_CLOCK);
        self
    }

    fn set(&mut self, field: &str, value: impl Into<Value>) {
        self.fields.insert(field.to_owned(), value.into());
    }

    /// A figure, as `cpu_ns`, or `waits.latency.p99_ns`; `None` where the row has none of that
    /// name.
    pub(crate) fn get(&self, field: &str) -> Option<&Value> {
        let mut path = field.split('.');
        let first = self.fields.get(path.next()?)?;
        path.try_fold(first, |value, part| value.get(part))
    }

    /// Whether it is known where the row's tasks spend their time.
    pub(crate) fn has_waits(&self) -> bool {
        self.fields.contains_key("waits")
    }

    /// A figure as a number; `None` where the row has none.
    pub(crate) fn number(&self, field: &str) -> Option<f64> {
        self.get(field)?.as_f64()
    }

    /// How often an event happened in the interval, where it was counted.
    pub(crate) fn count(&self, event: &str) -> Option<&CountRow> {
        self.counts.iter().find(|count| count.event == event)
    }

    /// How often per second.
    pub(crate) fn rate(&self, event: &str) -> Option<f64> {
        self.count(event).map(|count| self.per_s(count.value))
    }

    fn per_s(&self, n: u64) -> f64 {
        ratio(n, self.interval_ns) * 1e9
    }

    /// As JSON with these fields, which are separated by blanks.
    pub(crate) fn chosen(&self, fields: &'static str) -> Chosen<'_> {
        Chosen { row: self, fields }
    }

    /// The order of rows: most CPU time in the interval first, then in all, then by number or name.
    pub(crate) fn by_use(&self, other: &Row) -> Ordering {
        let down = |field| other.number(field).partial_cmp(&self.number(field)).unwrap_or(Ordering::Equal);
        let use_order = down("cpu_percent").then_with(|| down("cpu_ns"));
        let tid = |row: &Row| row.get("tid").and_then(Value::as_u64);
        use_order.then_with(|| match (tid(self), tid(other)) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => self.name.cmp(&other.name),
        })
    }
}

/// Chosen fields of a row, for JSON: the object has those that the row has, in that order.
#[derive(Debug)]
pub(crate) struct Chosen<'a> {
    row: &'a Row,
    fields: &'static str,
}

impl Serialize for Chosen<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.fields.split(' ');
        serializer.collect_map(fields.filter_map(|field| Some((field, self.row.get(field)?))))
    }
}

/// A part of a whole; 0 of nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
