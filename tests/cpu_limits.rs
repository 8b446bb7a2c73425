//! A process at its CPU limit, in a real control group of version 1 or 2, where root may make one.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use dormouse_testkit::{LimitedGroup, eventually};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{RUNTIME_VARIABLES, Service, run};

/// A process that computes on two threads; it ends with this.
struct Busy {
    child: Child,
    _runtime: TempDir,
}

impl Busy {
    fn start(limit: &LimitedGroup) -> Busy {
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["cpu_limits::service", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        for variable in RUNTIME_VARIABLES {
            command.env_remove(variable);
        }
        command.env("DORMOUSE_RUNTIME_DIR", runtime.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a service");
        limit.admit_inside(child.id());
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert!(lines.by_ref().map_while(Result::ok).any(|line| line.ends_with("ready")), "it has ended");
        thread::spawn(move || lines.count());
        Busy { child, _runtime: runtime }
    }

    fn stat(&self) -> Value {
        let run = run(["stat", &self.child.id().to_string(), "--for", "500ms", "--json"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        run.json()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn service() {
    dormouse::init().expect("an agent");
    for _ in 0..2 {
        thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    println!("ready");
    let _end = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

#[test]
fn a_limit_around_the_process_is_named() {
    let Some(cpu_limit) = LimitedGroup::make(Duration::from_millis(5)) else { return };
    let busy = Busy::start(&cpu_limit);
    let limits = |document: &Value| document["process"]["cpu_limits"].clone();
    let mut seen = Value::Null;
    // Active periods count from the first that ends.
    eventually(|| {
        seen = busy.stat();
        limits(&seen)["groups"][0]["throttled_periods"].as_u64().is_some_and(|periods| periods > 0)
    });
    let limit = &limits(&seen)["groups"][0];
    assert!(limit["path"].as_str().is_some_and(|path| path.ends_with(cpu_limit.name())), "{seen}");
    assert_eq!((&limit["quota_us"], &limit["period_us"]), (&5_000.into(), &100_000.into()), "{seen}");
    let number = |key: &str| limit[key].as_u64().unwrap_or_else(|| panic!("{key}: {seen}"));
    assert!(number("throttled_periods") <= number("periods") && number("throttled_ns") > 0, "{seen}");
    let pid = busy.child.id().to_string();
    let text = run(["stat", &pid, "--for", "500ms"]).stdout;
    assert!(text.contains("of its active periods; the limit of ") && text.contains("is 0.05 CPU"), "{text}");
    let doctor = run(["doctor", &pid]).stdout;
    let line = doctor.lines().find(|line| line.contains("host.cpu_limit"));
    assert!(line.is_some_and(|line| line.contains("throttled in ")), "{doctor}");
    assert!(doctor.contains("host.cpu_limit: to change it, raise the limit"), "{doctor}");
}

#[test]
fn pressure_is_known_where_it_is_shown() {
    let service = Service::idle();
    let stat = run(["stat", &service.target(), "--for", "100ms", "--json"]).json();
    let host = &stat["process"]["pressure"]["host"];
    for resource in ["memory", "io"] {
        let text = fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap_or_default();
        let is_known = host[format!("{resource}_ns")].is_u64();
        assert_eq!(is_known, text.contains("\nfull "), "{resource}: {stat}");
    }
    assert!(host["cpu_ns"].is_null(), "the kernel counts none: {stat}");
    assert!(run(["doctor", &service.target()]).stdout.contains("host.pressure"));
}
