//! Prometheus's protocol buffers: delimited `io.prometheus.client.MetricFamily`.
//!
//! # References
//!
//! <https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto>

use dormouse_sys::protobuf::Message;

use crate::exposition::{ExposedProcess, Exposition, FamilyPoints, MetricPoint, MetricValue};
use crate::family::MetricKind;
use crate::histogram::{ExponentialHistogram, MetricExemplar, hexadecimal};

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

/// Of histograms without a zero bucket: 2^-128, as Prometheus's own libraries have it.
const LEAST_THRESHOLD: f64 = 1.0 / (u128::MAX as f64);

/// Gaps of so many empty buckets are written as such: that is shorter than another span.
const GAP: i32 = 2;

pub(crate) fn encode(of: &Exposition) -> Vec<u8> {
    let sets: Vec<Message> = of.labels.iter().map(|set| labels(set)).collect();
    let processes: Vec<(Message, Message)> = of
        .processes
        .iter()
        .map(|process| (own_labels(of, process), timestamp_of(process.start_unix_ns)))
        .collect();
    let mut out = Message::default();
    for of in &of.families {
        out.delimit(|message| family_of(message, of, &sets, &processes));
    }
    out.into_bytes()
}

fn family_of(
    message: &mut Message,
    FamilyPoints { family: of, points }: &FamilyPoints,
    sets: &[Message],
    processes: &[(Message, Message)],
) {
    message.bytes(family::NAME, of.prometheus_name().as_bytes());
    message.bytes(family::HELP, of.help.as_bytes());
    let kind = match of.kind {
        MetricKind::Counter => family::COUNTER,
        MetricKind::Gauge | MetricKind::Info => family::GAUGE,
        MetricKind::Histogram(_) => family::HISTOGRAM,
    };
    message.always(family::TYPE, kind);
    for point in points {
        let Some((own, created)) = processes.get(point.process as usize) else { continue };
        message.nest(family::METRIC, |metric| {
            metric.append(own);
            for set in point.labels.iter().filter_map(|set| sets.get(set.0 as usize)) {
                metric.append(set);
            }
            value(metric, of.kind, point, created);
        });
    }
    if let Some(unit) = of.unit.word() {
        message.bytes(family::UNIT, unit.as_bytes());
    }
}

fn pair(name: &str, value: &str) -> Message {
    let mut pair = Message::default();
    pair.bytes(label::NAME, name.as_bytes());
    pair.bytes(label::VALUE, value.as_bytes());
    pair
}

fn labels(set: &[(&'static str, String)]) -> Message {
    let mut labels = Message::default();
    for (name, value) in set {
        labels.message(metric::LABEL, &pair(name, value));
    }
    labels
}

fn own_labels(of: &Exposition, process: &ExposedProcess) -> Message {
    let own = [("process", process.name.clone()), ("pid", process.pid.to_string())];
    if of.is_of_several { labels(&own) } else { Message::default() }
}

fn timestamp_of(unix_ns: u64) -> Message {
    let mut of = Message::default();
    of.number(timestamp::SECONDS, unix_ns / 1_000_000_000);
    of.number(timestamp::NANOS, unix_ns % 1_000_000_000);
    of
}

fn value(metric: &mut Message, kind: MetricKind, point: &MetricPoint, created: &Message) {
    let number = match &point.value {
        MetricValue::Histogram(of) => {
            let powers = if let MetricKind::Histogram(powers) = kind { powers } else { &[] };
            return metric.nest(metric::HISTOGRAM, |message| histogram_of(message, of, powers, created));
        }
        MetricValue::Count(n) => *n as f64,
        MetricValue::Nanoseconds(ns) => *ns as f64 / 1e9,
        MetricValue::Number(number) => *number,
    };
    let field = if kind == MetricKind::Counter { metric::COUNTER } else { metric::GAUGE };
    metric.nest(field, |of| {
        of.fixed(number::VALUE, number.to_bits());
        if kind == MetricKind::Counter {
            of.message(number::CREATED, created);
        }
    });
}

/// A native histogram, and in it a classic one, if the family has bounds for it: a scraper that
/// does not know the native one takes that.
fn histogram_of(message: &mut Message, of: &ExponentialHistogram, powers: &[i32], created: &Message) {
    message.always(histogram::COUNT, of.count());
    message.fixed(histogram::SUM, of.sum.unwrap_or_default().to_bits());
    let mut above = f64::NEG_INFINITY;
    for &power in powers {
        let end = f64::from(power).exp2();
        message.nest(histogram::BUCKET, |bucket| {
            bucket.always(histogram::BUCKET_COUNT, of.up_to_power(power));
            bucket.fixed(histogram::BUCKET_END, end.to_bits());
            if let Some(one) = of.exemplar(above, end) {
                bucket.nest(histogram::BUCKET_EXEMPLAR, |message| exemplar_of(message, one));
            }
        });
        above = end;
    }
    message.always(histogram::SCHEMA, Message::zigzag(i64::from(of.scale)));
    // Old Prometheus (2.42) takes a family for one of classic histograms if this is 0 in its first.
    message.fixed(histogram::ZERO_THRESHOLD, of.zero_threshold.max(LEAST_THRESHOLD).to_bits());
    message.always(histogram::ZERO_COUNT, of.zero_count);
    let (spans, deltas) = spans(&of.positive);
    for &(offset, length) in &spans {
        message.nest(histogram::SPAN, |span| {
            span.number(histogram::SPAN_OFFSET, Message::zigzag(i64::from(offset)));
            span.number(histogram::SPAN_LENGTH, u64::from(length));
        });
    }
    if spans.is_empty() {
        // Without a span an empty histogram would be taken for a classic one.
        message.message(histogram::SPAN, &Message::default());
    } else {
        message.packed(histogram::DELTA, &deltas);
    }
    message.message(histogram::CREATED, created);
    // Prometheus takes those that have a time.
    for one in of.exemplars.iter().filter(|one| one.unix_ns.is_some()) {
        message.nest(histogram::EXEMPLAR, |message| exemplar_of(message, one));
    }
}

/// The spans of buckets that follow each other: each with its distance from the end of the one
/// before, the first from index 0, and its length. With the counts as differences from the bucket
/// before.
fn spans(positive: &[(i32, u64)]) -> (Vec<(i32, u32)>, Vec<u64>) {
    let (mut spans, mut deltas): (Vec<(i32, u32)>, _) = (Vec::new(), Vec::new());
    // Indices are greater by one than OpenTelemetry's.
    let (mut next, mut before) = (0_i32, 0_u64);
    for &(index, n) in positive {
        let index = index + 1;
        let gap = index - next;
        match spans.last_mut() {
            Some((_, length)) if gap <= GAP => {
                *length += gap.cast_unsigned() + 1;
                for _ in 0..gap {
                    deltas.push(Message::zigzag(0_u64.wrapping_sub(before).cast_signed()));
                    before = 0;
                }
            }
            _ => spans.push((gap, 1)),
        }
        deltas.push(Message::zigzag(n.wrapping_sub(before).cast_signed()));
        (next, before) = (index + 1, n);
    }
    (spans, deltas)
}

fn exemplar_of(message: &mut Message, of: &MetricExemplar) {
    if let Some((trace, span)) = of.trace {
        message.message(exemplar::LABEL, &pair("trace_id", &hexadecimal(&trace)));
        message.message(exemplar::LABEL, &pair("span_id", &hexadecimal(&span)));
    }
    if of.task != 0 {
        message.message(exemplar::LABEL, &pair("task", &of.task.to_string()));
    }
    message.fixed(exemplar::VALUE, of.value.to_bits());
    if let Some(unix_ns) = of.unix_ns {
        message.message(exemplar::TIMESTAMP, &timestamp_of(unix_ns));
    }
}
