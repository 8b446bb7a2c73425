//! Timelines of live services, as viewers read them.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use dormouse::Group;
use dormouse_protocol::{BatchStat, FileHead, FileWriter, Note};
use dormouse_testkit::viewers::Pq;
use dormouse_testkit::{HANG, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::support::{Running, Service, run};
use crate::tasks::TaskService;

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

async fn brew() {
    sleep(HANG).await; // brews
}

/// The service, whose requests end in each way again and again. It ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn service() {
    dormouse::init().expect("an agent");
    std::thread::spawn(|| {
        let _end = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime").block_on(async {
        println!("ready");
        loop {
            Group::new("GET /tea").instrument(async {}).await;
            let broken = Group::new("GET /broken").instrument_result(async { Err::<(), ()>(()) }).await;
            let sold = Group::new("GET /sold").instrument(async { dormouse::outcome("sold_out") }).await;
            let late = timeout(Duration::from_millis(1), Group::new("GET /late").instrument(brew())).await;
            assert!(broken.is_err() && sold && late.is_err());
        }
    });
}

/// The group, the outcome, the place of the wait and the dropper of each task whose end was seen.
fn ends(profile: &Value) -> Vec<[String; 4]> {
    let threads = profile["threads"].as_array().expect("threads");
    let tasks = threads.iter().find(|it| it["name"] == "tasks").expect("a track of tasks");
    let text = |place: &Value| {
        let place = place.as_u64().unwrap_or_else(|| panic!("{tasks}"));
        tasks["stringArray"][place as usize].as_str().expect("a text").to_owned()
    };
    let marks = tasks["markers"]["data"].as_array().expect("marks").iter();
    let seen = marks.filter(|mark| !text(&mark["note"]).contains("end not seen"));
    seen.map(|mark| ["group", "outcome", "waited_at", "dropped_by"].map(|key| text(&mark[key]))).collect()
}

#[test]
fn requests_show_how_they_ended() {
    let service = TaskService::start_test("timeline::service", &[]);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tea.json.gz");
    let place = path.to_str().expect("UTF-8");
    let trace = |place: &str, more: &[&str]| {
        let target = service.target();
        let args = ["trace", &*target, "dormouse.task", "-n", "400", "-o", place];
        let run = run(args.iter().chain(more));
        assert_eq!(run.code, Some(0), "{run:?}");
    };
    let line = include_str!("timeline.rs").lines().zip(1..).find(|(line, _)| line.ends_with("// brews"));
    let waited = format!("timeline.rs:{})", line.expect("a marked line").1);
    let mut all = Vec::new();
    // The functions of a drop are learned when it was seen first.
    eventually(|| {
        trace(place, &["--places"]);
        all = ends(&profile(&path));
        let mut late = all.iter().filter(|end| end[0] == "GET /late");
        late.all(|[.., at, by]| at.ends_with(&waited) && by.starts_with("timeout"))
    });
    let outcomes: BTreeSet<_> = all.iter().map(|[group, outcome, ..]| (&**group, &**outcome)).collect();
    let right = [
        ("GET /broken", "error"),
        ("GET /late", "cancelled"),
        ("GET /sold", "sold_out"),
        ("GET /tea", "completed"),
    ];
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), right);
    let others = all.iter().filter(|end| end[0] != "GET /late");
    assert!(others.flat_map(|end| &end[2..]).all(String::is_empty), "{all:?}");
    let other = directory.path().join("tea.pftrace");
    trace(other.to_str().expect("UTF-8"), &["--places"]);
    let bytes = std::fs::read(other).expect("a file");
    let text = String::from_utf8_lossy(&bytes);
    assert!(["sold_out", "dropped_by", &waited].iter().all(|part| text.contains(part)), "{text}");
    // Nobody has places taken.
    trace(place, &[]);
    let all = ends(&profile(&path));
    let late: BTreeSet<_> = all.iter().filter(|end| end[0] == "GET /late").collect();
    assert_eq!(late.into_iter().map(|end| end[1..].join("|")).collect::<Vec<_>>(), ["cancelled||"]);
    run(["trace", &service.target(), "dormouse.task", "--places"]).assert_fails(2, &["--output"]);
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
