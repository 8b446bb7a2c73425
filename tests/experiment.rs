//! `dormouse experiment`: it finds what a key costs, keeps others out, and leaves everything as it
//! was, whichever way it ends.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Run, Running, Service, run, with_guest};

const TAX: &str = "teaparty.tax";
/// On while an experiment lasts.
const ALONE: &str = "dormouse.experiment";

fn experiment(service: &Service, key: &str, args: &[&str]) -> Run {
    run([&["--json", "experiment", &service.target(), key][..], args].concat())
}

/// An experiment that runs until the test ends it.
fn begun(service: &Service) -> Running {
    let running = Running::start(["experiment", &service.target(), TAX, "--for", "10m"]);
    service.await_keys_on(ALONE, |on| on == 1);
    service.await_keys_on(TAX, |on| on == 1);
    running
}

#[track_caller]
fn assert_as_before(service: &Service) {
    service.await_keys_on(TAX, |on| on == 0);
    service.await_keys_on(ALONE, |on| on == 0);
}

/// The document of an experiment that had requests, if perhaps too few: the machine may be slow.
#[track_caller]
fn judged_or_not(run: &Run) -> Value {
    let is_short = run.code == Some(1) && run.stderr.contains("enough requests");
    assert!(run.code == Some(0) || is_short, "{run:?}");
    run.json()
}

fn rows(document: &Value) -> &Vec<Value> {
    document["rows"].as_array().expect("rows")
}

#[test]
fn a_large_cost_is_found_by_group() {
    let service = Service::start(|command| {
        command.args(["--tax", "200"]);
    });
    let run = with_guest(&service, "/menu", || experiment(&service, TAX, &["--for", "60s"]));
    assert_eq!(run.code, Some(0), "{run:?}");
    let found = run.json();
    assert_eq!(
        (&found["type"], &found["keys"][0], &found["unit"]),
        (&"experiment".into(), &TAX.into(), &"ns".into())
    );
    let more = rows(&found).iter().filter(|row| row["verdict"] == "more");
    assert!(more.clone().any(|row| row["group"].is_string()), "{found}");
    for row in more {
        let [change, low, high] =
            ["change_percent", "low_percent", "high_percent"].map(|key| row[key].as_f64());
        assert!(low <= change && low > Some(0.0) && high > Some(0.0), "{row}");
        // The average of groups has no figures.
        assert!(row["of"] == "average" || row["on"].as_f64() > row["off"].as_f64(), "{row}");
    }
    assert!(found["switches"].as_u64() > Some(10) && found["switch_ns"].as_u64() > Some(0), "{found}");
    // Its last request gave all back, before the command returned.
    assert_eq!((service.keys_on(TAX), service.keys_on(ALONE)), (0, 0));
    service.assert_alive();
}

/// Twice in a thousand times it would be wrong.
#[test]
fn a_key_that_nothing_reads_costs_nothing() {
    let service = Service::idle();
    let run = with_guest(&service, "/menu", || experiment(&service, "teaparty.nothing", &["--for", "5s"]));
    let found = judged_or_not(&run);
    assert!(
        rows(&found).iter().all(|row| row["verdict"] == "nothing" || row["verdict"] == "too-few"),
        "{found}"
    );
}

#[test]
fn a_glob_is_one_experiment() {
    let service = Service::idle();
    let args = ["--for", "2s", "--metric", "alloc-count"];
    let run = with_guest(&service, "/menu", || experiment(&service, "teaparty.*", &args));
    let found = judged_or_not(&run);
    assert_eq!(found["keys"], serde_json::json!(["teaparty.nothing", TAX]));
    assert_eq!((&found["metric"], &found["unit"]), (&"alloc-count".into(), &"1".into()));
    let menu = rows(&found).iter().find(|row| row["group"] == "GET /menu").expect("a row of the menu");
    assert!(menu["off"].as_f64() > Some(1.0) && menu["on"].as_f64() > Some(1.0), "{menu}");
}

/// A client that publishes holds this key, too: the experiment switches it all the same.
#[test]
fn publishing_can_be_experimented_with() {
    let service = Service::idle();
    let run = with_guest(&service, "/menu", || experiment(&service, "dormouse.publish", &["--for", "2s"]));
    let found = judged_or_not(&run);
    assert!(found["switches"].as_u64() > Some(10), "{found}");
    assert_eq!(service.keys_on("dormouse.publish"), 0);
}

#[test]
fn latencies_are_compared_by_mean() {
    let service = Service::idle();
    let args = ["--for", "2s", "--metric", "latency"];
    let run = with_guest(&service, "/steep?ms=5", || experiment(&service, "teaparty.nothing", &args));
    let found = judged_or_not(&run);
    let steep = rows(&found).iter().find(|row| row["group"] == "GET /steep" && row["statistic"] == "mean");
    // It sleeps for 5 ms.
    assert!(steep.expect("a row of the steep")["off"].as_f64() > Some(5e6), "{found}");
}

#[test]
fn text_has_a_row_for_each_group() {
    let service = Service::idle();
    let run = with_guest(&service, "/menu", || {
        run(["experiment", &service.target(), "teaparty.nothing", "--for", "2s"])
    });
    for part in ["what teaparty.nothing costs", "GROUP", "CHANGE", "GET /menu", "looking took"] {
        assert!(run.stdout.contains(part), "no {part:?} in {}", run.stdout);
    }
}

#[test]
fn a_second_experiment_is_refused() {
    let service = Service::idle();
    let first = begun(&service);
    let by = format!("already, by process {} (dormouse experiment ", first.pid());
    // Also with another key.
    experiment(&service, "teaparty.nothing", &["--for", "2s"])
        .assert_fails(1, &["an experiment is running", &by]);
    let first = first.end_by(Signal::INT);
    assert_eq!(first.code, Some(0), "{first:?}");
    assert!(first.stdout.contains("what teaparty.tax costs"), "{first:?}");
    assert_eq!((service.keys_on(TAX), service.keys_on(ALONE)), (0, 0));
    let next = experiment(&service, "teaparty.nothing", &["--for", "1s"]);
    assert!(next.stderr.contains("has ended a request"), "it was let in, and nobody asked: {next:?}");
}

#[test]
fn a_killed_experiment_leaves_nothing_on() {
    let service = Service::idle();
    begun(&service).end_by(Signal::KILL);
    assert_as_before(&service);
}

#[test]
fn an_experiment_ends_with_its_service() {
    let mut service = Service::idle();
    let running = begun(&service);
    service.kill();
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("ended, or closed the connection"), "{ended:?}");
}

#[test]
fn another_hand_at_the_switch_ends_it() {
    let service = Service::idle();
    let running = begun(&service);
    assert_eq!(run(["on", &service.target(), TAX, "--keep"]).code, Some(0));
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("another client switches them"), "{ended:?}");
    service.await_keys_on(ALONE, |on| on == 0);
    // The other hand's request stands.
    assert_eq!(service.keys_on(TAX), 1);
}

#[test]
fn keys_that_would_not_go_off_are_refused() {
    let service = Service::idle();
    let target = &service.target();
    let refused = |parts: &[&str]| experiment(&service, TAX, &["--for", "2s"]).assert_fails(1, parts);
    run(["on", target, TAX, "--keep"]);
    refused(&["it was left on for good", "dormouse off"]);
    run(["reset", target, TAX]);
    run(["on", target, ALONE, "--keep"]);
    refused(&[ALONE, "it was left on for good"]);
    run(["reset", target, ALONE]);
    let mut other = Running::start(["on", target, TAX]);
    other.line();
    refused(&["held by process", &other.pid().to_string()]);
    other.end_by(Signal::INT);
    assert_as_before(&service);
    run(["on", target, TAX, "--for", "10m"]);
    refused(&["held by user"]);
    assert_eq!(service.keys_on(TAX), 1, "what is refused changes nothing");
}

#[test]
fn wrong_keys_and_metrics_are_refused() {
    let service = Service::idle();
    experiment(&service, "teaparty.tix", &[]).assert_fails(1, &["no key matches", TAX]);
    experiment(&service, ALONE, &[]).assert_fails(2, &["while any experiment lasts"]);
    experiment(&service, TAX, &["--metric", "alloc-counts"])
        .assert_fails(2, &["no event is called", "alloc-count"]);
    experiment(&service, TAX, &["--metric", "a,b"]).assert_fails(2, &["cpu-per-request, latency"]);
    experiment(&service, TAX, &["--for", "0s"]).assert_fails(2, &["more than nothing"]);
    assert_eq!((service.keys_on(TAX), service.keys_on(ALONE)), (0, 0));
}

#[test]
fn a_service_without_requests_is_no_null() {
    let service = Service::idle();
    experiment(&service, TAX, &["--for", "1s"]).assert_fails(1, &["no group of", "has ended"]);
    assert_as_before(&service);
}
