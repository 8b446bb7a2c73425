//! `read/…`: the metrics of this process, with a thousand groups that have had requests.
//! `encode/…`: a thousand groups with times, in each format.
//!
//! The groups to encode are synthetic: each histogram has forty buckets, that is ten powers of two,
//! each with an exemplar.

use std::hint::black_box;

use dormouse::Event;
use dormouse::metrics::{Exposition, Metrics, MetricsFormat, MetricsSpec, Origin, add};
use dormouse_protocol::{
    ExemplarRow, GroupRow, HistogramRow, OutcomesRow, QueueRow, Stat, StreamsRow, UnansweredRow, WaitsRow,
    WireId,
};

use super::served::{ROUTE, have_requests};
use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

const GROUPS: u32 = 1000;

const FORMATS: [(&str, Option<MetricsFormat>); 4] = [
    ("text", Some(MetricsFormat::Text)),
    ("openmetrics", Some(MetricsFormat::OpenMetrics)),
    ("protobuf", Some(MetricsFormat::Protobuf)),
    ("otlp", None),
];

/// The powers of two that have buckets.
const POWERS: std::ops::Range<i32> = -15..-5;

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    let with = |spec: Spec| spec.with("groups", u64::from(GROUPS));
    let time = |name: &str| with(Spec::new(name, "ms").cpu());
    let specs = ["read/groups", "read/answer"].map(time);
    let mut metrics = None;
    bench.sample(specs, move || {
        let metrics = match &mut metrics {
            Some(metrics) => metrics,
            none @ None => none.insert(begin()?),
        };
        let (read, _) = cpu(|| black_box(metrics.exposition()));
        let open = MetricsFormat::OpenMetrics.content_type();
        let (answered, _) = cpu(|| black_box(metrics.answer(Some(open))));
        Ok([read, answered].map(|took| took.as_secs_f64() * 1e3))
    });
    let specs = FORMATS.map(|(name, _)| {
        let row = format!("encode/{name}");
        [time(&row), with(Spec::new(format!("{row}/length"), "KiB"))]
    });
    bench.sample([vec![time("encode/points")], specs.concat()].concat(), || Ok(encode()));
}

pub(super) fn compare(bench: &mut Bench) {
    bench.at_most("to read 1,000 groups takes at most 5 ms", "read/groups", 5.0);
    bench.at_most("a service's own scrape of 1,000 groups takes at most 5 ms", "read/answer", 5.0);
    for (name, _) in FORMATS {
        bench.at_most("to encode 1,000 groups takes at most 5 ms", &format!("encode/{name}"), 5.0);
    }
}

/// Has the groups of this process counted, and has them busy.
fn begin() -> Result<Metrics, Failure> {
    let spec = MetricsSpec::new().waits().events(&[Event::PAGE_FAULTS]);
    let metrics = Metrics::start(&spec).map_err(|why| Failure::from(why.to_string()))?;
    have_requests(GROUPS as usize)?;
    Ok(metrics)
}

/// The time to make points of a reading; then for each format its time and its length.
fn encode() -> Vec<f64> {
    let (origin, stat) = (Origin::own(), stat());
    let (took, exposition) = cpu(|| {
        let mut exposition = Exposition::new();
        add(&mut exposition, &origin, &stat);
        exposition
    });
    let mut values = vec![took.as_secs_f64() * 1e3];
    for (_, format) in FORMATS {
        let (took, bytes) = cpu(|| match format {
            Some(format) => exposition.encode(format),
            None => exposition.otlp(&[]),
        });
        values.extend([took.as_secs_f64() * 1e3, bytes.len() as f64 / 1024.0]);
    }
    values
}

fn stat() -> Stat {
    Stat { mono_ns: 1, process_cpu_ns: 1, groups: (0..GROUPS).map(group).collect(), ..Stat::default() }
}

fn group(id: u32) -> GroupRow {
    let row = || HistogramRow {
        scale: 2,
        unit_ns: 1_000_000_000,
        zero_threshold_ns: 59,
        zero_count: 3,
        buckets: (4 * POWERS.start..4 * POWERS.end)
            .map(|at| (at, 1_000 + u64::from((at * at).unsigned_abs())))
            .collect(),
        sum_ns: Some(123_456_789_012),
        ..HistogramRow::default()
    };
    let waits = WaitsRow {
        on_cpu_ns: None,
        poll_ns: 123_456_789_012,
        runnable_ns: 23_456_789_012,
        await_ns: 3_456_789_012,
        queue: Some(QueueRow { requests: 1, received: 1, unseen_ns: 1_456_789_012, behind_ns: 456_789_012 }),
        polls: row(),
        delays: row(),
        awaits: row(),
        requests: HistogramRow { exemplars: POWERS.map(exemplar).collect(), ..row() },
        bodies: row(),
        gaps: row(),
        // Few groups have sockets.
        received_gaps: HistogramRow::default(),
        streams: Some(StreamsRow::default()),
        carried: None,
        messages: None,
        stalls: None,
        unanswered: Some(UnansweredRow::default()),
    };
    GroupRow {
        id,
        name: format!("{ROUTE}{id}").into(),
        cpu_ns: u64::from(id) * 1_234_567_891,
        entries: 0,
        alive: 3,
        started: 123_456,
        finished: 123_453,
        requests: 120_000,
        outcomes: Some(OutcomesRow { completed: 120_000, ..OutcomesRow::default() }),
        polls: 987_654,
        counts: Vec::new(),
        waits: Some(Box::new(waits)),
        objectives: Vec::new(),
        blocking: None,
        outliving: None,
        long_lived: None,
    }
}

/// One in the middle of its power of two.
fn exemplar(power: i32) -> ExemplarRow {
    ExemplarRow {
        index: 4 * power + 1,
        task: 123_457,
        duration_ns: (1.3e9 * f64::from(power).exp2()) as u64,
        unix_ns: 1_700_000_000_123_456_789,
        outcome: Some("completed".into()),
        trace_id: Some(WireId([0x4b; 16])),
        span_id: Some(WireId([0xf0; 8])),
    }
}
