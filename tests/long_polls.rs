//! The long polls of a live service, as the command tells of them while they last.
//!
//! The service is this program, run once more.

use std::future::Future;
use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Read as _};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use dormouse::Group;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{RUNTIME_VARIABLES, Running, run};

/// A service with long polls, which ends with this.
struct BlockingService {
    child: Child,
    _runtime: TempDir,
}

impl BlockingService {
    fn start() -> BlockingService {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["long_polls::service", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a service");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let is_ready = lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("ready"));
        assert!(is_ready, "the service has ended");
        thread::spawn(move || lines.count());
        BlockingService { child, _runtime: runtime }
    }

    fn target(&self) -> String {
        self.child.id().to_string()
    }
}

impl Drop for BlockingService {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[inline(never)]
fn grinds_by_hand() {
    thread::sleep(Duration::from_millis(60));
    black_box(());
}

#[inline(never)]
fn counts_every_bean() {
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(60) {
        black_box(());
    }
}

fn polls(group: &str, future: impl Future<Output = ()>) {
    let task = pin!(Group::new(group).instrument(future));
    assert!(task.poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

/// The service: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn service() {
    dormouse::init().expect("an agent");
    for (group, work) in
        [("GET /grind", grinds_by_hand as fn()), ("GET /count", counts_every_bean), ("GET /quick", || ())]
    {
        thread::Builder::new()
            .name("barista".into())
            .spawn(move || {
                loop {
                    polls(group, async { work() });
                    thread::sleep(Duration::from_millis(20));
                }
            })
            .expect("a thread");
    }
    println!("ready");
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

#[test]
fn the_function_that_blocks_is_named() {
    let service = BlockingService::start();
    let wanted = ["tasks", &service.target(), "--long-poll", "10ms", "--group", "GET /grind"];
    let mut command = Running::start(wanted);
    let mut text = String::new();
    while !text.contains("grinds_by_hand (long_polls.rs:") || !text.contains("has ended after") {
        let line = command.line();
        assert!(!line.is_empty(), "it has ended: {text}");
        text.push_str(&line);
    }
    assert!(text.contains("GET /grind task ") && text.contains("thread barista ("), "{text}");
    assert!(!text.contains("GET /count") && !text.contains("GET /quick"), "{text}");
    let end = command.end_by(Signal::INT);
    assert_eq!(end.code, Some(0), "{end:?}");
}

#[test]
fn long_polls_have_json() {
    let service = BlockingService::start();
    let mut command = Running::start(["tasks", &service.target(), "--long-poll", "10ms", "--json"]);
    let mut reports: Vec<Value> = Vec::new();
    let names = |reports: &[Value], function: &str| {
        reports.iter().any(|report| {
            let frames = report["frames"].as_array().cloned().unwrap_or_default();
            frames.iter().any(|frame| frame["function"].as_str().is_some_and(|name| name.contains(function)))
        })
    };
    while !(names(&reports, "grinds_by_hand") && names(&reports, "counts_every_bean")) {
        let line = command.line();
        let report = serde_json::from_str(&line);
        reports.push(report.unwrap_or_else(|why| panic!("{why}: {line:?}")));
    }
    assert_eq!(command.end_by(Signal::INT).code, Some(0));
    // A quick one that is preempted in the midst is long, too.
    let quick = reports.iter().filter(|report| report["group"] == "GET /quick").count();
    assert!(quick <= reports.len() / 4 + 1, "{quick} of {}", reports.len());
    for report in &reports {
        assert!(report["lasted_ns"].as_u64() >= Some(10_000_000), "{report}");
        let has_frames = report["frames"].as_array().is_some_and(|frames| !frames.is_empty());
        assert_eq!(report["over"] == Value::Bool(true), !has_frames && report["no_stack"].is_null());
    }
}

#[test]
fn without_long_polls_the_command_fails() {
    let service = BlockingService::start();
    let long = run(["tasks", &service.target(), "--long-poll", "1h", "--for", "200ms"]);
    assert_eq!((long.code, long.stdout.as_str()), (Some(1), ""), "{long:?}");
    let short = run(["tasks", &service.target(), "--long-poll", "1us"]);
    assert!(short.code != Some(0) && short.stderr.contains("from 1 ms to 24 h"), "{short:?}");
}
