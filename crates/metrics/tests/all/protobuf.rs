//! Prometheus's protocol buffers, read by structures that prost derives from the fields of its
//! `metrics.proto`.

use crate::support;

use dormouse_metrics::{ExponentialHistogram, Exposition, LabelSet, MetricValue, MetricsFormat};
use proptest::prelude::*;
use prost::Message;
use support::{LATENCY, POLLS, PRESSURE, READ, WILD, fill, process};

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Timestamp {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(message, optional, tag = "3")]
    created: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
struct ReadExemplar {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(double, tag = "2")]
    value: f64,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, tag = "1")]
    cumulative: u64,
    #[prost(double, tag = "2")]
    end: f64,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<ReadExemplar>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(sint32, tag = "1")]
    offset: i32,
    #[prost(uint32, tag = "2")]
    length: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Native {
    #[prost(uint64, tag = "1")]
    count: u64,
    #[prost(double, tag = "2")]
    sum: f64,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    schema: i32,
    #[prost(double, tag = "6")]
    zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    span: Vec<Span>,
    #[prost(sint64, repeated, tag = "13")]
    delta: Vec<i64>,
    #[prost(message, optional, tag = "15")]
    created: Option<Timestamp>,
    #[prost(message, repeated, tag = "16")]
    exemplar: Vec<ReadExemplar>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Native>,
}

#[derive(Clone, PartialEq, Message)]
struct Family {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    help: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
    #[prost(string, tag = "5")]
    unit: String,
}

fn families(exposition: &Exposition) -> Vec<Family> {
    let bytes = exposition.encode(MetricsFormat::Protobuf);
    let (mut rest, mut families) = (&*bytes, Vec::new());
    while !rest.is_empty() {
        families.push(Family::decode_length_delimited(&mut rest).unwrap());
    }
    families
}

/// The buckets, by OpenTelemetry's indices, as Prometheus's text on native histograms has it.
fn buckets(of: &Native) -> Vec<(i32, u64)> {
    let (mut index, mut count, mut deltas, mut all) = (0, 0, of.delta.iter(), Vec::new());
    for (at, span) in of.span.iter().enumerate() {
        assert!(at == 0 || span.offset >= 0, "{of:?}");
        index += span.offset;
        for _ in 0..span.length {
            count += deltas.next().unwrap();
            all.push((index - 1, u64::try_from(count).unwrap()));
            index += 1;
        }
    }
    assert_eq!(deltas.next(), None);
    all.retain(|(_, n)| *n > 0);
    all
}

#[test]
fn sums_older_than_the_process_have_no_start() {
    let mut exposition = Exposition::of_processes();
    exposition.process(process("tea", 7)).add(&PRESSURE, [LabelSet::NONE; 2], MetricValue::Count(1));
    let [family] = &families(&exposition)[..] else { panic!("one family") };
    assert_eq!((&*family.name, family.kind), ("dormouse_process_pressure_seconds_total", 0));
    assert_eq!(family.metric[0].counter, Some(Number { value: 1.0, created: None }));
}

#[test]
fn families_have_labels_kinds_and_units() {
    let mut exposition = Exposition::of_processes();
    fill(&mut exposition, "tea", 7);
    let families = families(&exposition);
    let heads: Vec<_> = families.iter().map(|of| (&*of.name, of.kind, &*of.unit)).collect();
    assert_eq!(
        heads,
        [
            ("dormouse_agent_info", 1, ""),
            ("dormouse_cpu_time_seconds_total", 0, "seconds"),
            ("dormouse_tasks_alive", 1, ""),
            ("dormouse_request_duration_seconds", 4, "seconds"),
            ("dormouse_poll_duration_seconds", 4, "seconds"),
        ]
    );
    let cpu = &families[1].metric[0];
    let labels: Vec<_> = cpu.label.iter().map(|of| (&*of.name, &*of.value)).collect();
    assert_eq!(labels, [("process", "tea"), ("pid", "7"), ("group", WILD), ("state", "poll")]);
    let created = Some(Timestamp { seconds: 1_700_000_000, nanos: 1 });
    assert_eq!(cpu.counter, Some(Number { value: 1.5, created: created.clone() }));
    let latency = families[3].metric[0].histogram.as_ref().unwrap();
    assert_eq!((latency.count, latency.sum, latency.schema, latency.zero_count), (25, 25.5, 2, 3));
    assert_eq!(latency.created, created);
}

#[test]
fn native_histograms_have_the_classic_one_beside() {
    let mut exposition = Exposition::new();
    fill(&mut exposition, "tea", 7);
    let families = families(&exposition);
    let latency = families[3].metric[0].histogram.as_ref().unwrap();
    let classic: Vec<_> = latency.bucket.iter().map(|of| (of.end, of.cumulative)).collect();
    assert_eq!(classic, [(0.0625, 8), (1.0, 22), (4.0, 23), (f64::INFINITY, 25)]);
    assert_eq!(latency.bucket[3].exemplar.as_ref().unwrap().value.to_bits(), 4.5_f64.to_bits());
    let exemplar = latency.bucket[1].exemplar.as_ref().unwrap();
    assert_eq!((exemplar.value, exemplar.label.len()), (0.5, 4));
    assert_eq!(exemplar.timestamp.as_ref().unwrap().seconds, (READ / 1_000_000_000) as i64);
    assert!(latency.exemplar.is_empty(), "Prometheus takes those of the buckets");
    let polls = families[4].metric[0].histogram.as_ref().unwrap();
    assert!(polls.bucket.is_empty());
    assert_eq!(buckets(polls), buckets(latency));
    let empty = families[4].metric[1].histogram.as_ref().unwrap();
    assert!(latency.bucket.len() == families[3].metric[1].histogram.as_ref().unwrap().bucket.len());
    assert_eq!((empty.count, &empty.span[..], &empty.delta[..]), (0, &[Span::default()][..], &[][..]));
}

proptest! {
    #[test]
    fn native_histograms_have_the_same_buckets(
        positive in prop::collection::btree_map(-500_i32..500, 1_u64..1 << 40, 0..60),
    ) {
        let positive: Vec<(i32, u64)> = positive.into_iter().collect();
        let of = ExponentialHistogram { scale: 2, positive: positive.clone(), ..Default::default() };
        let mut exposition = Exposition::new();
        exposition.process(process("tea", 1)).add_histograms(&POLLS, [([LabelSet::NONE; 2], of)]);
        let families = families(&exposition);
        let read = families[0].metric[0].histogram.as_ref().unwrap();
        prop_assert_eq!(buckets(read), positive);
    }
}

#[test]
fn what_is_no_histogram_is_left_out() {
    let with = |scale, positive: &[(i32, u64)]| {
        let mut exposition = Exposition::new();
        let of = ExponentialHistogram { scale, positive: positive.to_vec(), ..Default::default() };
        exposition.process(process("tea", 1)).add_histograms(&LATENCY, [([LabelSet::NONE; 2], of)]);
        exposition.points()
    };
    assert_eq!([with(2, &[(1, 1), (2, 1)]), with(8, &[]), with(0, &[(-9, 5)])], [1; 3]);
    let none = [
        with(9, &[]),
        with(-1, &[]),
        with(2, &[(2, 1), (1, 1)]),
        with(2, &[(1, 1), (1, 1)]),
        with(2, &[(i32::MIN, 1)]),
        with(2, &[(1, 1), (i32::MAX, 1)]),
        with(2, &[(1, u64::MAX)]),
        with(2, &[(1, 1 << 52), (2, 1 << 52)]),
    ];
    assert_eq!(none, [0; 8]);
}
