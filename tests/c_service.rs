//! A service of C and one of C++, compiled against the installed library, answer the command as a Rust one does.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod support;
#[path = "../crates/capi/tests/installed/tools.rs"]
mod tools;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use support::{Running, run};
use tempfile::TempDir;
use tools::{Build, GCC, Language, Link};

/// The program, running.
struct Service {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _runtime: TempDir,
}

impl Service {
    fn start(language: Language, link: Link) -> Service {
        let build = Build::new(&format!("service-{language:?}"), GCC, "-O2");
        let program = build.link("tea", &[build.compile("service.c", language, &[])], link, &[]);
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut child = Command::new(program)
            .env("LD_LIBRARY_PATH", tools::prefix().join("lib"))
            .env("DORMOUSE_RUNTIME_DIR", runtime.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the service");
        let stdin = child.stdin.take().expect("its standard input");
        let stdout = BufReader::new(child.stdout.take().expect("its standard output"));
        let mut service = Service { child, stdin, stdout, _runtime: runtime };
        assert_eq!(service.line(), "ready");
        service
    }

    fn target(&self) -> String {
        self.child.id().to_string()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Has it brew, and gives what it says of its keys.
    fn brew(&mut self) -> String {
        self.stdin.write_all(b"brew\n").expect("a service that reads");
        self.line()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ok<const N: usize>(args: [&str; N]) -> Value {
    let run = run(args);
    assert_eq!(run.code, Some(0), "{args:?}: {}", run.stderr);
    run.json()
}

fn check(language: Language, link: Link) {
    let as_cxx = language == Language::CAsCxx;
    let mut service = Service::start(language, link);
    let target = &*service.target();
    assert_eq!(service.brew(), "milk 0 sugar 1 evaluated 0");

    // It lists.
    let listed = ok(["--json", "keys", target]);
    let keys = listed["keys"].as_array().expect("a list");
    let key = |name: &str| keys.iter().find(|key| key["name"] == name).unwrap_or_else(|| panic!("{listed}"));
    // One of them is dormouse's own.
    key("dormouse.switch");
    assert_eq!(keys.len(), if as_cxx { 7 } else { 6 }, "{listed}");
    let milk = key("flags.milk");
    assert_eq!((&milk["kind"], &milk["on"], &milk["sites"]), (&json!("key"), &json!(false), &json!(1)));
    let source = include_str!("../crates/capi/tests/programs/service.c");
    let line = 1 + source.lines().position(|line| line.contains("flags.milk")).expect("its definition");
    assert!(milk["file"] == "service.c" && milk["line"] == line && milk["object"] == "tea", "{milk}");
    assert_eq!(key("flags.sugar")["on"], true);
    let step = key("brew.step");
    assert_eq!(step["kind"], "probe");
    let fields =
        ["count(cups)", "kind", "order->number", "-0.5", "cups > 1", "leaves", "nothing", "1ULL << 63"];
    assert_eq!(step["fields"], json!(fields));
    assert_eq!(key("brew.start")["fields"], Value::Null);

    // It switches by glob, in one batch.
    let on = ok(["--json", "on", target, "flags.*", "--keep"]);
    assert_eq!(on["changed"], 1, "{on}");
    assert_eq!(service.brew(), "milk 1 sugar 1 evaluated 0");
    let off = ok(["--json", "off", target, "flags.*"]);
    assert_eq!((&off["changed"], &off["batch"]["barriers"]), (&json!(2), &json!(1)), "{off}");
    assert_eq!(service.brew(), "milk 0 sugar 0 evaluated 0");

    // It is traced, and fields are evaluated then alone.
    let records = if as_cxx { "4" } else { "3" };
    let mut trace = Running::start(["--json", "trace", target, "brew.*", "--count", records]);
    let started: Value = serde_json::from_str(&trace.line()).expect("a document");
    assert_eq!(started["probes"].as_array().map(Vec::len), Some(records.parse().unwrap()), "{started}");
    assert_eq!(service.brew(), "milk 0 sugar 0 evaluated 1");
    let ended = trace.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines = ended.json_lines();
    let record =
        |name: &str| lines.iter().find(|line| line["probe"] == name).unwrap_or_else(|| panic!("{ended:?}"));
    assert_eq!(record("brew.start")["fields"], json!({}));
    assert_eq!(
        record("brew.step")["fields"],
        json!({
            "count(cups)": 2, "kind": "green", "order->number": 7, "-0.5": -0.5, "cups > 1": true_of(as_cxx),
            "leaves": "oolong", "nothing": null, "1ULL << 63": 1u64 << 63,
        })
    );
    assert_eq!(record("brew.odd")["fields"], json!({ "bytes": "tea \u{fffd} pot", "self": true_of(as_cxx) }));
    if as_cxx {
        assert_eq!(record("brew.text")["fields"], json!({ "text": "a pot" }));
    }
    // The service learns of the command's end in its own time.
    let is_on = |key: &Value| key["on"] == true;
    while ok(["--json", "keys", target, "brew.*"])["keys"].as_array().expect("a list").iter().any(is_on) {}
    assert_eq!(service.brew(), "milk 0 sugar 0 evaluated 1", "asleep again");
}

/// What a comparison is: in C a number.
fn true_of(as_cxx: bool) -> Value {
    if as_cxx { json!(true) } else { json!(1) }
}

#[test]
fn a_c_program_answers_the_command() {
    if tools::have_basics() {
        check(Language::C, Link::Shared);
    }
}

#[test]
fn a_cxx_program_answers_the_command() {
    if tools::have_basics() {
        check(Language::CAsCxx, Link::Static);
    }
}
