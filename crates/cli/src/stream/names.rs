//! The names for numbers in records, and records as lines.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::Hash;

use dormouse::record::{Field, Record, RecordKind};
use dormouse_protocol::{ClockPoint, Note, ProbeInfo, Tracing};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::duration::{clock_time, short};
use crate::output::{DIM, GOOD, SCHEMA};
use crate::sample::tasks::Numbers;
use crate::text::{self, Clean, Quoted, json};

/// The most names to keep, of threads and of groups. A stream may contain new ones without end;
/// beyond this number all are dropped, and threads and groups are shown by number until they are
/// named again.
const MOST_NAMES: usize = 1 << 16;
/// Bytes of a name that are kept; a group has no more.
const LONGEST_NAME: usize = 128;

/// The names that a stream has contained so far.
pub(super) struct Names {
    clock: ClockPoint,
    probes: HashMap<u32, ProbeInfo>,
    threads: HashMap<(u32, u64), Thread>,
    groups: HashMap<u32, String>,
    /// The thread ids of a service in a pid namespace of its own.
    numbers: Option<Numbers>,
}

/// A thread that a stream has named.
struct Thread {
    name: String,
    /// Its id as seen from here, if that was visible when it was named.
    outer_tid: Option<u32>,
}

/// A record as JSON. `tid` (in a service of another namespace: `inner_tid`) and `thread_start`
/// together, `probe_id`, `group_id` and `task` are never reused in a process.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RecordLine<'a> {
    schema: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    time_unix_ns: u64,
    time_mono_ns: u64,
    /// The thread id as seen from here; null if it could not be determined.
    tid: Option<u32>,
    /// In the service's own namespace, where that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    inner_tid: Option<u32>,
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
    /// None but those of the probes; `numbers` are those of the threads, where the service has
    /// others than we.
    pub(super) fn new(tracing: Tracing, numbers: Option<Numbers>) -> Names {
        let probes = tracing.probes.into_iter().map(|probe| (probe.id, probe)).collect();
        Names { clock: tracing.clock, probes, threads: HashMap::new(), groups: HashMap::new(), numbers }
    }

    /// Adds the contents of a note.
    pub(super) fn learn(&mut self, note: Note) {
        match note {
            Note::Clock(point) => self.clock = point,
            Note::Thread { tid, start, name } => {
                let outer_tid = self.numbers.as_mut().and_then(|numbers| numbers.outer(tid));
                keep(&mut self.threads, (tid, start), Thread { name: cut(name), outer_tid });
            }
            Note::Group { id, name } => keep(&mut self.groups, id, cut(name)),
            _ => {}
        }
    }

    /// One record as one line, without its end.
    pub(super) fn line(&self, tid: u32, start: u64, record: &Record<'_>, json: bool) -> String {
        if json { self.json(tid, start, record) } else { self.text(tid, start, record) }
    }

    fn json(&self, tid: u32, start: u64, record: &Record<'_>) -> String {
        let probe = self.probes.get(&record.probe);
        let thread = self.threads.get(&(tid, start));
        let is_elsewhere = self.numbers.is_some();
        let line = RecordLine {
            schema: SCHEMA,
            kind: "record",
            time_unix_ns: at(&self.clock, self.clock.real_ns, record.tsc),
            time_mono_ns: at(&self.clock, self.clock.mono_ns, record.tsc),
            tid: if is_elsewhere { thread.and_then(|thread| thread.outer_tid) } else { Some(tid) },
            inner_tid: is_elsewhere.then_some(tid),
            thread_start: start,
            thread: thread.map(|thread| thread.name.as_str()),
            group_id: (record.group != 0).then_some(record.group),
            group: self.groups.get(&record.group).map(String::as_str),
            task: (record.task != 0).then_some(record.task),
            probe_id: record.probe,
            probe: probe.map(|probe| probe.name.as_str()),
            phase: phase(record.phase),
            cut: record.cut,
            fields: named(probe, record).map(|(name, value)| (name, json_value(value))).collect(),
        };
        json(&line).unwrap_or_else(|error| format!("{{\"error\":{:?}}}", error.to_string()))
    }

    fn text(&self, tid: u32, start: u64, record: &Record<'_>) -> String {
        let time = clock_time(at(&self.clock, self.clock.real_ns, record.tsc));
        let thread = self.threads.get(&(tid, start));
        let number = match (&self.numbers, thread.and_then(|thread| thread.outer_tid)) {
            (None, _) => tid.to_string(),
            (Some(_), Some(outer)) => text::tid(outer, tid),
            (Some(_), None) => format!("? ({tid})"),
        };
        let thread = format!("{}/{number}", Clean(thread.map_or("?", |thread| &thread.name)));
        let group = match (record.group, self.groups.get(&record.group)) {
            (0, _) => "-".to_owned(),
            (_, Some(name)) => Clean(name).to_string(),
            (id, None) => format!("#{id}"),
        };
        let probe = self.probes.get(&record.probe);
        let name = probe.map_or_else(|| format!("#{}", record.probe), |probe| Clean(&probe.name).to_string());
        let mut line = format!("{DIM}{time}{DIM:#} {thread:<20} {group:<16} {GOOD}{name}{GOOD:#}");
        if record.phase != RecordKind::Point {
            let _ = write!(line, " {}", phase(record.phase));
        }
        for (name, value) in named(probe, record) {
            if let (RecordKind::Exit, "elapsed_ns", Field::Unsigned(ns)) = (record.phase, &*name, value) {
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

fn keep<K: Eq + Hash, V>(names: &mut HashMap<K, V>, key: K, value: V) {
    if names.len() >= MOST_NAMES && !names.contains_key(&key) {
        names.clear();
    }
    names.insert(key, value);
}

/// The part of a name that is kept.
fn cut(mut name: String) -> String {
    let mut end = LONGEST_NAME.min(name.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name.shrink_to_fit();
    name
}

/// The values at the end of a request in `dormouse.task`; after the first, those of its drop.
const END_OF_REQUEST: [&str; 5] = ["outcome", "place", "stack", "waited", "panicking"];

/// The fields of a record with their names. A value without a name gets its number, a name without
/// a value is left out: the record was cut.
fn named<'a>(
    probe: Option<&'a ProbeInfo>,
    record: &'a Record<'_>,
) -> impl Iterator<Item = (String, Field<'a>)> {
    let names = probe.map_or(&[][..], |probe| &probe.fields[..]);
    let is_end = record.phase == RecordKind::Exit && matches!(record.values.first(), Some(Field::Text(_)));
    record.values.iter().enumerate().map(move |(i, &value)| {
        let name = match (record.phase, value, names.get(i)) {
            _ if is_end => END_OF_REQUEST.get(i).map_or_else(|| i.to_string(), |&name| name.to_owned()),
            (RecordKind::Exit, Field::Unsigned(_), _) if i == 0 => "elapsed_ns".to_owned(),
            (RecordKind::Exit, ..) | (_, _, None) => i.to_string(),
            (_, _, Some(name)) => name.clone(),
        };
        (name, value)
    })
}

fn json_value(value: Field<'_>) -> Value {
    match value {
        Field::Signed(n) => n.into(),
        Field::Unsigned(n) => n.into(),
        // JSON has no representation of infinity and NaN.
        Field::Float(n) => n.into(),
        Field::Boolean(b) => b.into(),
        Field::Text(text) | Field::Formatted(text) => text.into(),
        _ => Value::Null,
    }
}

fn phase(phase: RecordKind) -> &'static str {
    match phase {
        RecordKind::Point => "point",
        RecordKind::Enter => "enter",
        RecordKind::Exit => "exit",
    }
}

/// The time of a stamp on the clock that showed `base_ns` at the conversion point.
fn at(point: &ClockPoint, base_ns: u64, tsc: u64) -> u64 {
    let ticks = tsc.wrapping_sub(point.tsc) as i64;
    // Points come about once a second, so the product is small and a double holds it to the
    // nanosecond.
    base_ns.saturating_add_signed((ticks as f64 * 1e9 / point.tsc_hz) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Proc;
    use dormouse_protocol::BatchStat;

    const DAY_NS: u64 = 86_400_000_000_000;

    fn names() -> Names {
        names_in(None)
    }

    fn names_in(numbers: Option<Numbers>) -> Names {
        let tracing = Tracing {
            matched: vec!["db.query".into()],
            keys: 1,
            probes: vec![ProbeInfo {
                id: 3,
                name: "db.query".into(),
                file: "src/db.rs".into(),
                line: 9,
                object: "db".into(),
                fields: vec!["rows".into(), "sql".into()],
            }],
            batch: BatchStat::default(),
            clock: ClockPoint {
                tsc: 1_000,
                tsc_hz: 2e9,
                mono_ns: 50_000,
                real_ns: 86_399_000_000_000 + 3 * DAY_NS,
            },
        };
        let mut names = Names::new(tracing, numbers);
        names.learn(Note::Thread { tid: 12, start: 1, name: "worker\u{1b}".into() });
        names.learn(Note::Group { id: 5, name: "GET /menu".into() });
        names
    }

    fn record(phase: RecordKind, values: Vec<Field<'_>>) -> Record<'_> {
        Record { phase, probe: 3, tsc: 3_001_000, task: 8, group: 5, cut: false, values }
    }

    fn plain(names: &Names, record: &Record<'_>) -> String {
        anstream::adapter::strip_str(&names.line(12, 1, record, false)).to_string()
    }

    #[test]
    fn a_line_has_time_thread_group_and_fields() {
        let names = names();
        let values = vec![Field::Unsigned(3), Field::Text("select \"1\"\u{1b}")];
        assert_eq!(
            plain(&names, &record(RecordKind::Point, values)),
            "23:59:59.001500000 worker\\u{1b}/12      GET /menu        db.query rows=3 \
             sql=\"select \\\"1\\\"\\u{1b}\""
        );
        let exit = plain(&names, &record(RecordKind::Exit, vec![Field::Unsigned(1_500)]));
        assert!(exit.ends_with("db.query exit after 1.50 us"), "{exit}");
        let end = plain(&names, &record(RecordKind::Exit, vec![Field::Text("cancelled")]));
        assert!(end.ends_with("db.query exit outcome=\"cancelled\""), "{end}");
        let numbers = [Field::Text("cancelled"), Field::Unsigned(4), Field::Unsigned(7)];
        let end = plain(&names, &record(RecordKind::Exit, numbers.to_vec()));
        assert!(end.ends_with("db.query exit outcome=\"cancelled\" place=4 stack=7"), "{end}");
        let enter =
            Record { cut: true, group: 0, probe: 4, ..record(RecordKind::Enter, vec![Field::Signed(-1)]) };
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
            serde_json::from_str(&names().line(12, 1, &record(RecordKind::Point, values), true)).unwrap();
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
    fn a_thread_elsewhere_has_its_number_here() {
        let root = tempfile::tempdir().unwrap();
        for (path, ids) in [("60", "60\t1"), ("60/task/6114", "6114\t12")] {
            let path = root.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("status"), format!("NSpid:\t{ids}\n")).unwrap();
        }
        let mut names = names_in(Numbers::of(Proc::at(root.path()), 60));
        let record = record(RecordKind::Point, Vec::new());
        let numbers = |names: &Names, tid: u32| {
            let text = anstream::adapter::strip_str(&names.line(tid, 1, &record, false)).to_string();
            let line: Value = serde_json::from_str(&names.line(tid, 1, &record, true)).unwrap();
            (text, line["tid"].clone(), line["inner_tid"].clone())
        };
        let (text, outer, inner) = numbers(&names, 12);
        assert!(text.contains("worker\\u{1b}/6114 (12) "), "{text}");
        assert_eq!((outer, inner), (6114.into(), 12.into()));
        names.learn(Note::Thread { tid: 13, start: 1, name: "ended".into() });
        let (text, outer, inner) = numbers(&names, 13);
        assert!(text.contains("ended/? (13) "), "{text}");
        assert_eq!((outer, inner), (Value::Null, 13.into()));
    }

    #[test]
    fn names_have_a_bound() {
        let mut names = names();
        for start in 0..3 * MOST_NAMES as u64 {
            names.learn(Note::Thread { tid: 1, start, name: String::new() });
            assert!(names.threads.len() <= MOST_NAMES);
        }
        names.learn(Note::Group { id: 1, name: "é".repeat(1 << 16) });
        assert_eq!(names.groups[&1], "é".repeat(LONGEST_NAME / 2));
    }

    #[test]
    fn stamps_before_the_conversion_point_are_earlier() {
        let point = ClockPoint { tsc: 10_000, tsc_hz: 1e9, mono_ns: 500, real_ns: 20_000 };
        assert_eq!(at(&point, point.real_ns, 9_000), 19_000);
        assert_eq!(at(&point, point.mono_ns, 9_000), 0, "never below nothing");
    }
}
