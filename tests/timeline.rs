//! Timelines of live services, as viewers read them.

use std::io::Read as _;
use std::path::Path;

use dormouse_protocol::{BatchStat, FileHead, FileWriter, Note};
use dormouse_testkit::viewers::Pq;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Running, Service, run};

const OWN: &str = "dormouse.poll,dormouse.task";

/// A file for the Firefox Profiler.
fn profile(path: &Path) -> Value {
    let mut text = String::new();
    let file = std::fs::File::open(path).expect("a file");
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("a packed file");
    serde_json::from_str(&text).expect("JSON")
}

/// The threads of it: names and numbers of markers.
fn threads(profile: &Value) -> Vec<(&str, u64)> {
    let threads = profile["threads"].as_array().expect("threads").iter();
    threads
        .map(|it| (it["name"].as_str().expect("a name"), it["markers"]["length"].as_u64().expect("a number")))
        .collect()
}

#[test]
fn a_timeline_has_all_that_was_recorded() {
    let service = Service::busy();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tea.json.gz");
    let glob = format!("{OWN},menu.*,order.*");
    let place = path.to_str().expect("UTF-8");
    let run = run(["--json", "trace", &service.target(), &glob, "-n", "3000", "-o", place]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let documents = run.json_lines();
    let [start, end] = &documents[..] else { panic!("no records among the documents: {documents:?}") };
    assert_eq!((&start["type"], &end["type"]), (&"start".into(), &"end".into()));
    let written = &end["timeline"];
    assert_eq!((&written["file"], &end["tally"]["records"]), (&place.into(), &3000.into()));

    let profile = profile(&path);
    let threads = threads(&profile);
    let tasks = threads.iter().find(|it| it.0 == "tasks").expect("a track of tasks").1;
    let marks: u64 = threads.iter().map(|it| it.1).sum();
    assert_eq!((&written["tasks"], &written["events"]), (&tasks.into(), &marks.into()));
    assert!(tasks > 10 && marks > 1500, "{threads:?}");
    let schemas: Vec<&str> = profile["meta"]["markerSchema"]
        .as_array()
        .expect("types of markers")
        .iter()
        .map(|it| it["name"].as_str().expect("a name"))
        .collect();
    assert!(schemas.contains(&"dormouse.poll") && schemas.contains(&"menu.read"), "{schemas:?}");

    let Some(pq) = Pq::load(&path) else { return };
    let listed = pq.json(&["thread", "list"]);
    let read = listed["threads"].as_array().expect("threads").iter();
    let count = |it: &Value| it["markerCount"].as_u64().unwrap_or_else(|| panic!("{listed}"));
    assert_eq!(read.map(count).sum::<u64>(), marks);
}

#[test]
fn ctrl_c_writes_what_has_come() {
    let service = Service::busy();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tea.pftrace");
    let place = path.to_str().expect("UTF-8");
    let mut trace = Running::start(["--json", "trace", &service.target(), OWN, "-o", place]);
    assert!(trace.line().contains("\"start\""));
    // The records that this one prints have come to that one, too.
    assert_eq!(run(["trace", &service.target(), OWN, "-n", "500"]).code, Some(0));
    assert!(!path.exists(), "whole or not at all");
    let ended = trace.end_by(Signal::INT);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(std::fs::metadata(&path).expect("a file").len() > 1000);
    service.await_keys_on("dormouse.*", |on| on == 0);
}

/// A record without values: `dormouse::record` has the layout.
fn record(phase: u8, probe: u32, tsc: u64) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[0] = 32;
    (bytes[2], bytes[3]) = (dormouse::record::VERSION, phase);
    bytes[4..8].copy_from_slice(&probe.to_le_bytes());
    bytes[8..16].copy_from_slice(&tsc.to_le_bytes());
    (bytes[16], bytes[24]) = (7, 5);
    bytes
}

#[test]
fn files_of_the_recorder_become_timelines() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    let head = json!({
        "version": 1, "seen": "asked for", "real_ns": 5, "mono_ns": 5, "pid": 1, "program": "/bin/tea",
    });
    let head: FileHead = serde_json::from_value(head).expect("a head");
    let mut file = FileWriter::new(Vec::new(), &head).expect("memory");
    let hello = json!({
        "protocol": 1, "version": "0", "pid": 1, "start_ticks": 1, "name": "tea", "exe": "/bin/tea",
        "uid": 0, "keys": 1, "sites": 1,
    });
    let probe = json!({ "id": 3, "name": "dormouse.poll", "file": "a.rs", "line": 1, "fields": [] });
    let clock = json!({ "tsc": 1_000, "tsc_hz": 1e9, "mono_ns": 1_000, "real_ns": 1_000_000 });
    let batch = serde_json::to_value(BatchStat::default()).expect("JSON");
    let trace = json!({ "matched": ["dormouse.poll"], "probes": [probe], "batch": batch, "clock": clock });
    file.answer("hello", 0, &hello).expect("memory");
    file.answer("trace", 0, &trace).expect("memory");
    let name = |name: &str| name.to_owned();
    file.note(&Note::Thread { tid: 9, start: 1, name: name("worker") }).expect("memory");
    file.note(&Note::Group { id: 5, name: name("GET /tea") }).expect("memory");
    let records = [record(1, 3, 2_000), record(2, 3, 5_000)].concat();
    file.records(9, 1, &records).expect("memory");
    let from = place("tea.dormouse");
    std::fs::write(&from, file.finish().expect("memory")).expect("a file");

    let printed = run(["trace", &from]);
    assert_eq!((printed.code, printed.stdout.lines().count()), (Some(0), 2), "{printed:?}");
    assert!(printed.stdout.contains("GET /tea") && printed.stderr.contains("2 records"), "{printed:?}");
    let to = place("tea.json.gz");
    let run = run(["trace", &from, "-o", &to]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(threads(&profile(Path::new(&to))), [("worker", 1)]);
}

#[test]
fn bad_wishes_for_timelines_switch_nothing() {
    let service = Service::idle();
    let target = service.target();
    let directory = tempfile::tempdir().expect("a directory");
    let place = |name: &str| directory.path().join(name).to_str().expect("UTF-8").to_owned();
    run(["trace", &target, "*", "-o", &place("x.svg")]).assert_fails(2, &[".json.gz", ".perfetto-trace"]);
    run(["trace", &target, "*", "-o", "/nowhere/x.pftrace"]).assert_fails(1, &["/nowhere/x.pftrace", "-o"]);
    run(["trace", &target]).assert_fails(2, &["no keys are named"]);
    run(["trace", "./x.dormouse", "db.*"]).assert_fails(2, &["leave GLOB out"]);
    run(["trace", "./x.dormouse", "--for", "3s"]).assert_fails(2, &["leave --for out"]);
    let nothing = place("x.json.gz");
    run(["trace", &target, "order.*", "--for", "100ms", "-o", &nothing])
        .assert_fails(1, &["nothing was recorded", &nothing]);
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
    assert_eq!(service.keys_on("*"), 0);
}
