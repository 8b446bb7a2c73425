//! Prometheus's protocol buffers: delimited `io.prometheus.client.MetricFamily`.
//!
//! # References
//!
//! <https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto>

use std::mem;

use dormouse_encode::hex::IdDigits;
use dormouse_encode::protobuf::Message;

use crate::bounds::ScaledBounds;
use crate::exposition::{ExposedProcess, Exposition, FamilyPoints, MetricPoint};
use crate::family::MetricKind;
use crate::histogram::{ClassicBucket, ExponentialHistogram, MetricExemplar, counts};
use crate::value::MetricValue;

mod family {
    pub(super) const NAME: u32 = 1;
    pub(super) const HELP: u32 = 2;
    pub(super) const TYPE: u32 = 3;
    pub(super) const METRIC: u32 = 4;
    pub(super) const UNIT: u32 = 5;
    pub(super) const COUNTER: u64 = 0;
    pub(super) const GAUGE: u64 = 1;
    pub(super) const HISTOGRAM: u64 = 4;
}

mod metric {
    pub(super) const LABEL: u32 = 1;
    pub(super) const GAUGE: u32 = 2;
    pub(super) const COUNTER: u32 = 3;
    pub(super) const HISTOGRAM: u32 = 7;
}

mod label {
    pub(super) const NAME: u32 = 1;
    pub(super) const VALUE: u32 = 2;
}

mod number {
    pub(super) const VALUE: u32 = 1;
    pub(super) const CREATED: u32 = 3;
}

mod histogram {
    pub(super) const COUNT: u32 = 1;
    pub(super) const SUM: u32 = 2;
    pub(super) const BUCKET: u32 = 3;
    pub(super) const SCHEMA: u32 = 5;
    pub(super) const ZERO_THRESHOLD: u32 = 6;
    pub(super) const ZERO_COUNT: u32 = 7;
    pub(super) const SPAN: u32 = 12;
    pub(super) const DELTA: u32 = 13;
    pub(super) const CREATED: u32 = 15;
    pub(super) const EXEMPLAR: u32 = 16;
    pub(super) const SPAN_OFFSET: u32 = 1;
    pub(super) const SPAN_LENGTH: u32 = 2;
    pub(super) const BUCKET_COUNT: u32 = 1;
    pub(super) const BUCKET_END: u32 = 2;
    pub(super) const BUCKET_EXEMPLAR: u32 = 3;
}

mod exemplar {
    pub(super) const LABEL: u32 = 1;
    pub(super) const VALUE: u32 = 2;
    pub(super) const TIMESTAMP: u32 = 3;
}

mod timestamp {
    pub(super) const SECONDS: u32 = 1;
    pub(super) const NANOS: u32 = 2;
}

/// The zero threshold of histograms without a zero bucket: 2^-128, as in Prometheus's own
/// libraries.
const LEAST_THRESHOLD: f64 = 1.0 / (u128::MAX as f64);

/// Gaps of up to this many empty buckets are written as empty buckets, which is shorter than
/// another span.
const GAP: i32 = 2;

pub(crate) fn encode(exposition: &Exposition) -> Vec<u8> {
    let own =
        |process: &ExposedProcess| (own_labels(exposition, process), timestamp_of(process.start_unix_ns));
    let common = Common {
        sets: exposition.labels.sets().map(labels).collect(),
        processes: exposition.processes.iter().map(own).collect(),
    };
    let mut out = Message::default();
    for of in &exposition.families {
        let mut bounds = exposition.bounds_of(of.family).map(ScaledBounds::of);
        out.delimit(|message| family_of(message, of, bounds.as_mut(), &common));
    }
    out.into_bytes()
}

/// The things that all points of an exposition have in common.
struct Common {
    /// The labels of each set.
    sets: Vec<Message>,
    /// The labels of each process, and the time when it began.
    processes: Vec<(Message, Message)>,
}

fn family_of(
    message: &mut Message,
    FamilyPoints { family: of, values, histograms }: &FamilyPoints,
    mut bounds: Option<&mut ScaledBounds>,
    common: &Common,
) {
    message.bytes(family::NAME, of.prometheus_name().as_bytes());
    message.bytes(family::HELP, of.help.as_bytes());
    let kind = match of.kind {
        MetricKind::Counter | MetricKind::OlderCounter => family::COUNTER,
        MetricKind::Gauge | MetricKind::Info => family::GAUGE,
        MetricKind::Histogram(_) => family::HISTOGRAM,
    };
    message.always(family::TYPE, kind);
    match of.kind {
        MetricKind::Histogram(_) => {
            for point in histograms {
                point_of(message, point, common, |metric, created| {
                    metric.nest(metric::HISTOGRAM, |message| {
                        let ends = bounds.as_mut().map(|bounds| bounds.at_scale(point.value.scale));
                        histogram_of(message, &point.value, ends, created);
                    });
                });
            }
        }
        kind @ (MetricKind::Counter | MetricKind::OlderCounter) => {
            for point in values {
                point_of(message, point, common, |metric, created| {
                    metric.nest(metric::COUNTER, |of| {
                        of.fixed(number::VALUE, point.value.as_f64().to_bits());
                        if kind == MetricKind::Counter {
                            of.message(number::CREATED, created);
                        }
                    });
                });
            }
        }
        MetricKind::Gauge | MetricKind::Info => {
            for point in values {
                point_of(message, point, common, |metric, _| {
                    metric.nest(metric::GAUGE, |of| of.fixed(number::VALUE, point.value.as_f64().to_bits()));
                });
            }
        }
    }
    if let Some(unit) = of.unit.word() {
        message.bytes(family::UNIT, unit.as_bytes());
    }
}

/// A point, with the value that `value` writes, given the time when the process began.
fn point_of<Value>(
    message: &mut Message,
    point: &MetricPoint<Value>,
    common: &Common,
    value: impl FnOnce(&mut Message, &Message),
) {
    let Some((own, created)) = common.processes.get(point.process as usize) else { return };
    message.nest(family::METRIC, |metric| {
        metric.append(own);
        for set in point.labels.iter().filter_map(|set| common.sets.get(set.index())) {
            metric.append(set);
        }
        value(metric, created);
    });
}

/// A label of a metric or of an exemplar.
fn pair(message: &mut Message, field: u32, name: &str, value: &[u8]) {
    message.nest(field, |pair| {
        pair.bytes(label::NAME, name.as_bytes());
        pair.bytes(label::VALUE, value);
    });
}

fn labels<'a>(set: impl Iterator<Item = (&'static str, &'a str)>) -> Message {
    let mut labels = Message::default();
    for (name, value) in set {
        pair(&mut labels, metric::LABEL, name, value.as_bytes());
    }
    labels
}

fn own_labels(of: &Exposition, process: &ExposedProcess) -> Message {
    let mut labels = Message::default();
    for (name, value) in process.labels().filter(|_| of.is_of_several) {
        pair(&mut labels, metric::LABEL, name, value.as_bytes());
    }
    labels
}

fn timestamp_of(unix_ns: u64) -> Message {
    let mut of = Message::default();
    of.number(timestamp::SECONDS, unix_ns / 1_000_000_000);
    of.number(timestamp::NANOS, unix_ns % 1_000_000_000);
    of
}

/// A native histogram (a valid one: an exposition has no other), and in it a classic one, if the
/// family has ends for it, for scrapers that do not support native ones.
fn histogram_of(
    message: &mut Message,
    of: &ExponentialHistogram,
    ends: Option<&[(f64, i32)]>,
    created: &Message,
) {
    message.always(histogram::COUNT, of.count());
    message.fixed(histogram::SUM, of.sum.map_or(0.0, MetricValue::as_f64).to_bits());
    for ClassicBucket { end, count, exemplar } in ends.into_iter().flat_map(|ends| of.classic(ends)) {
        message.nest(histogram::BUCKET, |bucket| {
            bucket.always(histogram::BUCKET_COUNT, count);
            bucket.fixed(histogram::BUCKET_END, end.to_bits());
            if let Some(one) = exemplar {
                bucket.nest(histogram::BUCKET_EXEMPLAR, |message| exemplar_of(message, one));
            }
        });
    }
    message.always(histogram::SCHEMA, Message::zigzag(i64::from(of.scale)));
    // Old Prometheus (2.42) takes a family for one of classic histograms if this is 0 in its first.
    message.fixed(histogram::ZERO_THRESHOLD, of.zero_threshold.max(LEAST_THRESHOLD).to_bits());
    message.always(histogram::ZERO_COUNT, of.zero_count);
    // Buckets that follow each other are a span. Indices are greater by one than OpenTelemetry's.
    let spans = || of.positive.chunk_by(|(one, _), (next, _)| next - one <= GAP + 1);
    let mut end = 0;
    for span in spans() {
        let ends = [span.first(), span.last()].map(|bucket| bucket.map_or(0, |(index, _)| index + 1));
        message.nest(histogram::SPAN, |message| {
            message.number(histogram::SPAN_OFFSET, Message::zigzag(i64::from(ends[0] - end)));
            message.number(histogram::SPAN_LENGTH, (ends[1] - ends[0] + 1) as u64);
        });
        end = ends[1] + 1;
    }
    if of.positive.is_empty() {
        // Without a span an empty histogram would be taken for a classic one.
        message.message(histogram::SPAN, &Message::default());
    } else {
        let mut before = 0;
        let delta = |n: u64| n.cast_signed() - mem::replace(&mut before, n).cast_signed();
        let deltas = spans().flat_map(counts).map(delta);
        message.packed(histogram::DELTA, deltas.map(Message::zigzag));
    }
    message.message(histogram::CREATED, created);
    // Of a classic histogram's exemplars Prometheus takes those with a time for the native one.
    if ends.is_none() {
        for one in of.exemplars.iter().filter(|one| one.unix_ns.is_some()) {
            message.nest(histogram::EXEMPLAR, |message| exemplar_of(message, one));
        }
    }
}

fn exemplar_of(message: &mut Message, of: &MetricExemplar) {
    if let Some((trace, span)) = of.trace {
        pair(message, exemplar::LABEL, "trace_id", IdDigits::of(trace).as_bytes());
        pair(message, exemplar::LABEL, "span_id", IdDigits::of(span).as_bytes());
    }
    if of.task != 0 {
        pair(message, exemplar::LABEL, "task", of.task.to_string().as_bytes());
    }
    if let Some(outcome) = of.outcome_label() {
        pair(message, exemplar::LABEL, "outcome", outcome.as_bytes());
    }
    message.fixed(exemplar::VALUE, of.value.as_f64().to_bits());
    if let Some(unix_ns) = of.unix_ns {
        message.message(exemplar::TIMESTAMP, &timestamp_of(unix_ns));
    }
}
