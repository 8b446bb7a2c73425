//! Pushes to a collector that answers as a test likes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, metric::Data, number_data_point};
use prost::Message as _;

use super::asking::Serving;
use crate::support::{DORMOUSE, HANG, Service, skip};

/// A collector that refuses each second push.
struct Moody {
    url: String,
    pushes: Receiver<(bool, ExportMetricsServiceRequest)>,
}

impl Moody {
    fn open() -> Moody {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let (sender, pushes) = mpsc::channel();
        std::thread::spawn(move || {
            for (stream, n) in listener.incoming().zip(0..) {
                let (mut stream, is_taken) = (stream.expect("a client"), n % 2 == 1);
                let status = if is_taken { "200 OK" } else { "400 Bad Request" };
                let Some(push) = received(&stream) else { continue };
                let _ = sender.send((is_taken, push));
                let _ = write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            }
        });
        Moody { url, pushes }
    }

    /// The next push that it has taken; refused ones before.
    fn taken(&self) -> ExportMetricsServiceRequest {
        loop {
            let (is_taken, push) = self.pushes.recv_timeout(HANG).expect("a push");
            if is_taken {
                return push;
            }
        }
    }

    /// The variables of a server that pushes here, beside a proxy that it shall not use.
    fn variables(&self, temporality: &'static str) -> [(&'static str, String); 4] {
        [
            ("ALL_PROXY", "http://127.0.0.1:9".into()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", self.url.clone()),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1000".into()),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", temporality.into()),
        ]
    }
}

fn received(stream: &TcpStream) -> Option<ExportMetricsServiceRequest> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    ExportMetricsServiceRequest::decode(&*body).ok()
}

fn attribute<'a>(of: &'a [KeyValue], key: &str) -> Option<&'a str> {
    match of.iter().find(|of| of.key == key)?.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// Start, time and value of the requests of a route.
fn requests(of: &ResourceMetrics, group: &str) -> Option<(u64, u64, u64)> {
    let metrics = of.scope_metrics.iter().flat_map(|scope| &scope.metrics);
    let Some(Data::Sum(sum)) = &metrics.into_iter().find(|of| of.name == "dormouse.requests")?.data else {
        return None;
    };
    assert_eq!(sum.aggregation_temporality, 1, "differences");
    let point = sum.data_points.iter().find(|point| attribute(&point.attributes, "group") == Some(group))?;
    let Some(number_data_point::Value::AsInt(n)) = point.value else { panic!("{point:?}") };
    Some((point.start_time_unix_nano, point.time_unix_nano, n as u64))
}

/// A service that only this test finds by its name.
fn named(name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let program = tempfile::Builder::new().prefix("pushed").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let program = program.expect("a place");
    let path = program.path().join(name);
    std::fs::hard_link(DORMOUSE, &path).expect("a second name for the command");
    (program, path)
}

#[test]
fn differences_lose_and_repeat_nothing() {
    let collector = Moody::open();
    let (_program, path) = named("differs");
    let serving = Serving::with_variables(&collector.variables("delta"), ["differs"]);
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let service = Service::start_as(path.as_os_str(), runtime, |_| {}).expect("a service");
    let asks = |n| (0..n).for_each(|_| assert!(service.get("/menu").starts_with("HTTP/1.1 200")));
    // All of a service that is younger than the server, whatever the collector takes.
    let mut all: Vec<(u64, u64, u64)> = Vec::new();
    let mut push_until = |total: u64| {
        while all.iter().map(|(.., n)| n).sum::<u64>() < total {
            let push = collector.taken();
            all.extend(push.resource_metrics.first().and_then(|of| requests(of, "GET /menu")));
        }
        assert_eq!(all.iter().map(|(.., n)| n).sum::<u64>(), total, "{all:?}");
    };
    asks(3);
    push_until(3);
    asks(4);
    push_until(7);
    for pair in all.windows(2) {
        assert_eq!(pair[0].1, pair[1].0, "an interval begins where the one before ends: {all:?}");
    }
    drop(serving);
    // An earlier server may have pushed the counts from before, so the next one leaves them out.
    let collector = Moody::open();
    let _serving = Serving::with_variables(&collector.variables("lowmemory"), ["differs"]);
    while collector.taken().resource_metrics.is_empty() {}
    asks(5);
    let (mut sum, mut start) = (0, u64::MAX);
    while sum < 5 {
        let push = collector.taken();
        let of = push.resource_metrics.first().and_then(|of| requests(of, "GET /menu"));
        let (from, _, n) = of.unwrap_or_default();
        (sum, start) = (sum + n, start.min(from));
    }
    assert_eq!(sum, 5);
}

#[test]
fn services_in_containers_have_identities() {
    let is_allowed =
        Command::new("unshare").args(["-fp", "true"]).status().is_ok_and(|ended| ended.success());
    if !is_allowed {
        return skip("unshare makes no process namespaces here");
    }
    let collector = Moody::open();
    let (_program, path) = named("twins");
    let start = |_| {
        let mut command = Command::new("unshare");
        command.args(["-fp", "--kill-child"]).arg(&path).arg("teaparty");
        command.process_group(0);
        let runtime = tempfile::tempdir().expect("a temporary directory");
        Service::start_by(command, runtime, |_| {}).expect("a service")
    };
    let services: Vec<Service> = (0..6).map(start).collect();
    let _serving = Serving::with_variables(&collector.variables("cumulative"), ["twins"]);
    loop {
        let push = collector.taken();
        let resources = push.resource_metrics.iter().filter_map(|of| of.resource.as_ref());
        let ids = resources.filter_map(|of| attribute(&of.attributes, "service.instance.id"));
        let ids: std::collections::BTreeSet<&str> = ids.collect();
        assert_eq!(ids.len(), push.resource_metrics.len(), "{ids:?}");
        if ids.len() == services.len() {
            break;
        }
    }
}
