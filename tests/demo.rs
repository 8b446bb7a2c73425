//! `dormouse demo`, and the service that it starts.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{HANG, Running, command, finish, run, signal_to};

#[test]
fn the_demo_shows_routes_records_and_summary() {
    let demo = run(["demo", "--for", "4s", "--plain"]);
    assert_eq!(demo.code, Some(0), "{demo:?}");
    assert_eq!(demo.stdout.matches("(process)").count(), 5, "tables and the sum: {}", demo.stdout);
    for part in
        ["all on: ", "all off: ", "menu.read", "requests served", "no error", " keys, ", "CPU us/REQUEST"]
    {
        assert!(demo.stdout.contains(part), "no {part:?} in {}", demo.stdout);
    }

    let demo = run(["--json", "demo", "--for", "4s"]);
    assert_eq!(demo.code, Some(0), "{demo:?}");
    let lines = demo.json_lines();
    let summary = lines.last().expect("a summary");
    assert_eq!((&summary["type"], &summary["errors"]), (&"summary".into(), &0.into()));
    assert!(summary["served"].as_u64() > Some(100) && summary["on"]["sites"].as_u64() > Some(0), "{summary}");
    assert_eq!(summary["on"]["sites"], summary["off"]["sites"]);
    let routes = summary["routes"].as_array().expect("routes");
    assert!(routes.len() >= 4);
    for route in routes {
        assert!(route["cpu_ns"].as_u64() > Some(0) && route["served"].as_u64() > Some(0), "{route}");
    }
    assert!(lines.iter().any(|line| line["type"] == "record" && line["probe"].is_string()));
}

#[test]
fn a_demo_whose_service_dies_says_so() {
    let mut demo = Running::start(["--json", "demo", "--for", "1m"]);
    let start: Value = serde_json::from_str(&demo.line()).expect("JSON");
    signal_to(
        start["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process id"),
        Signal::KILL,
    );
    let ended = demo.end();
    assert!(
        ended.code == Some(1) && ended.stderr.contains("the demo's service ended: signal: 9"),
        "{ended:?}"
    );
}

#[test]
fn a_demo_works_without_a_runtime_directory() {
    let mut command = command(["demo", "--for", "1s", "--plain"]);
    command.env("DORMOUSE_RUNTIME_DIR", "/proc/nowhere");
    let run = finish(command);
    assert!(run.code == Some(0) && run.stdout.contains("GET /menu"), "{run:?}");
}

#[test]
fn an_interrupted_demo_ends_its_service() {
    let mut demo = Running::start(["--json", "demo", "--for", "1m"]);
    let start: Value = serde_json::from_str(&demo.line()).expect("JSON");
    let ended = demo.end_by(Signal::INT);
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(!std::path::Path::new(&format!("/proc/{}", start["pid"])).exists(), "no service stays behind");
}

#[test]
fn a_killed_demo_ends_its_service() {
    let mut child = command(["--json", "demo", "--for", "1m"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a demo");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let start: Value = serde_json::from_str(&line).expect("JSON");
    child.kill().expect("a demo to kill");
    child.wait().expect("its end");
    let service = format!("/proc/{}", start["pid"]);
    let begun = std::time::Instant::now();
    while std::path::Path::new(&service).exists() {
        assert!(begun.elapsed() < HANG, "{service} lives on");
        std::thread::yield_now();
    }
}
