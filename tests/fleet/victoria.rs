//! `VictoriaMetrics` scrapes `dormouse serve`, and takes what it pushes.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::daemon::{Daemon, cached, found};
use super::serving::Serving;
use crate::support::{Service, skip};

/// The version that `cargo xtask fleet` builds. The first that took OTLP by its standard form is
/// older, and Debian's is older than that.
const BUILT: &str = "victoria-metrics-1.110.0/victoria-metrics";

/// A database in a directory of its own.
fn start(program: &Path, scrapes: Option<&Serving>) -> Daemon {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(program);
    command
        .arg("-httpListenAddr=127.0.0.1:0")
        .arg("-search.latencyOffset=0s")
        .arg("-memory.allowedBytes=128MB");
    command.arg(format!("-storageDataPath={}", directory.path().join("data").display()));
    if let Some(serving) = scrapes {
        let config = format!(
            "scrape_configs:
  - job_name: dormouse
    scrape_interval: 1s
    authorization: {{credentials_file: {token}}}
    static_configs: [{{targets: ['127.0.0.1:{port}']}}]
",
            token = serving.token_file().display(),
            port = serving.daemon.port(),
        );
        let file = directory.path().join("scrape.yml");
        std::fs::write(&file, config).expect("a file");
        command.arg(format!("-promscrape.config={}", file.display()));
    }
    Daemon::start(command, directory)
}

/// The series that an expression gives, as soon as there are any.
#[track_caller]
fn await_series(daemon: &mut Daemon, query: &str) -> Vec<Value> {
    daemon.await_some(query, |daemon| {
        let request = ureq::get(daemon.url("/api/v1/query")).query("query", query).query("nocache", "1");
        let text = request.call().ok()?.body_mut().read_to_string().ok()?;
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        answer["data"]["result"].as_array().filter(|series| !series.is_empty()).cloned()
    })
}

fn value(series: &Value) -> f64 {
    series["value"][1].as_str().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{series}"))
}

#[test]
fn victoria_scrapes_what_is_served() {
    let Some(program) = found("victoria-metrics") else { return skip("victoria-metrics is not installed") };
    let service = Service::visited();
    let serving = Serving::of(&service);
    let mut victoria = start(&program, Some(&serving));
    let per_request = "rate(dormouse_cpu_time_seconds_total{group='GET /blend'}[10s])
                       / ignoring(outcome) rate(dormouse_requests_total{group='GET /blend',outcome='completed'}[10s])";
    let series = await_series(&mut victoria, per_request);
    assert!(value(&series[0]) > 0.0, "{series:?}");
    let polls = await_series(&mut victoria, "dormouse_polls_total{group='GET /blend'}");
    assert_eq!(polls[0]["metric"]["pid"], service.target(), "{polls:?}");
}

#[test]
fn victoria_takes_what_is_pushed() {
    let Some(program) = cached(BUILT) else {
        return skip("VictoriaMetrics with OTLP is not built; cargo xtask fleet does it");
    };
    let mut victoria = start(&program, None);
    let service = Service::visited();
    let _serving = Serving::with(
        &service,
        &[
            ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", &victoria.url("/opentelemetry/api/v1/push")),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "500"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=fleet"),
        ],
    );
    // The names have dots here unless the database is told otherwise.
    let requests = await_series(&mut victoria, "{__name__=~'dormouse.requests.*',group='GET /blend'} > 0");
    let labels = &requests[0]["metric"];
    assert_eq!(labels["process.pid"], service.target(), "{labels}");
    assert_eq!(labels["deployment.environment.name"], "fleet", "{labels}");
    assert!(value(&requests[0]) > 0.0);
}
