//! Records by hand, by the layout that `dormouse::record` tells of.

use dormouse::record::{Field, RecordKind, VERSION};
use dormouse_protocol::{ClockPoint, Note, ProbeInfo};
use dormouse_timeline::{POLL, TASK, TRACE_CONTEXT, Timeline, TimelineBuilder};

pub(crate) const POLLS: u32 = 1;
pub(crate) const TASKS: u32 = 2;
pub(crate) const STEPS: u32 = 3;
pub(crate) const BREW: u32 = 4;
pub(crate) const TRACES: u32 = 5;

/// Ticks of the known clock in a microsecond.
const MICROSECOND: u64 = 2_000;
const MONO_NS: u64 = 5_000_000_000;
const REAL_NS: u64 = 1_700_000_000_000_000_000;

pub(crate) const CLOCK: ClockPoint =
    ClockPoint { tsc: 1_000_000, tsc_hz: 2e9, mono_ns: MONO_NS, real_ns: REAL_NS };

pub(crate) fn record(
    phase: RecordKind,
    probe: u32,
    at_us: u64,
    (task, group): (u64, u32),
    values: &[Field<'_>],
) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[2] = VERSION;
    bytes[3] = phase as u8;
    bytes[4..8].copy_from_slice(&probe.to_le_bytes());
    bytes[8..16].copy_from_slice(&(CLOCK.tsc + at_us * MICROSECOND).to_le_bytes());
    bytes[16..24].copy_from_slice(&task.to_le_bytes());
    bytes[24..28].copy_from_slice(&group.to_le_bytes());
    bytes[28..30].copy_from_slice(&(values.len() as u16).to_le_bytes());
    for value in values {
        match *value {
            Field::Signed(it) => bytes.extend([&[1][..], &it.to_le_bytes()].concat()),
            Field::Unsigned(it) => bytes.extend([&[2][..], &it.to_le_bytes()].concat()),
            Field::Float(it) => bytes.extend([&[3][..], &it.to_le_bytes()].concat()),
            Field::Boolean(it) => bytes.extend([4, u8::from(it)]),
            Field::Text(it) => {
                bytes.extend([&[5][..], &(it.len() as u16).to_le_bytes(), it.as_bytes()].concat());
            }
            Field::Formatted(it) => {
                bytes.extend([&[6][..], &(it.len() as u16).to_le_bytes(), it.as_bytes()].concat());
            }
            _ => bytes.push(0),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let length = (bytes.len() as u16).to_le_bytes();
    bytes[..2].copy_from_slice(&length);
    bytes
}

pub(crate) fn enter(at_us: u64, of: (u64, u32)) -> Vec<u8> {
    record(RecordKind::Enter, POLLS, at_us, of, &[])
}

pub(crate) fn exit(at_us: u64, of: (u64, u32), elapsed_us: u64) -> Vec<u8> {
    record(RecordKind::Exit, POLLS, at_us, of, &[Field::Unsigned(elapsed_us * 1_000)])
}

pub(crate) fn begin(at_us: u64, of: (u64, u32), parent: u64, is_request: bool) -> Vec<u8> {
    let values = [Field::Unsigned(parent), Field::Boolean(is_request)];
    record(RecordKind::Enter, TASKS, at_us, of, &values)
}

pub(crate) fn end(at_us: u64, of: (u64, u32)) -> Vec<u8> {
    record(RecordKind::Exit, TASKS, at_us, of, &[])
}

/// The end of a cancelled request: the numbers of its place and of the stack that dropped it.
pub(crate) fn end_dropped(at_us: u64, of: (u64, u32), place: u64, stack: u64) -> Vec<u8> {
    let outcome = [Field::Text("cancelled"), Field::Unsigned(place), Field::Unsigned(stack)];
    let values = [&outcome[..], &[Field::Text("awaiting"), Field::Boolean(false)]].concat();
    record(RecordKind::Exit, TASKS, at_us, of, &values)
}

pub(crate) fn traced(at_us: u64, of: (u64, u32), trace_id: &str) -> Vec<u8> {
    let values = [Field::Formatted(trace_id), Field::Formatted("00f067aa0ba902b7")];
    record(RecordKind::Point, TRACES, at_us, of, &values)
}

pub(crate) fn step(at_us: u64, of: (u64, u32), cups: u64, kind: &str) -> Vec<u8> {
    record(RecordKind::Point, STEPS, at_us, of, &[Field::Unsigned(cups), Field::Text(kind)])
}

pub(crate) fn builder() -> TimelineBuilder {
    let probe = |id, name: &str, fields: &[&str]| ProbeInfo {
        id,
        name: name.to_owned(),
        file: "src/tea.rs".to_owned(),
        line: 7,
        object: String::new(),
        fields: fields.iter().map(|&field| field.to_owned()).collect(),
    };
    let probes = [
        probe(POLLS, POLL, &[]),
        probe(TASKS, TASK, &["parent", "is_request"]),
        probe(STEPS, "brew.step", &["cups", "kind"]),
        probe(BREW, "brew", &[]),
        probe(TRACES, TRACE_CONTEXT, &["trace_id", "span_id"]),
    ];
    let mut builder = TimelineBuilder::new("teaparty", 4000, &probes, CLOCK);
    for (id, name) in [(5, "GET /tea"), (6, "database")] {
        builder.learn(Note::Group { id, name: name.to_owned() });
    }
    for (tid, name) in [(4001, "worker-0"), (4002, "worker-1")] {
        builder.learn(Note::Thread { tid, start: 1, name: name.to_owned() });
    }
    builder
}

pub(crate) fn add(builder: &mut TimelineBuilder, tid: u32, records: &[Vec<u8>]) {
    let taken = builder.add(tid, 1, &records.concat(), u64::MAX).unwrap();
    assert_eq!(taken, records.len() as u64);
}

/// A request of `GET /tea` (task 11) with a part of `database` (task 21), which moves from thread
/// to thread; and a task (33) that nobody saw begin.
pub(crate) fn timeline() -> Timeline {
    const TEA: (u64, u32) = (11, 5);
    const ROWS: (u64, u32) = (21, 6);
    const OLD: (u64, u32) = (33, 5);
    let mut builder = builder();
    // The second thread's come first, as an agent may send them.
    add(
        &mut builder,
        4002,
        &[
            exit(40, OLD, 50),
            enter(500, TEA),
            enter(550, ROWS),
            step(560, ROWS, 2, "green"),
            exit(600, ROWS, 50),
            end(610, ROWS),
            exit(700, TEA, 200),
            end_dropped(710, TEA, 4, 7),
        ],
    );
    add(
        &mut builder,
        4001,
        &[
            begin(100, TEA, 0, true),
            enter(110, TEA),
            begin(120, ROWS, 11, true),
            enter(130, ROWS),
            record(RecordKind::Enter, BREW, 140, ROWS, &[]),
            step(150, ROWS, 3, "black"),
            record(RecordKind::Exit, BREW, 160, ROWS, &[Field::Unsigned(20_000)]),
            exit(170, ROWS, 40),
            exit(200, TEA, 90),
            step(900, (0, 0), 1, "alone"),
            // Still on when the trace ended.
            enter(950, OLD),
            step(1_000, OLD, 4, "late"),
        ],
    );
    builder.learn(Note::Dropped { rings: 3, client: 4 });
    let mut timeline = builder.finish();
    for of in &mut timeline.drops {
        (of.waited_at, of.dropped_by) = (format!("place {}", of.place), format!("stack {}", of.stack));
    }
    timeline
}
