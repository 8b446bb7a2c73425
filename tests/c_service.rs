//! A service of C and one of C++, compiled against the installed library, answer the command as a
//! Rust one does.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::support::{Running, Wire, run};
use dormouse_testkit::c::{self as tools, Build, GCC, Language, Link};
use dormouse_testkit::eventually;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program, running.
struct Service {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    runtime: TempDir,
}

impl Service {
    fn start(source: &str, language: Language, link: Link) -> Service {
        let build = Build::new(&format!("{source}-{language:?}"), GCC, "-O2 -pthread");
        let program = build.link("tea", &[build.compile(source, language, &[])], link, &[]);
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut child = Command::new(program)
            .env("LD_LIBRARY_PATH", tools::prefix().join("lib"))
            .env("DORMOUSE_RUNTIME_DIR", runtime.path())
            .env("DORMOUSE_RECORD_DIR", runtime.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the service");
        let stdin = child.stdin.take().expect("its standard input");
        let stdout = BufReader::new(child.stdout.take().expect("its standard output"));
        let mut service = Service { child, stdin, stdout, runtime };
        assert_eq!(service.line(), "ready");
        service
    }

    fn target(&self) -> String {
        self.child.id().to_string()
    }

    /// A connection to its agent, greeted.
    fn wire(&self) -> Wire {
        let mut wire = Wire::open(&self.runtime.path().join(format!("dormouse/{}.sock", self.child.id())));
        wire.ask(r#"{"v":1,"id":1,"op":"hello","client":"test"}"#);
        wire
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Has it do what it does once, and gives what it says of that.
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

/// The README of the library, line by line, with the command under test for `dormouse`.
#[test]
fn the_c_readme_works_as_it_stands() {
    if !tools::have_basics() {
        return;
    }
    let readme = std::fs::read_to_string(tools::crate_folder().join("README.md")).expect("the README");
    let blocks = |language: &str| {
        let fence = format!("```{language}\n");
        let blocks = readme.split(&fence).skip(1);
        blocks.map(|rest| rest.split("```").next().expect("an end").to_owned()).collect::<Vec<_>>()
    };
    // Installed where it says, as a folder of the tests' own has been.
    let home = tools::scratch().join("home");
    std::fs::create_dir_all(&home).expect("a folder");
    tools::make(&["install", &format!("PREFIX={}", home.join(".local").display())]);
    std::fs::write(home.join("tea.c"), &blocks("c")[0]).expect("the example");
    let [script, with_archive] = &blocks("sh")[..] else { panic!("{readme}") };
    let shared = script.lines().find(|line| line.starts_with("cc ")).expect("a compiler");
    for compile in [shared, with_archive] {
        let export = script.lines().find(|line| line.starts_with("export ")).expect("a path");
        let mut shell = Command::new("sh");
        shell.args(["-ec", &format!("{export}\n{compile}")]).env("HOME", &home).current_dir(&home);
        tools::succeed(&mut shell);
        let runtime = tempfile::tempdir().expect("a temporary directory");
        let mut tea = Command::new(home.join("tea"));
        tea.env("DORMOUSE_RUNTIME_DIR", runtime.path()).env_remove("LD_LIBRARY_PATH");
        let tea = Tea(tea.stdout(Stdio::null()).spawn().expect("the example runs"));
        let target = tea.0.id().to_string();
        // It has begun to listen some time after its start.
        while run(["keys", &target]).code != Some(0) {
            assert!(std::fs::exists(format!("/proc/{target}/exe")).is_ok_and(|there| there), "it has ended");
        }
        let commands = script.lines().filter_map(|line| line.strip_prefix("dormouse "));
        for command in commands.clone() {
            let command = command.split('#').next().expect("a command").replace('\'', "");
            let said =
                run(command.split_whitespace().map(|word| if word == "tea" { &*target } else { word }));
            assert_eq!(said.code, Some(0), "{command}: {said:?}");
            assert!(!command.starts_with("stat") || said.stdout.contains("POST /orders"), "{said:?}");
        }
        assert_eq!(commands.count(), 4);
    }
}

/// A program that ends with the test.
struct Tea(Child);

impl Drop for Tea {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ok<const N: usize>(args: [&str; N]) -> Value {
    let run = run(args);
    assert_eq!(run.code, Some(0), "{args:?}: {}", run.stderr);
    run.json()
}

fn check(language: Language, link: Link) {
    let as_cxx = language == Language::CAsCxx;
    let mut service = Service::start("service.c", language, link);
    let target = &*service.target();
    assert_eq!(service.brew(), "milk 0 sugar 1 evaluated 0");

    // It lists.
    let listed = ok(["--json", "keys", target]);
    let keys = listed["keys"].as_array().expect("a list");
    let key = |name: &str| keys.iter().find(|key| key["name"] == name).unwrap_or_else(|| panic!("{listed}"));
    let own =
        ["experiment", "locks", "over_budget", "poll", "publish", "switch", "task", "trace_context", "waits"];
    for own in own {
        key(&format!("dormouse.{own}"));
    }
    assert_eq!(keys.len(), own.len() + if as_cxx { 6 } else { 5 }, "{listed}");
    let milk = key("flags.milk");
    assert_eq!((&milk["kind"], &milk["on"], &milk["sites"]), (&json!("key"), &json!(false), &json!(1)));
    let source = include_str!("../crates/capi/tests/programs/service.c");
    let line = 1 + source.lines().position(|line| line.contains("flags.milk")).expect("its definition");
    assert!(milk["file"] == "service.c" && milk["line"] == line && milk["object"] == "tea", "{milk}");
    let sugar = key("flags.sugar");
    assert_eq!(
        (&sugar["on"], &sugar["initial"], &milk["initial"]),
        (&json!(true), &json!(true), &json!(false))
    );
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
    // A key that starts on is switched off by its name alone.
    let off = ok(["--json", "off", target, "flags.*"]);
    assert_eq!((&off["changed"], &off["start_on"]), (&json!(1), &json!(1)), "{off}");
    assert_eq!(service.brew(), "milk 0 sugar 1 evaluated 0");
    let off = ok(["--json", "off", target, "flags.milk,flags.sugar"]);
    assert_eq!((&off["names"], &off["start_on"]), (&json!(["flags.sugar"]), &Value::Null), "{off}");
    // And all is as it was at the start.
    ok(["--json", "on", target, "flags.*", "--keep"]);
    ok(["--json", "off", target, "flags.sugar"]);
    ok(["--json", "on", target, "flags.*", "--for", "10m"]);
    let reset = ok(["--json", "reset", target, "flags.*"]);
    assert_eq!((&reset["changed"], &reset["batch"]["barriers"]), (&json!(1), &json!(1)), "{reset}");
    assert_eq!(service.brew(), "milk 0 sugar 1 evaluated 0");
    ok(["--json", "off", target, "flags.sugar"]);

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
    assert_eq!(
        record("brew.odd")["fields"],
        json!({ "bytes": "tea \u{fffd} pot", "self": true_of(as_cxx), "leaves": "oo" })
    );
    if as_cxx {
        let fields = &record("brew.text")["fields"];
        // A function has an address.
        assert!(fields["count"].is_u64(), "{fields}");
        let expected = json!({
            "text": "a pot", "std::pair{ 1, 2 }.second": 2, "1'000'000 * cups": 2_000_000,
            "count": fields["count"],
        });
        assert_eq!(*fields, expected);
    }
    // The service learns of the command's end in its own time.
    let is_on = |key: &Value| key["on"] == true;
    while ok(["--json", "keys", target, "brew.*"])["keys"].as_array().expect("a list").iter().any(is_on) {}
    assert_eq!(service.brew(), "milk 0 sugar 0 evaluated 1", "asleep again");
}

/// A comparison is a number in C.
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

/// Two routes burn what they say that they burn, on two threads: each is charged with that.
fn check_groups(language: Language, link: Link) {
    let mut service = Service::start("routes.c", language, link);
    let target = &*service.target();
    let mut stat = Running::start(["--json", "stat", target, "--interval", "100ms"]);
    // From here on it counts.
    stat.line();
    let said = service.brew();
    let known: Vec<u64> = said.split(' ').map(|ns| ns.parse().expect("nanoseconds")).collect();
    let ended = stat.end_by(Signal::INT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let total = ended.json_lines().pop().expect("a total");
    let groups = total["groups"].as_array().expect("groups");
    for (name, known, tasks) in [("GET /tea", known[0], 2), ("GET /cake", known[1], 1)] {
        let group = groups.iter().find(|group| group["name"] == name).unwrap_or_else(|| panic!("{total}"));
        let charged = group["cpu_ns"].as_u64().expect("nanoseconds");
        assert!(charged.abs_diff(known) <= known / 33 + 1_000_000, "{charged} of {known}: {total}");
        assert_eq!((&group["started"], &group["alive"]), (&json!(tasks), &json!(0)), "{group}");
    }
    // Work that is handed on is a part of its request, and a task that two threads work on is one.
    let mut wire = service.wire();
    let stat = wire.ask(r#"{"v":1,"id":2,"op":"stat"}"#);
    let groups = stat["ok"]["groups"].as_array().expect("groups");
    assert!(groups.len() == 2 && groups.iter().all(|group| group["requests"] == 1), "{stat}");
    let outside = total["unattributed_cpu_ns"].as_u64().expect("nanoseconds");
    assert!(outside >= 20_000_000, "what the worker did in no group: {total}");
    let top = run(["top", target, "--once"]);
    assert!(top.stdout.contains("GET /tea") && top.stdout.contains("GET /cake"), "{top:?}");
}

#[test]
fn routes_of_a_c_service_are_charged_each() {
    if tools::have_basics() {
        check_groups(Language::C, Link::Shared);
    }
}

#[test]
fn routes_of_a_cxx_service_are_charged_each() {
    if tools::have_basics() {
        check_groups(Language::CAsCxx, Link::Static);
    }
}

/// Requests of the routes have latencies: by `stat --waits`, for triggers and for objectives.
#[test]
fn requests_of_a_c_service_have_latencies() {
    if !tools::have_basics() {
        return;
    }
    let mut service = Service::start("routes.c", Language::C, Link::Shared);
    let target = &*service.target();
    let mut wire = service.wire();
    wire.ask(r#"{"v":1,"id":2,"op":"objectives","objectives":["GET /*: 99% < 20ms","GET /*: 99% < 10s"]}"#);
    let triggers = |args: &[&str]| {
        let run = run(["--json", "triggers", target, "--timeout", "60s"].iter().chain(args));
        assert_eq!(run.code, Some(0), "{run:?}");
        run.json()["triggers"].as_array().expect("triggers").clone()
    };
    triggers(&["--add", "request>30ms in GET /tea; request>1h in GET /cake"]);
    let mut stat = Running::start(["--json", "stat", target, "--waits", "--interval", "100ms"]);
    stat.line();
    let said = service.brew();
    let known: Vec<u64> = said.split(' ').map(|ns| ns.parse().expect("nanoseconds")).collect();
    let ended = stat.end_by(Signal::INT);
    let total = ended.json_lines().pop().expect("a total");
    let groups = total["groups"].as_array().expect("groups");
    // The part of the first route that the worker does is not in its request's age.
    for (name, least, is_awaited) in [("GET /tea", 60_000_000, false), ("GET /cake", known[1], true)] {
        let group = groups.iter().find(|group| group["name"] == name).unwrap_or_else(|| panic!("{total}"));
        let (requests, waits) = (&group["waits"]["latency"], &group["waits"]);
        let longest = requests["max_ns"].as_u64().expect("nanoseconds");
        assert!(requests["count"] == 1 && longest >= least - least / 1000, "{least}: {waits}");
        let on_cpu = waits["on_cpu_percent"].as_f64().expect("a share");
        assert!(on_cpu > 0.0 && on_cpu <= 100.0, "{waits}");
        assert_eq!(
            (&waits["poll"]["count"], &waits["await"]["count"]),
            (&json!(0), &json!(u8::from(is_awaited)))
        );
    }

    eventually(|| triggers(&[])[0]["file"].is_string());
    let of_cake = triggers(&[])[1]["why_not"].as_str().expect("a reason").to_owned();
    assert!(of_cake.starts_with("highest seen "), "{of_cake}");
    let stat = wire.ask(r#"{"v":1,"id":3,"op":"stat"}"#);
    for group in stat["ok"]["groups"].as_array().expect("groups") {
        let counts = |at: usize| [&group["objectives"][at]["met"], &group["objectives"][at]["missed"]];
        assert_eq!([counts(0), counts(1)], [[&json!(0), &json!(1)], [&json!(1), &json!(0)]], "{group}");
    }
}
