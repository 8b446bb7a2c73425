//! A push through an OpenTelemetry Collector: what it passes on is compared number by number with
//! what the agent says.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::daemon::{Daemon, cached};
use super::serving::Serving;
use super::sink::Sink;
use crate::support::{Service, skip};

/// The version that `cargo xtask fleet` builds.
const BUILT: &str = "otelcol-0.155.0/otelcol";

/// The scale of histograms in metrics.
const SCALE: i64 = 2;

/// The requests that are made, and how often.
const ROUTES: [(&str, u32); 2] = [("/menu", 17), ("/blend", 5)];

/// A Collector that takes OTLP over HTTP and passes it on as JSON.
#[track_caller]
pub(super) fn collector(sink: &Sink) -> Option<Daemon> {
    let Some(program) = cached(BUILT) else {
        skip("the Collector is not built; cargo xtask fleet does it");
        return None;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let config = format!(
        "receivers: {{otlp: {{protocols: {{http: {{endpoint: '127.0.0.1:0'}}}}}}}}
exporters: {{otlp_http: {{endpoint: 'http://127.0.0.1:{}', encoding: json, compression: none}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{metrics: {{receivers: [otlp], exporters: [otlp_http]}}}}
",
        sink.port()
    );
    let file = directory.path().join("collector.yml");
    std::fs::write(&file, config).expect("a file");
    let mut command = Command::new(program);
    command.arg("--config").arg(file);
    Some(Daemon::start(command, directory))
}

/// The metrics of a resource.
fn metrics(resource: &Value) -> impl Iterator<Item = &Value> {
    let scopes = resource["scopeMetrics"].as_array().into_iter().flatten();
    scopes.flat_map(|scope| scope["metrics"].as_array().into_iter().flatten())
}

/// The points of a metric, whatever its type.
pub(super) fn points<'a>(resource: &'a Value, name: &str) -> Vec<&'a Value> {
    let named = metrics(resource).filter(|metric| metric["name"] == name);
    let data = |metric: &'a Value| {
        let types = ["sum", "gauge", "histogram", "exponentialHistogram"];
        types.iter().find_map(|data| metric[data]["dataPoints"].as_array())
    };
    named.filter_map(data).flatten().collect()
}

/// An attribute of a point or a resource, as text.
pub(super) fn attribute(of: &Value, key: &str) -> Option<String> {
    let attribute = of["attributes"].as_array()?.iter().find(|attribute| attribute["key"] == key)?;
    let value = attribute["value"].as_object()?.values().next()?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// The point of a group.
#[track_caller]
fn of_group<'a>(resource: &'a Value, name: &str, group: &str) -> &'a Value {
    let mut found =
        points(resource, name).into_iter().filter(|it| attribute(it, "group").as_deref() == Some(group));
    found.next().unwrap_or_else(|| panic!("no {name} of {group} in {resource}"))
}

/// A number in JSON: 64 bits of them are text there.
#[track_caller]
pub(super) fn number(value: &Value) -> f64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    text.or(value.as_f64()).unwrap_or_else(|| panic!("no number: {value}"))
}

#[track_caller]
pub(super) fn of_point(point: &Value) -> f64 {
    number(point.get("asInt").or(point.get("asDouble")).unwrap_or_else(|| panic!("{point}")))
}

#[test]
fn the_collector_gets_the_agents_numbers() {
    let sink = Sink::open();
    let Some(collector) = collector(&sink) else { return };
    let service = Service::idle();
    let url = collector.url("");
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "300"),
    ];
    let serving = Serving::with(&service, &variables);
    // The conversation with the agent is there: what happens now is counted.
    serving.totals(&service);
    let _guest = service.connect();
    for (path, times) in ROUTES {
        for _ in 0..times {
            assert!(service.get(path).starts_with("HTTP/1.1 200"));
        }
    }
    // Nothing happens any more: the next reading of both is the same.
    let resource = sink.await_some(|document| with_all_requests(document).cloned());
    let own = serving.totals(&service);
    for (path, times) in ROUTES {
        compare(&resource, &own, &format!("GET {path}"));
        exemplars_are_of(&resource, &format!("GET {path}"), times);
    }
    compare_outcomes(&resource, &own);
    compare_calls(&resource, &own);
    compare_runtimes(&resource, &own);
    // The guest's connection, once those of the requests have ended.
    sink.await_some(|document| {
        let resource = document["resourceMetrics"].as_array()?.first()?;
        let alive = of_point(of_group(resource, "dormouse.tasks.long.lived", "connections"));
        (alive.to_bits() == 1_f64.to_bits()).then_some(())
    });
    // The next server's points go on with these: their start is the process's.
    let start = starts(&resource);
    assert_eq!(start.len(), 1, "{resource}");
    serving.daemon.end();
    let named = [&variables[..], &[("OTEL_RESOURCE_ATTRIBUTES", "server=next")]].concat();
    let _next = Serving::with(&service, &named);
    let next = sink.await_some(|document| {
        let resource = with_all_requests(document)?;
        (attribute(&resource["resource"], "server")? == "next").then(|| resource.clone())
    });
    assert_eq!(starts(&next), start);
}

#[test]
fn the_collector_takes_differences() {
    let sink = Sink::open();
    let Some(collector) = collector(&sink) else { return };
    let service = Service::idle();
    let url = collector.url("");
    let _serving = Serving::with(
        &service,
        &[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta"),
        ],
    );
    let resource = |document: &Value| document["resourceMetrics"].as_array()?.first().cloned();
    // By now the first reading is there, from which differences begin.
    sink.await_some(resource);
    let (path, times) = ROUTES[0];
    (0..times).for_each(|_| assert!(service.get(path).starts_with("HTTP/1.1 200")));
    let mut counted = 0.0;
    while counted < f64::from(times) {
        let resource = sink.await_some(resource);
        let sum = metrics(&resource).find(|metric| metric["name"] == "dormouse.requests").expect("requests");
        assert_eq!(sum["sum"]["aggregationTemporality"], 1, "{sum}");
        let group = format!("GET {path}");
        let points = points(&resource, "dormouse.requests").into_iter();
        counted +=
            points.filter(|it| attribute(it, "group").as_deref() == Some(&group)).map(of_point).sum::<f64>();
    }
    assert_same(counted, f64::from(times), "requests");
}

/// The resource of a document, if it has all requests that were made.
fn with_all_requests(document: &Value) -> Option<&Value> {
    let resource = document["resourceMetrics"].as_array()?.first()?;
    let counted = points(resource, "dormouse.requests");
    let of = |group: &str| {
        let mut found = counted.iter().filter(|it| attribute(it, "group").as_deref() == Some(group));
        found.next().map_or(0.0, |it| of_point(it))
    };
    let has_all =
        |(path, times): &(&str, u32)| of(&format!("GET {path}")).to_bits() == f64::from(*times).to_bits();
    ROUTES.iter().all(has_all).then_some(resource)
}

/// When the points of counters and histograms begin, in nanoseconds.
fn starts(resource: &Value) -> BTreeSet<&str> {
    let counted = metrics(resource).filter(|metric| metric["gauge"].is_null());
    let points = counted.flat_map(|metric| points(resource, metric["name"].as_str().expect("a name")));
    points.map(|point| point["startTimeUnixNano"].as_str().expect("a start")).collect()
}

/// Requests of a group are exemplars of their latencies: each has a time, a length that is in the
/// sum, and the number of its task or a trace.
#[track_caller]
fn exemplars_are_of(resource: &Value, group: &str, most: u32) {
    let point = of_group(resource, "dormouse.request.duration", group);
    let exemplars = point["exemplars"].as_array().unwrap_or_else(|| panic!("no exemplars: {point}"));
    assert!((1..=most as usize).contains(&exemplars.len()), "{point}");
    for one in exemplars {
        let [at, start, time] =
            [&one["timeUnixNano"], &point["startTimeUnixNano"], &point["timeUnixNano"]].map(number);
        assert!(start <= at && at <= time, "{point}");
        let length = number(&one["asDouble"]);
        assert!(length > 0.0 && length <= number(&point["sum"]) * 1.000_001, "{point}");
        let tags = &serde_json::json!({ "attributes": one["filteredAttributes"] });
        let has_trace = one["traceId"].as_str().is_some_and(|id| id.len() == 32);
        assert!(has_trace != attribute(tags, "task").is_some(), "{point}");
    }
}

/// All that both say of a group is the same.
#[track_caller]
fn compare(resource: &Value, own: &Value, group: &str) {
    let groups = own["groups"].as_array().expect("groups");
    let row = groups.iter().find(|row| row["name"] == group).unwrap_or_else(|| panic!("{own}"));
    let seconds = |ns: &Value| number(ns) / 1e9;
    let counts = [
        ("dormouse.cpu.time", seconds(&row["cpu_ns"])),
        ("dormouse.requests", number(&row["requests"])),
        ("dormouse.polls", number(&row["polls"])),
        ("dormouse.tasks.started", number(&row["started"])),
        ("dormouse.tasks.finished", number(&row["finished"])),
        ("dormouse.tasks.alive", number(&row["alive"])),
        ("dormouse.tasks.long.lived", number(&row["long_lived"]["tasks"])),
    ];
    for (name, wanted) in counts {
        let point = of_group(resource, name, group);
        assert_same(of_point(point), wanted, name);
        let [start, time] = ["startTimeUnixNano", "timeUnixNano"].map(|field| number(&point[field]));
        assert!(0.0 < start && start <= time, "{name}: {point}");
    }
    // A route without streams has no points of any.
    for name in ["dormouse.stream.frames", "dormouse.stream.sent", "dormouse.stream.gap"] {
        let found = points(resource, name);
        assert!(found.iter().all(|it| attribute(it, "group").as_deref() != Some(group)), "{name}");
    }
    for metric in metrics(resource) {
        // Cumulative; and all sums are counters.
        if let Some(sum) = metric["sum"].as_object() {
            assert_eq!(
                (&sum["aggregationTemporality"], &sum["isMonotonic"]),
                (&2.into(), &true.into()),
                "{metric}"
            );
        } else if let Some(histogram) = metric["exponentialHistogram"].as_object() {
            assert_eq!(histogram["aggregationTemporality"], 2, "{metric}");
        } else {
            assert!(metric["gauge"].is_object(), "{metric}");
        }
    }
    let waits = &row["waits"];
    let histograms = [
        ("dormouse.request.duration", "requests"),
        ("dormouse.request.body.duration", "bodies"),
        ("dormouse.poll.duration", "polls"),
        ("dormouse.poll.delay", "delays"),
        ("dormouse.await.duration", "awaits"),
    ];
    for (name, field) in histograms {
        let (point, row) = (of_group(resource, name, group), &waits[field]);
        assert_same(number(&point["sum"]), seconds(&row["sum_ns"]), name);
        assert_eq!(point["scale"], SCALE, "{name}");
        assert_same(point.get("zeroCount").map_or(0.0, number), number(&row["zero_count"]), name);
        assert_eq!(buckets(point), filled(row), "{name}: {point} and {row}");
    }
}

/// The point with these attributes.
#[track_caller]
fn with<'a>(resource: &'a Value, name: &str, wanted: &[(&str, &str)]) -> &'a Value {
    let is_it = |it: &&Value| wanted.iter().all(|(key, value)| attribute(it, key).as_deref() == Some(*value));
    let mut found = points(resource, name).into_iter().filter(is_it);
    found.next().unwrap_or_else(|| panic!("no {name} with {wanted:?} in {resource}"))
}

#[track_caller]
fn compare_outcomes(resource: &Value, own: &Value) {
    for (path, times) in ROUTES {
        let group = format!("GET {path}");
        let row = own["groups"].as_array().and_then(|all| all.iter().find(|row| row["name"] == *group));
        let row = row.unwrap_or_else(|| panic!("{own}"));
        assert_same(number(&row["outcomes"]["completed"]), times.into(), "completed");
        let completed = with(resource, "dormouse.requests", &[("group", &group), ("outcome", "completed")]);
        assert_same(of_point(completed), times.into(), "completed");
    }
}

#[track_caller]
fn compare_calls(resource: &Value, own: &Value) {
    let names = own["groups"].as_array().expect("groups");
    let calls = own["calls"].as_array().expect("calls");
    let asked = |row: &&Value| ROUTES.iter().any(|(path, _)| name_of(names, row) == format!("GET {path}"));
    let calls: Vec<_> = calls.iter().filter(asked).collect();
    assert!(!calls.is_empty(), "{own}");
    for row in calls {
        let (group, kind, peer) = (name_of(names, row), row["kind"].as_str(), row["peer"].as_str());
        let labels = [("group", &*group), ("kind", kind.expect("a kind")), ("peer", peer.expect("a peer"))];
        let times = with(resource, "dormouse.call.duration", &labels);
        assert_same(number(&times["sum"]), number(&row["times"]["sum_ns"]) / 1e9, peer.expect("a peer"));
        let failed = with(resource, "dormouse.calls.failed", &labels);
        assert_same(of_point(failed), number(&row["errors"]), "errors");
    }
}

/// The name of the group of a row.
fn name_of(groups: &[Value], row: &Value) -> String {
    let group = groups.iter().find(|group| group["id"] == row["group"]);
    group.and_then(|group| group["name"].as_str()).unwrap_or_default().to_owned()
}

#[track_caller]
fn compare_runtimes(resource: &Value, own: &Value) {
    let [runtime] = own["runtimes"].as_array().map_or(&[][..], Vec::as_slice) else { panic!("{own}") };
    let name = runtime["name"].as_str().expect("a name");
    let workers = with(resource, "dormouse.runtime.workers", &[("runtime", name)]);
    assert_same(of_point(workers), number(&runtime["workers"]), "workers");
    // It goes on: a later reading has no less.
    let busy = of_point(with(resource, "dormouse.runtime.busy.time", &[("runtime", name)]));
    assert!(busy > 0.0 && busy <= number(&runtime["busy_ns"]) / 1e9 * 1.000_001, "{busy}: {runtime}");
}

#[track_caller]
fn assert_same(is: f64, should: f64, what: &str) {
    // The same nanoseconds, as text and as a fraction of a second.
    assert!((is - should).abs() <= 1e-9 * should.abs(), "{what} is {is} instead of {should}");
}

/// Index and count of the buckets of a point that hold any.
fn buckets(point: &Value) -> Vec<(i64, u64)> {
    let positive = &point["positive"];
    let counts = positive["bucketCounts"].as_array().into_iter().flatten().map(|count| number(count) as u64);
    (positive["offset"].as_i64().unwrap_or_default()..).zip(counts).filter(|(_, count)| *count > 0).collect()
}

/// The buckets in the agent's row that are not empty, which are finer than those of metrics, in
/// those of metrics.
fn filled(row: &Value) -> Vec<(i64, u64)> {
    let finer = row["scale"].as_i64().expect("a scale") - SCALE;
    let mut filled = BTreeMap::new();
    for pair in row["buckets"].as_array().into_iter().flatten() {
        let (index, count) = (pair[0].as_i64().expect("an index"), pair[1].as_u64().expect("a count"));
        *filled.entry(index >> finer).or_default() += count;
    }
    filled.into_iter().collect()
}
