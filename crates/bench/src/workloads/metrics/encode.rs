//! `read/…`: the metrics of this process, with a thousand groups. `encode/…`: a thousand groups
//! with times, in each format.
//!
//! The groups to encode are made up, so that each histogram has forty buckets: ten powers of two.

use std::hint::black_box;

use dormouse::metrics::{Exposition, Metrics, MetricsFormat, MetricsSpec, Origin, add};
use dormouse::wire::{GroupRow, HistogramRow, Stat, WaitsRow};
use dormouse::{Event, Group};

use crate::bench::Bench;
use crate::clocks::wall;
use crate::row::Spec;
use crate::runner::Failure;

const GROUPS: u32 = 1000;

const FORMATS: [(&str, Option<MetricsFormat>); 4] = [
    ("text", Some(MetricsFormat::Text)),
    ("openmetrics", Some(MetricsFormat::OpenMetrics)),
    ("protobuf", Some(MetricsFormat::Protobuf)),
    ("otlp", None),
];

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    let with = |spec: Spec| spec.with("groups", u64::from(GROUPS));
    bench.sample([with(Spec::new("read/groups", "ms"))], read);
    let specs = FORMATS.map(|(name, _)| {
        let row = format!("encode/{name}");
        [with(Spec::new(&row, "ms")), with(Spec::new(format!("{row}/length"), "KiB"))]
    });
    let add = with(Spec::new("encode/points", "ms"));
    bench.sample([vec![add], specs.concat()].concat(), || Ok(encode()));
}

pub(super) fn compare(bench: &mut Bench) {
    bench.at_most("to read 1,000 groups takes at most 5 ms", "read/groups", 5.0);
    for (name, _) in FORMATS {
        bench.at_most("to encode 1,000 groups takes at most 5 ms", &format!("encode/{name}"), 5.0);
    }
}

/// The groups of this process, which have never run.
fn read() -> Result<[f64; 1], Failure> {
    for n in 0..GROUPS {
        Group::new(&format!("GET /orders/{n}"));
    }
    let metrics = Metrics::start(&MetricsSpec::new().waits().events(&[Event::PAGE_FAULTS]))
        .map_err(|why| Failure::from(why.to_string()))?;
    let (took, read) = wall(|| metrics.exposition());
    black_box(read);
    Ok([took.as_secs_f64() * 1e3])
}

/// The time to make points of a reading; then for each format its time and its length.
fn encode() -> Vec<f64> {
    let (origin, stat) = (Origin::own(), stat());
    let (took, exposition) = wall(|| {
        let mut exposition = Exposition::new();
        add(&mut exposition, &origin, &stat);
        exposition
    });
    let mut values = vec![took.as_secs_f64() * 1e3];
    for (_, format) in FORMATS {
        let (took, bytes) = wall(|| match format {
            Some(format) => exposition.encode(format),
            None => exposition.otlp(&[]),
        });
        values.extend([took.as_secs_f64() * 1e3, bytes.len() as f64 / 1024.0]);
    }
    values
}

fn stat() -> Stat {
    Stat {
        mono_ns: 1,
        took_ns: 1,
        process_cpu_ns: 1,
        unattributed_cpu_ns: 0,
        groups: (0..GROUPS).map(group).collect(),
        threads: Vec::new(),
        runnable_ns: None,
        counted: None,
        keys_on: 0,
        dropped: 0,
        clock: None,
    }
}

fn group(id: u32) -> GroupRow {
    let row = || HistogramRow {
        scale: 2,
        unit_ns: 1_000_000_000,
        zero_threshold_ns: 59,
        zero_count: 3,
        positive: (-60..-20_i32).map(|at| (at, 1_000 + u64::from((at * at).unsigned_abs()))).collect(),
        sum_ns: Some(123_456_789_012),
        ..HistogramRow::default()
    };
    let waits = WaitsRow {
        on_cpu_ns: None,
        poll_ns: 123_456_789_012,
        runnable_ns: 23_456_789_012,
        await_ns: 3_456_789_012,
        polls: row(),
        delays: row(),
        awaits: row(),
        requests: row(),
    };
    GroupRow {
        id,
        name: format!("GET /orders/{id}"),
        cpu_ns: u64::from(id) * 1_234_567_891,
        entries: 0,
        alive: 3,
        started: 123_456,
        finished: 123_453,
        requests: 120_000,
        polls: 987_654,
        counts: Vec::new(),
        waits: Some(waits),
    }
}
