//! Watches of live services: by name and by address, from inside and from outside, counted exactly,
//! and given back.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{HANG, Run, Running, Service, Wire, run, skip};
use dormouse_testkit::c::have;

/// A static of the service: requests, and behind it cups.
const TALLY: &str = "dormouse_teaparty::tally::TALLY:8";

/// The registers that watches may take of a thread's four.
const OURS: usize = 3;

/// A watch that is armed, and its first line.
fn watching(args: &[&str]) -> (Running, Value) {
    let mut running = Running::start(["watch", "--json"].iter().chain(args));
    let line = running.line();
    match serde_json::from_str(&line) {
        Ok(start) => (running, start),
        Err(error) => panic!("{error} in {line:?}: {:?}", running.end()),
    }
}

/// The last line of a watch that Ctrl-C ends.
fn ended(running: Running) -> (Run, Value) {
    let ended = running.end_by(Signal::INT);
    let report = ended.json_lines().pop().unwrap_or_else(|| panic!("{ended:?}"));
    assert_eq!(report["type"], "report", "{report}");
    (ended, report)
}

fn menus(service: &Service, times: usize) {
    for _ in 0..times {
        assert!(service.get("/menu").starts_with("HTTP/1.1 200"));
    }
}

fn order(service: &Service) {
    let address = service.url.strip_prefix("http://").expect("a URL");
    let mut stream = std::net::TcpStream::connect(address).expect("a service that accepts");
    stream.set_read_timeout(Some(HANG)).expect("a timeout");
    let body = r#"{"tea":"Assam","cups":2}"#;
    let head = "POST /orders HTTP/1.1\r\nHost: tea\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
}

/// The registers that are free in each of its threads.
fn free(service: &Service) -> Vec<u64> {
    let slots = run(["slots", "--json", &service.target()]).json();
    let threads = slots["threads"].as_array().expect("threads that we may look at");
    threads.iter().map(|thread| thread["free_registers"].as_u64().expect("a number")).collect()
}

fn await_free(service: &Service, wanted: u64) {
    let start = Instant::now();
    while free(service).iter().any(|&free| free != wanted) {
        assert!(start.elapsed() < HANG, "{:?}", free(service));
    }
}

#[test]
fn a_static_is_watched_by_name() {
    let service = Service::idle();
    menus(&service, 1);
    let (watch, start) = watching(&[&service.target(), TALLY]);
    assert_eq!((&start["outside"], &start["length_bytes"]), (&Value::Null, &8.into()), "{start}");
    menus(&service, 7);
    let (run, report) = ended(watch);
    assert_eq!(run.code, Some(0), "{run:?}");
    for (field, value) in [("hits", 7), ("passed", 7), ("lost", 0), ("late", 0)] {
        assert_eq!(report[field], value, "{field} of {report}");
    }
    assert_eq!(report["threads_armed"], report["threads_alive"], "{report}");
    let hits: u64 =
        report["sites"].as_array().unwrap().iter().map(|site| site["hits"].as_u64().unwrap()).sum();
    let site = &report["sites"][0];
    assert_eq!((hits, &site["group"], &site["new"]), (7, &"GET /menu".into(), &8.into()), "{report}");
    assert_eq!((&site["old"], &site["inner_tid"]), (&7.into(), &site["tid"]), "{site}");
    let functions =
        site["frames"].as_array().unwrap().iter().map(|frame| frame["function"].as_str().unwrap());
    let named = ["Tally", "fetch_add", "atomic_add"];
    assert!(functions.clone().any(|name| named.iter().any(|part| name.contains(part))), "{site}");
    assert!(!site["stack"].as_array().unwrap().is_empty(), "{site}");
}

#[test]
fn an_address_is_watched_like_its_name() {
    let service = Service::idle();
    let (by_name, start) = watching(&[&service.target(), "TALLY+8"]);
    assert_eq!(start["length_bytes"], 8, "{start}");
    order(&service);
    let (by_address, _) = watching(&[&service.target(), start["addr"].as_str().unwrap()]);
    menus(&service, 1);
    order(&service);
    for (watch, hits) in [(by_name, 2), (by_address, 1)] {
        let (_, report) = ended(watch);
        // One access to both is one signal, and both are told of it.
        assert_eq!((&report["hits"], &report["lost"]), (&hits.into(), &0.into()), "{report}");
        let site = &report["sites"][0];
        assert_eq!((&site["group"], &site["new"]), (&"POST /orders".into(), &4.into()), "{report}");
    }
}

#[test]
fn a_group_sees_its_own_hits() {
    let service = Service::idle();
    order(&service);
    let (watch, _) = watching(&[&service.target(), TALLY, "--group", "POST /orders"]);
    menus(&service, 3);
    order(&service);
    order(&service);
    let (_, report) = ended(watch);
    assert_eq!((&report["hits"], &report["passed"]), (&5.into(), &2.into()), "{report}");
    let groups: Vec<&Value> = report["sites"].as_array().unwrap().iter().map(|site| &site["group"]).collect();
    assert!(!groups.is_empty() && groups.iter().all(|group| *group == "POST /orders"), "{report}");
    let none = run(["watch", &service.target(), TALLY, "--group", "POST /order"]);
    none.assert_fails(1, &["no group is named \"POST /order\"", "near: POST /orders"]);
}

#[test]
fn filters_look_at_the_value() {
    let service = Service::idle();
    let (watch, _) = watching(&[&service.target(), TALLY, "--equals", "0x2", "--mask", "3", "--changed"]);
    menus(&service, 8);
    let (_, report) = ended(watch);
    assert_eq!((&report["hits"], &report["passed"]), (&8.into(), &2.into()), "{report}");
}

#[test]
fn each_hit_is_streamed_until_the_last() {
    let service = Service::idle();
    let (watch, _) = watching(&[&service.target(), TALLY, "--stream", "--max", "3"]);
    menus(&service, 4);
    let ended = watch.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines = ended.json_lines();
    let hits = lines.iter().filter(|line| line["type"] == "hit");
    let values: Vec<u64> = hits.map(|hit| hit["new"].as_u64().unwrap()).collect();
    let (first, report) = (values.first_chunk(), &lines[lines.len() - 1]);
    assert_eq!((first, &report["state"]), (Some(&[1, 2, 3]), &"over".into()), "{ended:?}");
    assert_eq!(report["unprinted"], 0);
    await_free(&service, 4);
}

#[test]
fn no_hit_is_a_finding_with_its_coverage() {
    let service = Service::idle();
    let text = run(["watch", &service.target(), "TALLY", "--for", "200ms"]);
    assert_eq!(text.code, Some(1), "{text:?}");
    for part in ["no hit\n", "armed on ", "(100 %)", "never seen: accesses by the kernel"] {
        assert!(text.stdout.contains(part), "no {part:?} in {text:?}");
    }
}

#[test]
fn a_killed_client_gives_its_registers_back() {
    let service = Service::idle();
    let target = service.target();
    await_free(&service, 4);
    let held: Vec<_> = (0..OURS).map(|_| watching(&[&target, TALLY]).0).collect();
    assert!(free(&service).iter().all(|&free| free == 1), "{:?}", free(&service));
    let refused = run(["watch", &target, TALLY]);
    let holder = held[0].pid();
    refused
        .assert_fails(1, &["needs 1 debug register", &format!("process {holder} of user"), "dormouse slots"]);
    let text = run(["slots", &target]).stdout;
    assert_eq!(text.matches("pinned").count(), OURS, "{text}");
    assert!(text.contains("1 register free in ") && text.contains(&format!("process {holder} of")), "{text}");
    menus(&service, 2);
    for watch in held {
        assert_eq!(watch.end_by(Signal::KILL).code, None);
    }
    await_free(&service, 4);
    let (again, _) = watching(&[&target, TALLY]);
    menus(&service, 1);
    assert_eq!(ended(again).1["hits"], 1);
}

#[test]
fn flexible_watches_are_more_than_registers() {
    let service = Service::idle();
    let target = service.target();
    let watches: Vec<_> = (0..OURS + 2).map(|_| watching(&[&target, TALLY, "--flexible"]).0).collect();
    for watch in watches {
        let (_, report) = ended(watch);
        assert!(report["armed_percent"].as_f64().unwrap() < 100.0, "{report}");
    }
    await_free(&service, 4);
}

#[test]
fn a_watch_outlives_other_requests_of_others() {
    let service = Service::idle();
    let (watch, _) = watching(&[&service.target(), TALLY]);
    let mut wire = service.wire();
    let report = wire.ask(r#"{"v":1,"id":2,"op":"watch-report","number":0}"#);
    assert_eq!(report["error"]["code"], "bad-watch", "another connection's watch: {report}");
    drop(wire);
    service.assert_alive();
    menus(&service, 1);
    // `assert_alive` asks for the menu once.
    assert_eq!(ended(watch).1["hits"], 2);
}

/// Asks for a watch in the words of the protocol.
fn ask(wire: &mut Wire, fields: &Value) -> Value {
    let mut request = json!({ "v": 1, "id": 9, "op": "watch" });
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    wire.ask(&request.to_string())
}

#[test]
fn hostile_wishes_are_refused() {
    let service = Service::idle();
    let mut wire = service.wire();
    for (fields, code) in [
        (json!({ "addr": 4096, "len": 0, "access": "w" }), "bad-watch"),
        (json!({ "addr": 4096, "len": u64::MAX, "access": "w" }), "bad-watch"),
        (json!({ "addr": u64::MAX, "len": 8, "access": "w" }), "bad-watch"),
        (json!({ "addr": u64::MAX - 7, "len": 8, "access": "rw" }), "bad-watch"),
        (json!({ "addr": 1_u64 << 63, "len": 8, "access": "x" }), "bad-watch"),
        (json!({ "addr": 4096, "len": 4096, "access": "w" }), "bad-watch"),
        (json!({ "addr": 4096, "len": 8, "access": "w", "rate_per_s": 1_000_000 }), "bad-watch"),
        (json!({ "addr": 4096, "len": 8, "access": "w", "rate_per_s": 0 }), "bad-watch"),
        (json!({ "addr": 4096, "len": 8, "access": "w", "max_hits": 0 }), "bad-watch"),
        (json!({ "addr": 4096, "len": 8, "access": "w", "name": "a\u{1b}[31m" }), "bad-watch"),
        (json!({ "addr": 4096, "len": 8, "access": "w", "group": "no such" }), "no-group"),
    ] {
        let answer = ask(&mut wire, &fields);
        assert_eq!(answer["error"]["code"], code, "{fields}: {answer}");
    }
    for fields in [
        json!({ "addr": 4096, "len": 8, "access": "w", "name": "x".repeat(9000), "max_hits": 1 }),
        json!({ "addr": 0, "len": 1, "access": "rw", "newer": [1, {}] }),
    ] {
        let answer = ask(&mut wire, &fields);
        let number = answer["ok"]["number"].as_u64().unwrap_or_else(|| panic!("{fields}: {answer}"));
        let report = wire.ask(&format!(r#"{{"v":1,"id":2,"op":"watch-report","number":{number}}}"#));
        assert_eq!(report["ok"]["hits"], 0, "{report}");
        assert!(report["ok"]["name"].as_str().unwrap().len() <= 128, "{report}");
    }
    for wrong in
        [json!({ "addr": -1, "len": 8 }), json!({ "addr": 8 }), json!({ "addr": 8, "len": 8, "access": "r" })]
    {
        let answer = ask(&mut service.wire(), &wrong);
        assert_eq!(answer["error"]["code"], "bad-request", "{wrong}: {answer}");
    }
    drop(wire);
    await_free(&service, 4);
    service.assert_alive();
}

#[test]
fn a_connection_has_so_many_watches() {
    let service = Service::idle();
    let mut wire = service.wire();
    let request = json!({ "addr": 4096, "len": 1, "access": "w", "flexible": true });
    let armed = (0..20).take_while(|_| ask(&mut wire, &request)["ok"].is_object()).count();
    assert_eq!(armed, 16);
    assert_eq!(ask(&mut wire, &request)["error"]["code"], "busy");
    drop(wire);
    await_free(&service, 4);
}

#[test]
fn a_service_that_ends_leaves_its_last_report() {
    let mut service = Service::idle();
    let (mut watch, _) = watching(&[&service.target(), TALLY, "--stream"]);
    menus(&service, 1);
    assert!(watch.line().contains("\"type\":\"hit\""));
    service.kill();
    let ended = watch.end();
    let report = ended.json_lines().pop().unwrap_or_else(|| panic!("{ended:?}"));
    assert_eq!((&report["end"], &report["hits"]), (&"exit".into(), &1.into()), "{ended:?}");
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn names_that_mean_nothing_are_explained() {
    let service = Service::idle();
    let target = service.target();
    run(["watch", &target, "dormouse_teaparty::tally::TALY"])
        .assert_fails(1, &["no static variable", "TALLY"]);
    run(["watch", &target, "TALLY+16"]).assert_fails(1, &["ends before that"]);
    run(["watch", &target, "TALLY", "-a", "x"]).assert_fails(1, &["no function"]);
    run(["watch", &target, "1000"]).assert_fails(2, &["0x1000"]);
    run(["watch", "999999999", "TALLY"]).assert_fails(3, &["no process"]);
}

/// A program without dormouse in it. It writes as often as it is told to.
struct Stranger {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
    _folder: tempfile::TempDir,
}

const STRANGER: &str = r#"
#include <pthread.h>
#include <stdio.h>
volatile long brewed;
__attribute__((noinline)) static void pour(long cups) {
    for (long i = 0; i < cups; i++) brewed++;
}
static void *brew(void *cups) {
    pour((long)cups);
    return (void *)cups;
}
int main(void) {
    long cups;
    while (scanf("%ld", &cups) == 1) {
        pthread_t thread;
        pthread_create(&thread, 0, brew, (void *)cups);
        pthread_join(thread, 0);
        printf("%ld\n", brewed);
        fflush(stdout);
    }
}
"#;

impl Stranger {
    /// `None`: it cannot be watched here.
    fn start() -> Option<Stranger> {
        if !have(&["gcc"]) {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            skip("watching from outside is root's");
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (source, program) = (folder.path().join("tea.c"), folder.path().join("tea"));
        std::fs::write(&source, STRANGER).expect("a source");
        let flags = ["-g", "-O1", "-fno-optimize-sibling-calls", "-fomit-frame-pointer", "-pthread", "-o"];
        let status = Command::new("gcc").args(flags).arg(&program).arg(&source).status().expect("gcc");
        assert!(status.success());
        let mut child =
            Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it");
        let stdout = BufReader::new(child.stdout.take().expect("its standard output"));
        let mut stranger = Stranger { child, stdout, _folder: folder };
        stranger.brew(0);
        Some(stranger)
    }

    fn brew(&mut self, cups: u64) {
        writeln!(self.child.stdin.as_mut().expect("its standard input"), "{cups}").expect("a word");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("an answer");
        assert!(line.ends_with('\n'), "it lives: {line:?}");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn any_process_is_watched_from_outside() {
    let Some(mut stranger) = Stranger::start() else { return };
    let pid = stranger.child.id().to_string();
    let (by_name, start) = watching(&[&pid, "brewed"]);
    assert_eq!(start["outside"], "it has no dormouse in it");
    let (by_address, _) = watching(&[&pid, start["addr"].as_str().unwrap(), "--stream", "--rate", "1000000"]);
    stranger.brew(100);
    let (run, report) = ended(by_name);
    assert_eq!((run.code, &report["hits"], &report["lost"]), (Some(0), &100.into(), &0.into()), "{report}");
    let frame = &report["sites"][0]["frames"][0];
    assert_eq!((&frame["function"], &frame["line"]), (&"pour".into(), &6.into()), "{report}");
    let (run, report) = ended(by_address);
    let streamed = run.json_lines().iter().filter(|line| line["type"] == "hit").count();
    assert_eq!((streamed, &report["hits"], &report["unprinted"]), (100, &100.into(), &0.into()), "{report}");
    let (by_stack, _) = watching(&[&pid, "brewed", "--stacks"]);
    stranger.brew(1);
    let (_, report) = ended(by_stack);
    let caller = &report["sites"][0]["stack"][0]["frames"][0]["function"];
    assert_eq!(caller, "brew", "without frame pointers: {report}");
    let filtered = crate::support::run(["watch", &pid, "brewed", "--changed"]);
    filtered.assert_fails(5, &["from outside", "needs dormouse in the process"]);
}

#[test]
fn refusals_from_outside_say_what_to_change() {
    let Some(stranger) = Stranger::start() else { return };
    let pid = stranger.child.id().to_string();
    run(["watch", &pid, "0x1000:64"]).assert_fails(2, &["cut it off"]);
    run(["watch", &pid, "0xffffffff81000000:8"]).assert_fails(2, &["memory of a program"]);
    let nowhere = run(["watch", &pid, "0x0", "--for", "10ms"]);
    assert!(nowhere.code == Some(1) && nowhere.stderr.contains("is mapped at 0x0"), "{nowhere:?}");
    let doctor = run(["doctor", &pid]);
    assert!(doctor.code == Some(0) && doctor.stdout.contains("watch.outside"), "{doctor:?}");
}

#[test]
fn a_stranger_that_ends_ends_its_watch() {
    let Some(mut stranger) = Stranger::start() else { return };
    let (watch, _) = watching(&[&stranger.child.id().to_string(), "brewed"]);
    stranger.brew(5);
    stranger.child.kill().expect("it may be killed");
    stranger.child.wait().expect("it ends");
    let ended = watch.end();
    let report = ended.json_lines().pop().expect("a report");
    assert_eq!((&report["hits"], &report["end"]), (&5.into(), &"exit".into()), "{ended:?}");
    let site = &report["sites"][0];
    assert!(site["object"].as_str().is_some_and(|object| object.starts_with("tea+")), "{report}");
    assert!([&5.into(), &Value::Null].contains(&&site["new"]), "read, or not made up: {report}");
}

#[test]
fn doctor_tells_whether_watching_works() {
    let doctor = run(["doctor", "--json"]).json();
    let checks = doctor["checks"].as_array().expect("checks");
    for name in ["watch.inside", "watch.outside"] {
        let check = checks.iter().find(|check| check["name"] == name).expect(name);
        let is_ok = check["state"] == "ok";
        assert!(is_ok != check["fix"].is_string(), "{check}");
    }
}
