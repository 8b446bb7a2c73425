//! Prometheus scrapes `dormouse serve` and answers queries.

use std::process::Command;

use serde_json::Value;

use super::daemon::{Daemon, found};
use super::serving::Serving;
use crate::support::{Service, run, skip};

/// The route that uses most of the CPU under load.
const HOT: &str = "GET /blend";

/// Prometheus as it scrapes one target.
pub(super) struct Prometheus {
    daemon: Daemon,
}

impl Prometheus {
    /// One that scrapes each second, with the token from its file. `None` where it is not
    /// installed.
    #[track_caller]
    pub(super) fn scraping(serving: &Serving, features: &str) -> Option<Prometheus> {
        let Some(program) = found("prometheus") else {
            skip("prometheus is not installed");
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let config = format!(
            "global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: dormouse
    authorization: {{credentials_file: {token}}}
    static_configs: [{{targets: ['127.0.0.1:{port}']}}]
",
            token = serving.token_file().display(),
            port = serving.daemon.port(),
        );
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, config).expect("a file");
        let mut command = Command::new(program);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
        command.args(["--web.listen-address=127.0.0.1:0", "--log.level=warn"]);
        command.arg(format!("--enable-feature={features}"));
        let mut daemon = Daemon::start(command, directory);
        let ready = daemon.url("/-/ready");
        daemon.await_some("it is ready", |_| ureq::get(&ready).call().ok());
        Some(Prometheus { daemon })
    }

    /// The value of an expression, as soon as it has one that is good.
    #[track_caller]
    pub(super) fn value(&mut self, query: &str, is_good: impl Fn(f64) -> bool) -> f64 {
        self.daemon.await_some(query, |daemon| {
            let data = api(daemon, "/api/v1/query", &[("query", query)]);
            let value = data["result"].as_array()?.first()?["value"][1].as_str()?.parse::<f64>().ok()?;
            (value.is_finite() && is_good(value)).then_some(value)
        })
    }
}

/// The labels of the exemplars of these series, as soon as there are any.
#[track_caller]
pub(super) fn exemplars(prometheus: &mut Prometheus, query: &str) -> Vec<Value> {
    prometheus.daemon.await_some("exemplars", |daemon| {
        let window = [("query", query), ("start", "0"), ("end", "99999999999")];
        let data = api(daemon, "/api/v1/query_exemplars", &window);
        let series = data.as_array()?.iter().filter_map(|series| series["exemplars"].as_array());
        let labels: Vec<_> = series.flatten().map(|exemplar| exemplar["labels"].clone()).collect();
        (!labels.is_empty()).then_some(labels)
    })
}

fn api(daemon: &Daemon, path: &str, parameters: &[(&str, &str)]) -> Value {
    let request = ureq::get(daemon.url(path)).query_pairs(parameters.iter().copied());
    let mut answer = request.config().http_status_as_error(false).build().call().expect("an answer");
    let text = answer.body_mut().read_to_string().expect("an answer");
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(answer["status"], "success", "{answer}");
    answer["data"].clone()
}

/// The scale of native histograms.
const SCALE: f64 = 2.0;

/// The requests of a group, as the agent has them.
#[derive(Debug)]
struct Requests {
    count: u64,
    sum: f64,
    /// The ends of each bucket of metrics, in seconds, and how many are in it.
    buckets: Vec<([f64; 2], u64)>,
}

impl Requests {
    fn of(totals: &Value, group: &str) -> Requests {
        let groups = totals["groups"].as_array().expect("groups");
        let row = groups.iter().find(|row| row["name"] == group).unwrap_or_else(|| panic!("{totals}"));
        let row = &row["waits"]["requests"];
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{row}"));
        // The agent's buckets are finer than those of metrics.
        let (width, merged) = (2_f64.powf((-SCALE).exp2()), (number(&row["scale"]) - SCALE).exp2());
        let zero = number(&row["zero_threshold_ns"]) / 1e9;
        let mut buckets = vec![([0.0, zero], number(&row["zero_count"]) as u64)];
        for pair in row["buckets"].as_array().expect("buckets") {
            let end = |index: f64| width.powf(index) * number(&row["unit_ns"]) / 1e9;
            let index = (number(&pair[0]) / merged).floor();
            let (ends, count) = ([end(index), end(index + 1.0)], number(&pair[1]) as u64);
            match buckets.last_mut() {
                Some((same, all)) if same[0].to_bits() == ends[0].to_bits() => *all += count,
                _ => buckets.push((ends, count)),
            }
        }
        let count = buckets.iter().map(|(_, count)| count).sum();
        Requests { count, sum: number(&row["sum_ns"]) / 1e9, buckets }
    }

    /// The ends of the bucket that has this quantile.
    fn quantile(&self, quantile: f64) -> (f64, f64) {
        let mut left = quantile * self.count as f64;
        let bucket = self.buckets.iter().find(|(_, count)| {
            left -= *count as f64;
            *count > 0 && left <= 0.0
        });
        bucket.expect("a request").0.into()
    }
}

/// `is` agrees with `should` to a part of it.
#[track_caller]
fn assert_near(is: f64, should: f64, part: f64) {
    assert!((is - should).abs() <= part * should, "{is} instead of {should}");
}

#[test]
fn prometheus_has_burn_rates_of_objectives() {
    let service = Service::visited();
    let (slow, quick) = ("99% < 1us", "99% < 1h");
    let objectives = format!("{HOT}: {slow}; GET *: {quick}");
    let serving = Serving::start(service.runtime(), &[&service.target(), "--objective", &objectives], &[]);
    let Some(mut prometheus) = Prometheus::scraping(&serving, "") else { return };
    // As sloth has it, and as pyrra makes it of two metrics: those that missed it, of all.
    let part = |file: &str, key: &str| {
        let mut lines = file.lines().map(str::trim_start);
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).expect("a query").to_owned()
    };
    let (sloth, pyrra) =
        (include_str!("../../examples/slo/sloth.yml"), include_str!("../../examples/slo/pyrra.yml"));
    let [errors, total] = ["errors:", "total:"].map(|key| pyrra.split_once(key).expect("a metric").1);
    let rate = |metric: &str| format!("sum(rate({}[30s]))", part(metric, "metric"));
    let burns = [
        format!("{} / {}", part(sloth, "error_query"), part(sloth, "total_query")),
        format!("{} / {}", rate(errors), rate(total)),
    ];
    for burn in burns {
        let missed = |objective: &str| {
            let own = burn.replace("GET /menu", HOT).replace("99.9% < 250ms", objective);
            own.replace("{{.window}}", "30s")
        };
        assert_near(prometheus.value(&missed(slow), |_| true), 1.0, 1e-9);
        assert!(prometheus.value(&missed(quick), |_| true).abs() < 1e-9);
    }
    let target = format!(r#"dormouse_objective_target_ratio{{group="{HOT}",objective="{quick}"}}"#);
    assert_near(prometheus.value(&target, |_| true), 0.99, 1e-9);
}

#[test]
fn prometheus_has_outcomes_calls_and_runtimes() {
    let service = Service::visited();
    let serving = Serving::of(&service);
    let Some(mut prometheus) = Prometheus::scraping(&serving, "") else { return };
    let completed = format!(r#"dormouse_requests_total{{group="{HOT}",outcome="completed"}}"#);
    prometheus.value(&completed, |requests| requests > 0.0);
    let of = |metric: &str| format!(r#"sum({metric}{{group=~"GET .*",kind="sql",peer=~"SELECT .*"}})"#);
    let calls = of("dormouse_call_duration_seconds_count");
    prometheus.value(&calls, |calls| calls > 0.0);
    // Those of the last bucket are all.
    let bucket = r#"sum(dormouse_call_duration_seconds_bucket{group=~"GET .*",kind="sql",peer=~"SELECT .*",le="+Inf"})"#;
    assert_near(prometheus.value(&format!("{bucket} - {calls}"), |_| true), 0.0, 0.0);
    for other in ["dormouse_calls_failed_total", "dormouse_calls_cancelled_total"] {
        assert_near(prometheus.value(&of(other), |_| true), 0.0, 0.0);
    }
    assert!(prometheus.value(r#"dormouse_runtime_workers{runtime="tea"}"#, |_| true) >= 1.0);
    prometheus
        .value(r#"rate(dormouse_runtime_busy_time_seconds_total{runtime="tea"}[30s])"#, |busy| busy > 0.0);
}

#[test]
fn prometheus_has_bodies_and_connections() {
    const TIMES: u32 = 7;
    let service = Service::idle();
    let serving = Serving::of(&service);
    let Some(mut prometheus) = Prometheus::scraping(&serving, "") else { return };
    serving.totals(&service);
    let guest = service.connect();
    (0..TIMES).for_each(|_| assert!(service.get("/blend").starts_with("HTTP/1.1 200")));
    let bodies = |suffix: &str, le: &str| {
        format!(r#"dormouse_request_body_duration_seconds_{suffix}{{group="{HOT}"{le}}}"#)
    };
    for all in [bodies("count", ""), bodies("bucket", r#",le="+Inf""#)] {
        prometheus.value(&all, |count| (count - f64::from(TIMES)).abs() < 0.5);
    }
    assert!(prometheus.value(&bodies("sum", ""), |_| true) >= 0.0);
    let connections = |metric: &str| format!(r#"{metric}{{group="connections"}}"#);
    prometheus.value(&connections("dormouse_tasks_long_lived"), |alive| (alive - 1.0).abs() < 0.5);
    prometheus.value(&connections("dormouse_tasks_long_lived_age_seconds"), |age| age >= 1.0);
    // They are no requests, and the route has no streams.
    let requests = format!("sum({})", connections("dormouse_requests_total"));
    assert!(prometheus.value(&requests, |_| true).abs() < 0.5);
    let streams = r#"count({__name__=~"dormouse_stream_.*"}) or vector(0)"#;
    assert!(prometheus.value(streams, |_| true).abs() < 0.5);
    drop(guest);
    prometheus.value(&connections("dormouse_tasks_long_lived"), |alive| alive.abs() < 0.5);
}

#[test]
fn a_query_gives_cpu_per_request() {
    let service = Service::visited();
    let serving = Serving::of(&service);
    let Some(mut prometheus) = Prometheus::scraping(&serving, "") else { return };
    let scrapes =
        format!(r#"count_over_time(dormouse_requests_total{{group="{HOT}",outcome="completed"}}[1m])"#);
    prometheus.value(&scrapes, |scrapes| scrapes >= 2.0);
    // Both look at the same service at the same time, through agents' conversations of their own.
    let own = run(["--json", "stat", &service.target(), "--for", "5s"]).json();
    let per_request = format!(
        r#"rate(dormouse_cpu_time_seconds_total{{group="{HOT}"}}[5s])
           / on(group, process, pid) sum without (outcome) (rate(dormouse_requests_total{{group="{HOT}"}}[5s]))"#
    );
    let found = prometheus.value(&per_request, |value| value > 0.0);
    let groups = own["groups"].as_array().expect("groups");
    let hot = groups.iter().find(|group| group["name"] == HOT).unwrap_or_else(|| panic!("{own}"));
    let number = |field: &str| hot[field].as_f64().unwrap_or_else(|| panic!("no {field} in {hot}"));
    // Windows of five seconds that begin up to a scrape apart, of a load by chance.
    assert_near(found, number("cpu_ns") / number("requests") / 1e9, 0.3);

    // The target is up, and its points say which process they are of.
    assert_eq!(prometheus.value("up", |_| true).to_bits(), 1_f64.to_bits());
    let labelled = format!(r#"dormouse_polls_total{{group="{HOT}",pid="{}"}}"#, service.pid());
    prometheus.value(&labelled, |polls| polls > 0.0);
}

#[test]
fn native_histograms_have_our_buckets() {
    let service = Service::idle();
    let serving = Serving::of(&service);
    let Some(mut prometheus) = Prometheus::scraping(&serving, "native-histograms") else { return };
    // The conversation with the agent is there: what happens now is counted, and then nothing more.
    serving.totals(&service);
    let routes = [("/menu", 31_i32), ("/blend", 9)];
    for (path, times) in routes {
        (0..times).for_each(|_| assert!(service.get(path).starts_with("HTTP/1.1 200")));
    }
    let requests = "dormouse_request_duration_seconds";
    for (path, times) in routes {
        let own = format!(r#"{requests}{{group="GET {path}"}}"#);
        // Without a native histogram there is no such count.
        prometheus.value(&format!("histogram_count({own})"), |count| (count - f64::from(times)).abs() < 0.5);
        let agents = Requests::of(&serving.totals(&service), &format!("GET {path}"));
        assert_eq!(agents.count, times as u64);
        let sum = prometheus.value(&format!("histogram_sum({own})"), |_| true);
        assert_near(sum, agents.sum, 1e-9);
        for quantile in [0.1, 0.5, 0.9, 0.99] {
            let found = prometheus.value(&format!("histogram_quantile({quantile}, {own})"), |_| true);
            let (below, above) = agents.quantile(quantile);
            // Both ends by floating point.
            assert!(below * 0.999_999 <= found && found <= above * 1.000_001, "{found} of {agents:?}");
        }
    }
    let bodies =
        format!(r#"histogram_count(dormouse_request_body_duration_seconds{{group="GET {}"}})"#, routes[0].0);
    prometheus.value(&bodies, |count| (count - f64::from(routes[0].1)).abs() < 0.5);
    prometheus.value(r#"sum(dormouse_tasks_long_lived{group=~"GET .*"})"#, |alive| alive.abs() < 0.5);
    // Histograms of several groups have bounds in common.
    let all = format!(r#"histogram_count(sum({requests}{{group=~"GET /menu|GET /blend"}}))"#);
    prometheus.value(&all, |count| (count - 40.0).abs() < 0.5);
}

#[test]
fn exemplars_are_stored() {
    let service = Service::visited();
    let serving = Serving::of(&service);
    let Some(mut prometheus) = Prometheus::scraping(&serving, "exemplar-storage") else { return };
    let requests = "dormouse_request_duration_seconds_bucket";
    prometheus.value(&format!("count({requests})"), |buckets| buckets > 0.0);
    let found = prometheus.daemon.await_some("exemplars", |daemon| {
        let window = [("query", requests), ("start", "0"), ("end", "99999999999")];
        let data = api(daemon, "/api/v1/query_exemplars", &window);
        data.as_array().filter(|series| !series.is_empty()).cloned()
    });
    for series in &found {
        let above =
            series["seriesLabels"]["le"].as_str().and_then(|le| le.parse().ok()).unwrap_or(f64::INFINITY);
        for exemplar in series["exemplars"].as_array().expect("exemplars") {
            let value: f64 = exemplar["value"].as_str().and_then(|it| it.parse().ok()).expect("a number");
            assert!(value > 0.0 && value <= above, "{series}");
            let labels = &exemplar["labels"];
            let task = labels["task"].as_str().and_then(|task| task.parse::<u64>().ok());
            let trace = labels["trace_id"].as_str().filter(|id| id.len() == 32);
            assert!(task.is_some() || trace.is_some(), "{series}");
        }
    }
}
