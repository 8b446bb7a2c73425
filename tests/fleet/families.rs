//! Each family of metrics of requests, streams, calls, objectives and runtimes, as Prometheus and
//! the Collector have it, for a service that has some of everything.
//!
//! The service is this program, run once more.

use std::convert::Infallible;
use std::future::pending;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};
use axum::response::{IntoResponse as _, Response};
use dormouse::tower::GroupLayer;
use dormouse::{Call, CallKind, Group};
use dormouse_metrics::{MetricFamily, MetricKind};
use dormouse_protocol::figures::{
    CALL_FIGURES, GROUP_FIGURES, OBJECTIVE_REQUESTS, OBJECTIVE_TARGET, REQUESTS, RUNTIME_FIGURES,
};
use dormouse_testkit::{HANG, eventually};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::collector::{attribute, collector, number, of_point, points};
use super::daemon::listening;
use super::prometheus::{Prometheus, exemplars};
use super::serving::Serving;
use super::sink::Sink;
use crate::tasks::TaskService;

const EVENT: &str = "data: tea\n\n";

/// Messages of two bytes, as a client masks them by zeros and as a server sends them.
const MESSAGE: &[u8] = b"\x81\x82\0\0\0\0ok";
const ANSWER: &[u8] = b"\x81\x02ok";

/// A family, labels of a point, and its number.
type Wanted = (&'static str, &'static [(&'static str, &'static str)], u32);

/// The figures of the service once [`Guests::come`] returns: the number of a counter or gauge, or
/// the count of a histogram.
const WANTED: &[Wanted] = &[
    ("dormouse.requests", &[("group", "/ok"), ("outcome", "completed")], 3),
    ("dormouse.requests", &[("group", "/wrong"), ("outcome", "client_error")], 1),
    ("dormouse.requests", &[("group", "/fails"), ("outcome", "error")], 1),
    ("dormouse.requests", &[("group", "/panics"), ("outcome", "panicked")], 1),
    ("dormouse.requests", &[("group", "/gone"), ("outcome", "cancelled")], 1),
    ("dormouse.requests", &[("group", "/sold"), ("outcome", "sold_out")], 1),
    ("dormouse.requests", &[("group", "/events"), ("outcome", "completed")], 0),
    ("dormouse.requests", &[("group", "/socket"), ("outcome", "completed")], 0),
    ("dormouse.request.duration", &[("group", "/ok")], 3),
    ("dormouse.request.duration", &[("group", "/gone")], 0),
    ("dormouse.request.body.duration", &[("group", "/ok")], 3),
    ("dormouse.request.body.sending", &[("group", "/ok")], 0),
    ("dormouse.tasks.long.lived", &[("group", "/events")], 1),
    ("dormouse.tasks.long.lived", &[("group", "/socket")], 1),
    ("dormouse.stream.frames", &[("group", "/events")], 3),
    ("dormouse.stream.sent", &[("group", "/events")], 3 * EVENT.len() as u32),
    // From the head on.
    ("dormouse.stream.gap", &[("group", "/events")], 3),
    ("dormouse.stream.frames", &[("group", "/socket")], 3),
    ("dormouse.stream.sent", &[("group", "/socket")], 6),
    ("dormouse.stream.gap", &[("group", "/socket")], 2),
    ("dormouse.stream.received.messages", &[("group", "/socket")], 3),
    ("dormouse.stream.received", &[("group", "/socket")], 6),
    ("dormouse.stream.received.gap", &[("group", "/socket")], 2),
    ("dormouse.call.duration", &[("group", "/calls"), ("kind", "http"), ("peer", "stock.test:80")], 2),
    ("dormouse.calls.failed", &[("group", "/calls"), ("kind", "http"), ("peer", "stock.test:80")], 1),
    ("dormouse.calls.cancelled", &[("group", "/calls"), ("kind", "http"), ("peer", "stock.test:80")], 1),
    ("dormouse.call.duration", &[("group", "/calls"), ("kind", "sql"), ("peer", "SELECT ?")], 1),
    ("dormouse.objective.requests", &[("group", "/ok"), ("objective", "99% < 1h"), ("met", "true")], 3),
    ("dormouse.objective.requests", &[("group", "/ok"), ("objective", "99% < 1h"), ("met", "false")], 0),
    ("dormouse.objective.requests", &[("group", "/fails"), ("objective", "99% < 1h"), ("met", "false")], 1),
    ("dormouse.blocking.started", &[("group", "/blocks")], 1),
    ("dormouse.runtime.workers", &[("runtime", "tea")], 2),
];

/// Families that these consumers do not have of this service: its polls do not stall, its runtime
/// is built without `tokio_unstable`, and texts have no native histograms.
fn is_elsewhere(family: &MetricFamily) -> bool {
    let unstable = ["own.queues", "polls", "steals", "blocking.threads", "blocking.idle", "blocking.queue"];
    family.name.starts_with("dormouse.stalled.")
        || family.name.strip_prefix("dormouse.runtime.").is_some_and(|rest| unstable.contains(&rest))
        || matches!(family.kind, MetricKind::Histogram([]))
}

fn families() -> Vec<&'static MetricFamily> {
    let groups = GROUP_FIGURES.iter().filter_map(|figure| figure.metric);
    let calls = CALL_FIGURES.iter().filter_map(|figure| figure.metric);
    let runtimes = RUNTIME_FIGURES.iter().filter_map(|figure| figure.metric);
    let tables = groups.chain(calls).chain(runtimes).map(|metric| metric.family);
    let mut all: Vec<_> = tables.chain([&REQUESTS, &OBJECTIVE_REQUESTS, &OBJECTIVE_TARGET]).collect();
    all.sort_by_key(|family| family.name);
    all.dedup();
    all.retain(|family| !is_elsewhere(family));
    all
}

/// Server-sent events, and then silence.
struct Events(u32);

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(left) = self.0.checked_sub(1) else { return Poll::Pending };
        self.0 = left;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(EVENT.as_bytes())))))
    }
}

async fn socket(upgraded: hyper::upgrade::Upgraded) {
    let (mut stream, mut message) = (TokioIo::new(upgraded), [0; MESSAGE.len()]);
    while stream.read_exact(&mut message).await.is_ok() {
        stream.write_all(ANSWER).await.expect("a guest");
        stream.flush().await.expect("a guest");
    }
}

async fn handle(request: Request) -> Response {
    match request.uri().path() {
        "/wrong" => StatusCode::NOT_FOUND.into_response(),
        "/fails" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "/panics" => panic!("on purpose"),
        "/gone" => pending().await,
        "/sold" => {
            assert!(dormouse::outcome("sold_out"));
            "none".into_response()
        }
        "/events" => ([(CONTENT_TYPE, "text/event-stream")], Body::new(Events(3))).into_response(),
        "/socket" => {
            let upgrade = hyper::upgrade::on(request);
            let serve = dormouse::carry().callback(socket);
            tokio::spawn(async move { serve(upgrade.await.expect("a guest who upgrades")).await });
            let headers = [(CONNECTION, "upgrade"), (UPGRADE, "websocket")];
            (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
        }
        "/calls" => {
            let http = || Call::begin(CallKind::Http, "http://me:word@stock.test:80/tea?id=7");
            http().end(false);
            http().end(true);
            drop(http());
            Call::begin(CallKind::Sql, "SELECT 7").end(false);
            "called".into_response()
        }
        "/blocks" => {
            dormouse::tokio::spawn_blocking(|| ()).await.expect("a thread");
            "blocked".into_response()
        }
        _ => "tea".into_response(),
    }
}

/// The service: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn service() {
    dormouse::init().expect("an agent");
    std::thread::spawn(|| {
        let _end = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    dormouse::tokio::runtime("tea", runtime.handle()).expect("a name");
    runtime.block_on(async {
        let groups = GroupLayer::new(|request: &Request| request.uri().path().to_owned().into());
        let app = Router::new().fallback(handle).layer(groups);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("ready");
        let listener = dormouse::axum::listener(listener, Group::new("connections"));
        axum::serve(listener, app).await.expect("a listener");
    });
}

/// The connections of guests that stay.
struct Guests(#[expect(dead_code, reason = "they end with it")] [TcpStream; 2]);

impl Guests {
    /// Has the service do [`WANTED`].
    fn come(service: &TaskService, serving: &Serving) -> Guests {
        let port = listening(service.pid()).expect("a port");
        let ask = |path: &str, more: &str| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a service that accepts");
            stream.set_read_timeout(Some(HANG)).expect("a timeout");
            write!(stream, "GET {path} HTTP/1.1\r\nHost: tea\r\n{more}\r\n").expect("a request");
            stream
        };
        let until = |stream: &mut TcpStream, end: &[u8]| {
            let mut answer = Vec::new();
            while !answer.ends_with(end) {
                let mut byte = [0];
                stream.read_exact(&mut byte).expect("an answer");
                answer.extend(byte);
            }
        };
        for path in ["/ok", "/ok", "/ok", "/wrong", "/fails", "/panics", "/sold", "/calls", "/blocks"] {
            let _cut_off = ask(path, "Connection: close\r\n").read_to_end(&mut Vec::new());
        }
        let mut events = ask("/events", "");
        (0..3).for_each(|_| until(&mut events, EVENT.as_bytes()));
        let mut socket = ask("/socket", "Connection: upgrade\r\nUpgrade: websocket\r\n");
        until(&mut socket, b"\r\n\r\n");
        for _ in 0..3 {
            socket.write_all(MESSAGE).expect("a socket");
            until(&mut socket, ANSWER);
        }
        let gone = ask("/gone", "");
        let alive = || {
            let totals = serving.totals_of(service.pid(), &service.socket());
            let gone = totals["groups"].as_array()?.iter().find(|group| group["name"] == "/gone")?;
            gone["alive"].as_u64()
        };
        eventually(|| alive() == Some(1));
        drop(gone);
        eventually(|| alive() == Some(0));
        Guests([events, socket])
    }
}

/// A service, and a server of its metrics that has its conversation with it.
fn served(variables: &[(&str, &str)]) -> (TaskService, Serving) {
    let service = TaskService::start_test("fleet::families::service", &[("RUST_BACKTRACE", "0")]);
    let target = service.target();
    let serving = Serving::start(service.runtime(), &[&target, "--objective", "/*: 99% < 1h"], variables);
    serving.totals_of(service.pid(), &service.socket());
    (service, serving)
}

#[test]
fn prometheus_has_each_family() {
    let (service, serving) = served(&[]);
    let Some(mut prometheus) = Prometheus::scraping(&serving, "exemplar-storage") else { return };
    let _guests = Guests::come(&service, &serving);
    let families = families();
    for (name, labels, wanted) in WANTED {
        let family = families.iter().find(|family| family.name == *name).expect("a family");
        let suffix = if matches!(family.kind, MetricKind::Histogram(_)) { "_count" } else { "" };
        let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value:?}")).collect();
        let query = format!("{}{suffix}{{{}}}", family.prometheus_name(), labels.join(","));
        prometheus.value(&query, |value| (value - f64::from(*wanted)).abs() < 0.5);
    }
    for family in &families {
        let suffix = if matches!(family.kind, MetricKind::Histogram(_)) { "_bucket" } else { "" };
        prometheus.value(&format!("count({}{suffix})", family.prometheus_name()), |series| series > 0.0);
    }
    let target = r#"dormouse_objective_target_ratio{group="/ok"}"#;
    prometheus.value(target, |ratio| (ratio - 0.99).abs() < 1e-9);
    let unanswered = r#"dormouse_request_unanswered_time_seconds_total{group="/gone"}"#;
    prometheus.value(unanswered, |seconds| seconds > 0.0);
    for direction in ["read", "written"] {
        let bytes = format!(r#"dormouse_connection_{direction}_bytes_total{{group="connections"}}"#);
        prometheus.value(&bytes, |bytes| bytes > 100.0);
    }
    // A scrape may have come between the head of an answer and the end of its request.
    for (group, outcome) in [("/ok", "completed"), ("/wrong", "client_error"), ("/sold", "sold_out")] {
        let query = format!(r#"dormouse_request_duration_seconds_bucket{{group="{group}"}}"#);
        let found = exemplars(&mut prometheus, &query);
        let is_its = |labels: &Value| labels.get("outcome").is_none_or(|word| word == outcome);
        assert!(found.iter().all(is_its), "{group}: {found:?}");
        assert!(found.iter().any(|labels| labels.get("outcome").is_some()), "{group}: {found:?}");
    }
}

#[test]
fn prometheus_has_each_native_histogram() {
    let (service, serving) = served(&[]);
    let Some(mut prometheus) = Prometheus::scraping(&serving, "native-histograms") else { return };
    let _guests = Guests::come(&service, &serving);
    let figures = GROUP_FIGURES.iter().filter_map(|figure| figure.metric);
    let calls = CALL_FIGURES.iter().filter_map(|figure| figure.metric);
    let mut seen = 0;
    for family in figures.chain(calls).map(|metric| metric.family) {
        if let MetricKind::Histogram(_) = family.kind {
            let query = format!("sum(histogram_count({}))", family.prometheus_name());
            prometheus.value(&query, |count| count > 0.0);
            seen += 1;
        }
    }
    assert!(seen >= 8, "{seen} histograms");
}

#[test]
fn the_collector_has_each_family() {
    let sink = Sink::open();
    let Some(collector) = collector(&sink) else { return };
    let url = collector.url("");
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*url), ("OTEL_METRIC_EXPORT_INTERVAL", "300")];
    let (service, serving) = served(&variables);
    let _guests = Guests::come(&service, &serving);
    let value = |point: &Value| match (point.get("count"), point.get("sum")) {
        (Some(count), _) => number(count),
        // A histogram of nothing has no count in JSON.
        (None, Some(_)) => 0.0,
        (None, None) => of_point(point),
    };
    let is_there = |resource: &Value, (name, labels, wanted): &Wanted| {
        let has =
            |point: &Value, (label, text): &(&str, &str)| attribute(point, label).as_deref() == Some(*text);
        let all = points(resource, name);
        let its = all.iter().find(|point| labels.iter().all(|label| has(point, label)));
        its.is_some_and(|point| (value(point) - f64::from(*wanted)).abs() < 0.5)
    };
    let resource = sink.await_some(|document| {
        let resource = document["resourceMetrics"].as_array()?.first()?;
        WANTED.iter().all(|wanted| is_there(resource, wanted)).then(|| resource.clone())
    });
    let absent: Vec<_> =
        families().into_iter().filter(|family| points(&resource, family.name).is_empty()).collect();
    assert!(absent.is_empty(), "{absent:?}");
    let requests = points(&resource, "dormouse.request.duration");
    let sold = requests.iter().find(|point| attribute(point, "group").as_deref() == Some("/sold"));
    let exemplars = sold.and_then(|point| point["exemplars"].as_array()).expect("exemplars");
    for one in exemplars {
        let tags = serde_json::json!({ "attributes": one["filteredAttributes"] });
        assert_eq!(attribute(&tags, "outcome").as_deref(), Some("sold_out"), "{one}");
    }
}
