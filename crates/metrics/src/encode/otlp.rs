//! OpenTelemetry's `ExportMetricsServiceRequest`: a resource for each process.
//!
//! # References
//!
//! <https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/metrics/v1/metrics.proto>

use dormouse_encode::protobuf::Message;

use crate::exposition::{ExposedProcess, Exposition, MetricPoint};
use crate::family::{MetricFamily, MetricKind};
use crate::histogram::{ExponentialHistogram, MetricExemplar, counts};
use crate::labels::LabelSet;
use crate::value::MetricValue;

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
    /// The field of the points in a gauge, sum or histogram.
    pub(super) const POINT: u32 = 1;
    pub(super) const TEMPORALITY: u32 = 2;
    pub(super) const MONOTONIC: u32 = 3;
    pub(super) const DELTA: u64 = 1;
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
    let attribute = |(name, value): (&str, &str)| text_attribute(name, value);
    let sets: Vec<Vec<Message>> = of.labels.sets().map(|set| set.map(attribute).collect()).collect();
    let temporality = if of.is_of_differences { metric::DELTA } else { metric::CUMULATIVE };
    let mut request = Message::default();
    for (process, number) in of.processes.iter().zip(0..) {
        request.nest(request::RESOURCE_METRICS, |all| {
            all.nest(request::RESOURCE, |of| resource(of, process, attributes));
            all.nest(request::SCOPE_METRICS, |metrics| {
                metrics.nest(request::SCOPE, |scope| {
                    scope.bytes(request::SCOPE_NAME, SCOPE.as_bytes());
                    scope.bytes(request::SCOPE_VERSION, process.version.as_bytes());
                });
                for of in &of.families {
                    let (values, histograms) = (own(&of.values, number), own(&of.histograms, number));
                    if !values.is_empty() || !histograms.is_empty() {
                        metrics.nest(request::METRIC, |metric| {
                            // A difference has an interval, whatever it is of.
                            let has_start =
                                of.family.kind != MetricKind::OlderCounter || temporality == metric::DELTA;
                            let common = Common { process, sets: &sets, temporality, has_start };
                            metric_of(metric, of.family, &common, values, histograms);
                        });
                    }
                }
            });
        });
    }
    request.into_bytes()
}

/// The things that all points of a process have in common.
struct Common<'a> {
    process: &'a ExposedProcess,
    /// The attributes of each set of labels.
    sets: &'a [Vec<Message>],
    temporality: u64,
    /// Whether the start of the points is known.
    has_start: bool,
}

/// The points of this process: they were added process by process.
fn own<Value>(points: &[MetricPoint<Value>], number: u32) -> &[MetricPoint<Value>] {
    let end = |number| points.partition_point(|point| point.process < number);
    &points[end(number)..end(number + 1)]
}

fn metric_of(
    message: &mut Message,
    family: &MetricFamily,
    common: &Common<'_>,
    values: &[MetricPoint<MetricValue>],
    histograms: &[MetricPoint<ExponentialHistogram>],
) {
    message.bytes(metric::NAME, family.name.as_bytes());
    message.bytes(metric::HELP, family.help.as_bytes());
    message.bytes(metric::UNIT, family.unit.code().as_bytes());
    match family.kind {
        MetricKind::Gauge | MetricKind::Info => {
            message.nest(metric::GAUGE, |data| numbers(data, common, values));
        }
        MetricKind::Counter | MetricKind::OlderCounter => message.nest(metric::SUM, |data| {
            numbers(data, common, values);
            data.number(metric::TEMPORALITY, common.temporality);
            data.number(metric::MONOTONIC, 1);
        }),
        MetricKind::Histogram(_) => message.nest(metric::EXPONENTIAL, |data| {
            for point in histograms {
                data.nest(metric::POINT, |message| {
                    let fields = [histogram::ATTRIBUTE, histogram::START, histogram::TIME];
                    begin(message, common, point.labels, fields);
                    distribution(message, &point.value);
                });
            }
            data.number(metric::TEMPORALITY, common.temporality);
        }),
    }
}

fn numbers(data: &mut Message, common: &Common<'_>, points: &[MetricPoint<MetricValue>]) {
    for point in points {
        data.nest(metric::POINT, |message| {
            begin(message, common, point.labels, [number::ATTRIBUTE, number::START, number::TIME]);
            match point.value {
                MetricValue::Count(n) => message.fixed(number::INT, n),
                value => message.fixed(number::DOUBLE, value.as_f64().to_bits()),
            }
        });
    }
}

/// The beginning of a point, in these fields: its attributes, and two times, if both are known.
fn begin(
    message: &mut Message,
    common: &Common<'_>,
    labels: [LabelSet; 2],
    [attribute, start, time]: [u32; 3],
) {
    let labels = labels.iter().filter_map(|set| common.sets.get(set.index())).flatten();
    labels.for_each(|label| message.message(attribute, label));
    if common.has_start {
        message.fixed(start, common.process.start_unix_ns);
    }
    message.fixed(time, common.process.read_unix_ns);
}

/// A `KeyValue`.
fn text_attribute(key: &str, value: &str) -> Message {
    let mut attribute = Message::default();
    attribute.bytes(attribute::KEY, key.as_bytes());
    attribute.nest(attribute::VALUE, |any| any.bytes(attribute::TEXT, value.as_bytes()));
    attribute
}

/// A `KeyValue` of a number.
fn int_attribute(attribute: &mut Message, key: &str, value: u64) {
    attribute.bytes(attribute::KEY, key.as_bytes());
    attribute.nest(attribute::VALUE, |any| any.always(attribute::INT, value));
}

fn resource(resource: &mut Message, process: &ExposedProcess, attributes: &[(String, String)]) {
    let is_given = |key: &str| attributes.iter().any(|(given, _)| given == key);
    let owner = process.user.iter().map(|user| ("process.owner", user));
    let own = [("service.name", &process.name), ("service.instance.id", &process.instance)];
    let own = own.into_iter().chain(owner).filter(|(key, _)| !is_given(key));
    for (key, value) in own.chain(attributes.iter().map(|(key, value)| (&**key, value))) {
        resource.message(request::RESOURCE_ATTRIBUTE, &text_attribute(key, value));
    }
    if !is_given("process.pid") {
        let pid = u64::from(process.pid);
        resource.nest(request::RESOURCE_ATTRIBUTE, |message| int_attribute(message, "process.pid", pid));
    }
}

fn distribution(message: &mut Message, of: &ExponentialHistogram) {
    message.fixed(histogram::COUNT, of.count());
    if let Some(sum) = of.sum {
        message.fixed(histogram::SUM, sum.as_f64().to_bits());
    }
    message.number(histogram::SCALE, Message::zigzag(i64::from(of.scale)));
    message.fixed(histogram::ZERO_COUNT, of.zero_count);
    if let (Some((first, _)), Some((last, _))) = (of.positive.first(), of.positive.last())
        && last - first < MOST_BUCKETS
    {
        message.nest(histogram::POSITIVE, |buckets| {
            buckets.number(histogram::OFFSET, Message::zigzag(i64::from(*first)));
            buckets.packed(histogram::COUNTS, counts(&of.positive));
        });
    }
    // An exemplar without a time would be one of 1970.
    for one in &of.exemplars {
        if let Some(unix_ns) = one.unix_ns {
            message.nest(histogram::EXEMPLAR, |message| exemplar_of(message, one, unix_ns));
        }
    }
    message.fixed(histogram::ZERO_THRESHOLD, of.zero_threshold.to_bits());
}

fn exemplar_of(message: &mut Message, of: &MetricExemplar, unix_ns: u64) {
    message.fixed(exemplar::TIME, unix_ns);
    message.fixed(exemplar::DOUBLE, of.value.as_f64().to_bits());
    if let Some((trace, span)) = of.trace {
        message.bytes(exemplar::SPAN, &span);
        message.bytes(exemplar::TRACE, &trace);
    }
    if of.task != 0 {
        message.nest(exemplar::ATTRIBUTE, |message| int_attribute(message, "task", of.task));
    }
    if let Some(outcome) = of.outcome_label() {
        message.message(exemplar::ATTRIBUTE, &text_attribute("outcome", outcome));
    }
}
