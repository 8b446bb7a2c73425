//! OpenTelemetry's `ExportMetricsServiceRequest`: a resource for each process.
//!
//! # References
//!
//! <https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/metrics/v1/metrics.proto>

use dormouse_sys::protobuf::Message;

use crate::exposition::{ExposedProcess, Exposition, FamilyPoints, MetricPoint, MetricValue};
use crate::family::MetricKind;
use crate::histogram::{ExponentialHistogram, MetricExemplar};

/// The scope that the metrics are of.
const SCOPE: &str = "dormouse";

mod request {
    pub(super) const RESOURCE_METRICS: u32 = 1;
    pub(super) const RESOURCE: u32 = 1;
    pub(super) const SCOPE_METRICS: u32 = 2;
    pub(super) const RESOURCE_ATTRIBUTE: u32 = 1;
    pub(super) const SCOPE: u32 = 1;
    pub(super) const METRIC: u32 = 2;
    pub(super) const SCOPE_NAME: u32 = 1;
    pub(super) const SCOPE_VERSION: u32 = 2;
}

mod attribute {
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE: u32 = 2;
    pub(super) const TEXT: u32 = 1;
    pub(super) const INT: u32 = 3;
}

mod metric {
    pub(super) const NAME: u32 = 1;
    pub(super) const HELP: u32 = 2;
    pub(super) const UNIT: u32 = 3;
    pub(super) const GAUGE: u32 = 5;
    pub(super) const SUM: u32 = 7;
    pub(super) const EXPONENTIAL: u32 = 10;
    /// Of gauge, sum and histogram.
    pub(super) const POINT: u32 = 1;
    pub(super) const TEMPORALITY: u32 = 2;
    pub(super) const MONOTONIC: u32 = 3;
    pub(super) const CUMULATIVE: u64 = 2;
}

mod number {
    pub(super) const START: u32 = 2;
    pub(super) const TIME: u32 = 3;
    pub(super) const DOUBLE: u32 = 4;
    pub(super) const INT: u32 = 6;
    pub(super) const ATTRIBUTE: u32 = 7;
}

mod histogram {
    pub(super) const ATTRIBUTE: u32 = 1;
    pub(super) const START: u32 = 2;
    pub(super) const TIME: u32 = 3;
    pub(super) const COUNT: u32 = 4;
    pub(super) const SUM: u32 = 5;
    pub(super) const SCALE: u32 = 6;
    pub(super) const ZERO_COUNT: u32 = 7;
    pub(super) const POSITIVE: u32 = 8;
    pub(super) const EXEMPLAR: u32 = 11;
    pub(super) const ZERO_THRESHOLD: u32 = 14;
    pub(super) const OFFSET: u32 = 1;
    pub(super) const COUNTS: u32 = 2;
}

mod exemplar {
    pub(super) const TIME: u32 = 2;
    pub(super) const DOUBLE: u32 = 3;
    pub(super) const SPAN: u32 = 4;
    pub(super) const TRACE: u32 = 5;
    pub(super) const ATTRIBUTE: u32 = 7;
}

/// Buckets between the first and the last one that are filled: more are too many for a message, and
/// not from a histogram of ours.
const MOST_BUCKETS: i32 = 4096;

pub(crate) fn encode(of: &Exposition, attributes: &[(String, String)]) -> Vec<u8> {
    let sets: Vec<Vec<Message>> = of
        .labels
        .iter()
        .map(|set| set.iter().map(|(name, value)| text_attribute(name, value)).collect())
        .collect();
    let mut request = Message::default();
    for (process, number) in of.processes.iter().zip(0..) {
        let mut metrics = scope(process);
        for FamilyPoints { family, points } in &of.families {
            // They were added process by process.
            let end = |number| points.partition_point(|point| point.process < number);
            let own = &points[end(number)..end(number + 1)];
            if own.is_empty() {
                continue;
            }
            let mut data = Message::default();
            for point in own {
                data.nest(metric::POINT, |message| data_point(message, process, &sets, point));
            }
            let mut message = Message::default();
            message.bytes(metric::NAME, family.name.as_bytes());
            message.bytes(metric::HELP, family.help.as_bytes());
            message.bytes(metric::UNIT, family.unit.code().as_bytes());
            let field = match family.kind {
                MetricKind::Counter => metric::SUM,
                MetricKind::Gauge | MetricKind::Info => metric::GAUGE,
                MetricKind::Histogram(_) => metric::EXPONENTIAL,
            };
            if field != metric::GAUGE {
                data.number(metric::TEMPORALITY, metric::CUMULATIVE);
            }
            if field == metric::SUM {
                data.number(metric::MONOTONIC, 1);
            }
            message.message(field, &data);
            metrics.message(request::METRIC, &message);
        }
        let mut all = Message::default();
        all.message(request::RESOURCE, &resource(process, attributes));
        all.message(request::SCOPE_METRICS, &metrics);
        request.message(request::RESOURCE_METRICS, &all);
    }
    request.into_bytes()
}

fn text_attribute(key: &str, value: &str) -> Message {
    let [mut attribute, mut any] = [Message::default(), Message::default()];
    attribute.bytes(attribute::KEY, key.as_bytes());
    any.bytes(attribute::TEXT, value.as_bytes());
    attribute.message(attribute::VALUE, &any);
    attribute
}

fn int_attribute(key: &str, value: u64) -> Message {
    let [mut attribute, mut any] = [Message::default(), Message::default()];
    attribute.bytes(attribute::KEY, key.as_bytes());
    any.always(attribute::INT, value);
    attribute.message(attribute::VALUE, &any);
    attribute
}

fn resource(process: &ExposedProcess, attributes: &[(String, String)]) -> Message {
    let mut resource = Message::default();
    let is_given = |key: &str| attributes.iter().any(|(given, _)| given == key);
    let own = [
        ("service.name", text_attribute("service.name", &process.name)),
        ("service.instance.id", text_attribute("service.instance.id", &process.instance)),
        ("process.pid", int_attribute("process.pid", u64::from(process.pid))),
    ];
    own.iter()
        .filter(|(key, _)| !is_given(key))
        .for_each(|(_, attribute)| resource.message(request::RESOURCE_ATTRIBUTE, attribute));
    for (key, value) in attributes {
        resource.message(request::RESOURCE_ATTRIBUTE, &text_attribute(key, value));
    }
    resource
}

fn scope(process: &ExposedProcess) -> Message {
    let [mut metrics, mut scope] = [Message::default(), Message::default()];
    scope.bytes(request::SCOPE_NAME, SCOPE.as_bytes());
    scope.bytes(request::SCOPE_VERSION, process.version.as_bytes());
    metrics.message(request::SCOPE, &scope);
    metrics
}

fn data_point(message: &mut Message, process: &ExposedProcess, sets: &[Vec<Message>], point: &MetricPoint) {
    let (attribute, start, time) = match point.value {
        MetricValue::Histogram(_) => (histogram::ATTRIBUTE, histogram::START, histogram::TIME),
        _ => (number::ATTRIBUTE, number::START, number::TIME),
    };
    let labels = point.labels.iter().filter_map(|set| sets.get(set.0 as usize)).flatten();
    labels.for_each(|label| message.message(attribute, label));
    message.fixed(start, process.start_unix_ns);
    message.fixed(time, process.read_unix_ns);
    match &point.value {
        MetricValue::Count(n) => message.fixed(number::INT, *n),
        MetricValue::Nanoseconds(ns) => message.fixed(number::DOUBLE, (*ns as f64 / 1e9).to_bits()),
        MetricValue::Number(number) => message.fixed(number::DOUBLE, number.to_bits()),
        MetricValue::Histogram(of) => distribution(message, of),
    }
}

fn distribution(message: &mut Message, of: &ExponentialHistogram) {
    message.fixed(histogram::COUNT, of.count());
    if let Some(sum) = of.sum {
        message.fixed(histogram::SUM, sum.to_bits());
    }
    message.number(histogram::SCALE, Message::zigzag(i64::from(of.scale)));
    message.fixed(histogram::ZERO_COUNT, of.zero_count);
    if let (Some((first, _)), Some((last, _))) = (of.positive.first(), of.positive.last())
        && last - first < MOST_BUCKETS
    {
        let mut counts = vec![0; (last - first) as usize + 1];
        for (index, n) in &of.positive {
            if let Some(count) = counts.get_mut((index - first) as usize) {
                *count = *n;
            }
        }
        message.nest(histogram::POSITIVE, |buckets| {
            buckets.number(histogram::OFFSET, Message::zigzag(i64::from(*first)));
            buckets.packed(histogram::COUNTS, &counts);
        });
    }
    // An exemplar without a time would be one of 1970.
    for one in &of.exemplars {
        if let Some(unix_ns) = one.unix_ns {
            message.message(histogram::EXEMPLAR, &exemplar_of(one, unix_ns));
        }
    }
    message.fixed(histogram::ZERO_THRESHOLD, of.zero_threshold.to_bits());
}

fn exemplar_of(of: &MetricExemplar, unix_ns: u64) -> Message {
    let mut message = Message::default();
    message.fixed(exemplar::TIME, unix_ns);
    message.fixed(exemplar::DOUBLE, of.value.to_bits());
    if let Some((trace, span)) = of.trace {
        message.bytes(exemplar::SPAN, &span);
        message.bytes(exemplar::TRACE, &trace);
    }
    if of.task != 0 {
        message.message(exemplar::ATTRIBUTE, &int_attribute("task", of.task));
    }
    message
}
