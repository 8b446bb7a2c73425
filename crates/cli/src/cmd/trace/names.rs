//! What the numbers in records stand for, and records as lines.

use std::collections::HashMap;
use std::fmt::Write as _;

use dormouse::record::{Field, Phase, Record};
use dormouse::wire::{ClockPoint, Note, ProbeInfo, Tracing};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::duration::short;
use crate::output::{DIM, GOOD, SCHEMA};
use crate::text::{Clean, Quoted};

const DAY_NS: u64 = 86_400_000_000_000;

/// The names that a stream has told so far.
pub(super) struct Names {
    clock: ClockPoint,
    probes: HashMap<u32, ProbeInfo>,
    threads: HashMap<(u32, u64), String>,
    groups: HashMap<u32, String>,
}

/// A record as JSON. `tid` and `thread_start` together, `probe_id`, `group_id` and `task` are never reused in a
/// process.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    time_unix_ns: u64,
    time_mono_ns: u64,
    tid: u32,
    thread_start: u64,
    thread: Option<&'a str>,
    group_id: Option<u32>,
    group: Option<&'a str>,
    task: Option<u64>,
    probe_id: u32,
    probe: Option<&'a str>,
    phase: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
    fields: Map<String, Value>,
}

impl Names {
    pub(super) fn new(tracing: Tracing) -> Names {
        let probes = tracing.probes.into_iter().map(|probe| (probe.id, probe)).collect();
        Names { clock: tracing.clock, probes, threads: HashMap::new(), groups: HashMap::new() }
    }

    /// Takes in what a note says.
    pub(super) fn learn(&mut self, note: Note) {
        match note {
            Note::Clock(point) => self.clock = point,
            Note::Thread { tid, start, name } => {
                self.threads.insert((tid, start), name);
            }
            Note::Group { id, name } => {
                self.groups.insert(id, name);
            }
            _ => {}
        }
    }

    /// One record as one line, without its end.
    pub(super) fn line(&self, tid: u32, start: u64, record: &Record<'_>, json: bool) -> String {
        if json { self.json(tid, start, record) } else { self.text(tid, start, record) }
    }

    fn json(&self, tid: u32, start: u64, record: &Record<'_>) -> String {
        let probe = self.probes.get(&record.probe);
        let line = Line {
            schema: SCHEMA,
            kind: "record",
            time_unix_ns: at(&self.clock, self.clock.real_ns, record.tsc),
            time_mono_ns: at(&self.clock, self.clock.mono_ns, record.tsc),
            tid,
            thread_start: start,
            thread: self.threads.get(&(tid, start)).map(String::as_str),
            group_id: (record.group != 0).then_some(record.group),
            group: self.groups.get(&record.group).map(String::as_str),
            task: (record.task != 0).then_some(record.task),
            probe_id: record.probe,
            probe: probe.map(|probe| probe.name.as_str()),
            phase: phase(record.phase),
            cut: record.cut,
            fields: named(probe, record).map(|(name, value)| (name, json_value(value))).collect(),
        };
        serde_json::to_string(&line).unwrap_or_else(|error| format!("{{\"error\":{:?}}}", error.to_string()))
    }

    fn text(&self, tid: u32, start: u64, record: &Record<'_>) -> String {
        let time = clock_time(at(&self.clock, self.clock.real_ns, record.tsc));
        let thread = self.threads.get(&(tid, start)).map_or("?", String::as_str);
        let thread = format!("{}/{tid}", Clean(thread));
        let group = match (record.group, self.groups.get(&record.group)) {
            (0, _) => "-".to_owned(),
            (_, Some(name)) => Clean(name).to_string(),
            (id, None) => format!("#{id}"),
        };
        let probe = self.probes.get(&record.probe);
        let name = probe.map_or_else(|| format!("#{}", record.probe), |probe| Clean(&probe.name).to_string());
        let mut line = format!("{DIM}{time}{DIM:#} {thread:<20} {group:<16} {GOOD}{name}{GOOD:#}");
        if record.phase != Phase::Point {
            let _ = write!(line, " {}", phase(record.phase));
        }
        for (name, value) in named(probe, record) {
            if let (Phase::Exit, Field::Unsigned(ns)) = (record.phase, value) {
                let _ = write!(line, " after {}", short(ns));
                continue;
            }
            let _ = write!(line, " {}=", Clean(&name));
            let _ = match value {
                Field::Text(text) => write!(line, "{}", Quoted(text)),
                Field::Formatted(text) => write!(line, "{}", Clean(text)),
                other => write!(line, "{other}"),
            };
        }
        if record.cut {
            line.push_str(" …");
        }
        line
    }
}

/// The fields of a record with their names. A value without a name gets its number, a name without a value is
/// left out: the record was cut.
fn named<'a>(
    probe: Option<&'a ProbeInfo>,
    record: &'a Record<'_>,
) -> impl Iterator<Item = (String, Field<'a>)> {
    let names = probe.map_or(&[][..], |probe| &probe.fields[..]);
    record.values.iter().enumerate().map(move |(i, &value)| {
        let name = match (record.phase, names.get(i)) {
            (Phase::Exit, _) if i == 0 => "elapsed_ns".to_owned(),
            (Phase::Exit, _) | (_, None) => i.to_string(),
            (_, Some(name)) => name.clone(),
        };
        (name, value)
    })
}

fn json_value(value: Field<'_>) -> Value {
    match value {
        Field::Signed(n) => n.into(),
        Field::Unsigned(n) => n.into(),
        // JSON has no word for infinity and what is no number.
        Field::Float(n) => n.into(),
        Field::Boolean(b) => b.into(),
        Field::Text(text) | Field::Formatted(text) => text.into(),
        _ => Value::Null,
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Point => "point",
        Phase::Enter => "enter",
        Phase::Exit => "exit",
    }
}

/// The time of a stamp on the clock that showed `base_ns` at the conversion point.
fn at(point: &ClockPoint, base_ns: u64, tsc: u64) -> u64 {
    let ticks = tsc.wrapping_sub(point.tsc) as i64;
    // Points come about once a second, so the product is small and a double holds it to the nanosecond.
    base_ns.saturating_add_signed((ticks as f64 * 1e9 / point.tsc_hz) as i64)
}

/// `HH:MM:SS.nanoseconds`, UTC.
fn clock_time(unix_ns: u64) -> String {
    let of_day = unix_ns % DAY_NS;
    let (s, ns) = (of_day / 1_000_000_000, of_day % 1_000_000_000);
    format!("{:02}:{:02}:{:02}.{ns:09}", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dormouse::wire::Batch;

    fn names() -> Names {
        let mut names = Names::new(Tracing {
            matched: vec!["db.query".into()],
            probes: vec![ProbeInfo {
                id: 3,
                name: "db.query".into(),
                file: "src/db.rs".into(),
                line: 9,
                object: "db".into(),
                fields: vec!["rows".into(), "sql".into()],
            }],
            batch: Batch::default(),
            clock: ClockPoint {
                tsc: 1_000,
                tsc_hz: 2e9,
                mono_ns: 50_000,
                real_ns: 86_399_000_000_000 + 3 * DAY_NS,
            },
        });
        names.learn(Note::Thread { tid: 12, start: 1, name: "worker\u{1b}".into() });
        names.learn(Note::Group { id: 5, name: "GET /menu".into() });
        names
    }

    fn record(phase: Phase, values: Vec<Field<'_>>) -> Record<'_> {
        Record { phase, probe: 3, tsc: 3_001_000, task: 8, group: 5, cut: false, values }
    }

    fn plain(names: &Names, record: &Record<'_>) -> String {
        anstream::adapter::strip_str(&names.line(12, 1, record, false)).to_string()
    }

    #[test]
    fn a_line_tells_when_where_for_whom_and_what() {
        let names = names();
        let values = vec![Field::Unsigned(3), Field::Text("select \"1\"\u{1b}")];
        assert_eq!(
            plain(&names, &record(Phase::Point, values)),
            "23:59:59.001500000 worker\\u{1b}/12      GET /menu        db.query rows=3 \
             sql=\"select \\\"1\\\"\\u{1b}\""
        );
        let exit = plain(&names, &record(Phase::Exit, vec![Field::Unsigned(1_500)]));
        assert!(exit.ends_with("db.query exit after 1.50 us"), "{exit}");
        let enter = Record { cut: true, group: 0, probe: 4, ..record(Phase::Enter, vec![Field::Signed(-1)]) };
        assert!(
            plain(&names, &enter).ends_with(" -                #4 enter 0=-1 …"),
            "{}",
            plain(&names, &enter)
        );
    }

    #[test]
    fn a_json_line_carries_units_and_ids() {
        let values = vec![Field::Unsigned(u64::MAX), Field::Float(f64::NAN)];
        let line: Value =
            serde_json::from_str(&names().line(12, 1, &record(Phase::Point, values), true)).unwrap();
        assert_eq!(
            line,
            serde_json::json!({
                "schema": 1, "type": "record",
                "time_unix_ns": 86_399_000_000_000 + 3 * DAY_NS + 1_500_000, "time_mono_ns": 1_550_000,
                "tid": 12, "thread_start": 1, "thread": "worker\u{1b}", "group_id": 5, "group": "GET /menu",
                "task": 8, "probe_id": 3, "probe": "db.query", "phase": "point",
                "fields": { "rows": u64::MAX, "sql": null },
            })
        );
    }

    #[test]
    fn stamps_before_the_conversion_point_are_earlier() {
        let point = ClockPoint { tsc: 10_000, tsc_hz: 1e9, mono_ns: 500, real_ns: 20_000 };
        assert_eq!(at(&point, point.real_ns, 9_000), 19_000);
        assert_eq!(at(&point, point.mono_ns, 9_000), 0, "never below nothing");
    }
}
