//! OTLP, as OpenTelemetry's own types read it.

use crate::support;

use dormouse_metrics::{ExposedProcess, Exposition, LabelSet, MetricValue, MetricsFormat};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data, number_data_point};
use prost::Message as _;
use support::{ALIVE, PRESSURE, READ, START, WILD, fill, process};

fn decoded(attributes: &[(String, String)]) -> ExportMetricsServiceRequest {
    let mut exposition = Exposition::of_processes();
    fill(&mut exposition, "tea", 7);
    fill(&mut exposition, "coffee", 8);
    ExportMetricsServiceRequest::decode(&*exposition.otlp(attributes)).unwrap()
}

fn texts(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(n) => n.to_string(),
        other => panic!("{other:?}"),
    };
    let pair = |of: &KeyValue| (of.key.clone(), text(of.value.as_ref().unwrap().value.as_ref().unwrap()));
    // They have no order.
    let mut texts: Vec<_> = attributes.iter().map(pair).collect();
    texts.sort();
    texts
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn each_process_is_a_resource() {
    let of = decoded(&[pair("service.name", "shop"), pair("deployment", "test")]);
    let resources: Vec<_> =
        of.resource_metrics.iter().map(|of| texts(&of.resource.as_ref().unwrap().attributes)).collect();
    let own = |pid: &str| {
        vec![
            pair("deployment", "test"),
            pair("process.pid", pid),
            pair("service.instance.id", &format!("host:{pid}")),
            pair("service.name", "shop"),
        ]
    };
    assert_eq!(resources, [own("7"), own("8")]);
    let plain = decoded(&[]);
    let names = texts(&plain.resource_metrics[1].resource.as_ref().unwrap().attributes);
    assert_eq!(names[2], pair("service.name", "coffee"));
    let scope = plain.resource_metrics[0].scope_metrics[0].scope.as_ref().unwrap();
    assert_eq!((&*scope.name, &*scope.version), ("dormouse", "1.2.3"));
}

#[test]
fn other_users_are_on_every_point() {
    let mut exposition = Exposition::of_processes();
    let process = ExposedProcess { user: Some("eve \"".into()), ..process("tea", 7) };
    exposition.process(process).add(&ALIVE, [LabelSet::NONE; 2], MetricValue::Count(1));
    let text = String::from_utf8(exposition.encode(MetricsFormat::Text)).unwrap();
    assert!(
        text.ends_with("dormouse_tasks_alive{process=\"tea\",pid=\"7\",user=\"eve \\\"\"} 1\n"),
        "{text}"
    );
    let of = ExportMetricsServiceRequest::decode(&*exposition.otlp(&[])).unwrap();
    let owner = texts(&of.resource_metrics[0].resource.as_ref().unwrap().attributes).swap_remove(0);
    assert_eq!(owner, pair("process.owner", "eve \""));
}

fn metric(of: &ExportMetricsServiceRequest, name: &str) -> Metric {
    let all = &of.resource_metrics[0].scope_metrics[0].metrics;
    all.iter().find(|metric| metric.name == name).unwrap().clone()
}

#[test]
fn sums_are_cumulative_since_the_start() {
    let of = decoded(&[]);
    let cpu = metric(&of, "dormouse.cpu.time");
    assert_eq!((&*cpu.unit, &*cpu.description), ("s", "CPU time."));
    let Some(Data::Sum(sum)) = cpu.data else { panic!("{cpu:?}") };
    assert_eq!((sum.aggregation_temporality, sum.is_monotonic, sum.data_points.len()), (2, true, 2));
    let point = &sum.data_points[0];
    assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (START, READ));
    assert_eq!(point.value, Some(number_data_point::Value::AsDouble(1.5)));
    assert_eq!(texts(&point.attributes), [pair("group", WILD), pair("state", "poll")]);
    let alive = metric(&of, "dormouse.tasks.alive");
    assert_eq!(alive.unit, "{task}");
    let Some(Data::Gauge(gauge)) = alive.data else { panic!("{alive:?}") };
    assert_eq!(gauge.data_points[1].value, Some(number_data_point::Value::AsInt(2)));
}

#[test]
fn differences_say_so() {
    let mut exposition = Exposition::of_differences();
    fill(&mut exposition, "tea", 7);
    exposition.last_process().unwrap().process_mut().unwrap().start_unix_ns = READ - 1;
    let of = ExportMetricsServiceRequest::decode(&*exposition.otlp(&[])).unwrap();
    let Some(Data::Sum(sum)) = metric(&of, "dormouse.cpu.time").data else { panic!("{of:?}") };
    assert_eq!((sum.aggregation_temporality, sum.is_monotonic), (1, true));
    assert_eq!(sum.data_points[0].start_time_unix_nano, READ - 1);
    let Some(Data::ExponentialHistogram(all)) = metric(&of, "dormouse.request.duration").data else {
        panic!("{of:?}")
    };
    assert_eq!(all.aggregation_temporality, 1);
}

#[test]
fn sums_older_than_the_process_have_no_start() {
    let start = |mut of: Exposition| {
        of.process(process("tea", 7)).add(&PRESSURE, [LabelSet::NONE; 2], MetricValue::Count(1));
        let of = ExportMetricsServiceRequest::decode(&*of.otlp(&[])).unwrap();
        let Some(Data::Sum(sum)) = metric(&of, "dormouse.process.pressure").data else { panic!("{of:?}") };
        (sum.data_points[0].start_time_unix_nano, sum.data_points[0].time_unix_nano)
    };
    assert_eq!(start(Exposition::of_processes()), (0, READ));
    assert_eq!(start(Exposition::of_differences()), (START, READ), "an interval has one");
}

#[test]
fn histograms_keep_their_buckets() {
    let latency = metric(&decoded(&[]), "dormouse.request.duration");
    let Some(Data::ExponentialHistogram(all)) = latency.data else { panic!("{latency:?}") };
    assert_eq!(all.aggregation_temporality, 2);
    let [of, empty] = &all.data_points[..] else { panic!("{all:?}") };
    assert_eq!((of.scale, of.count, of.sum, of.zero_count), (2, 25, Some(25.5), 3));
    assert!((of.zero_threshold - 2_f64.powi(-24)).abs() < f64::EPSILON * 2_f64.powi(-24));
    let buckets = of.positive.as_ref().unwrap();
    let filled: Vec<_> = (buckets.offset..).zip(&buckets.bucket_counts).filter(|(_, n)| **n > 0).collect();
    assert_eq!(filled, [(-18, &1), (-17, &4), (-16, &5), (-4, &2), (-2, &7), (0, &1), (8, &2)]);
    let [exemplar] = &of.exemplars[..] else { panic!("one has a time: {of:?}") };
    assert_eq!((&*exemplar.trace_id, &*exemplar.span_id), (&[0xab; 16][..], &[1; 8][..]));
    assert_eq!(
        (exemplar.time_unix_nano, texts(&exemplar.filtered_attributes)),
        (READ, vec![pair("outcome", "sold \"out\""), pair("task", "7")])
    );
    assert_eq!((empty.count, empty.positive.as_ref().map(|of| of.bucket_counts.len())), (0, None));
}
