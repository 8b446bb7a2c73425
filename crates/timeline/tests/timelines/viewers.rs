//! `pq`, which has the Firefox Profiler's importer, and Perfetto's own definition of its format.

use std::path::PathBuf;
use std::process::Command;

use dormouse_testkit::viewers::{Pq, printed, python_with};
use dormouse_timeline::{Timeline, encode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::known::{self, CLOCK};

fn file(name: &str, write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> (TempDir, PathBuf) {
    let mut bytes = Vec::new();
    write(&mut bytes).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (directory, path)
}

fn for_firefox(timeline: Timeline) -> (TempDir, PathBuf) {
    file("known.json.gz", |out| encode::firefox(timeline, out))
}

/// The markers of a thread by name: how many.
fn names(markers: &Value) -> Vec<(String, u64)> {
    let rows = markers["byType"].as_array().unwrap_or_else(|| panic!("{markers}")).iter();
    let mut names: Vec<_> = rows
        .map(|it| (it["markerName"].as_str().unwrap().to_owned(), it["count"].as_u64().unwrap()))
        .collect();
    names.sort();
    names
}

#[test]
fn firefox_lists_threads_and_markers() {
    let (_directory, path) = for_firefox(known::timeline());
    let Some(pq) = Pq::load(&path) else { return };
    let markers =
        |thread: &str| pq.json(&["thread", "markers", "--thread", &pq.thread(thread), "--limit", "0"]);
    let of = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        rows.iter().map(|&(name, count)| (name.to_owned(), count)).collect()
    };
    let first = markers("worker-0");
    assert_eq!(names(&first), of(&[("GET /tea", 2), ("brew", 1), ("brew.step", 3), ("database", 1)]));
    assert_eq!(names(&markers("worker-1")), of(&[("GET /tea", 2), ("brew.step", 1), ("database", 1)]));
    // Tasks have a track of their own.
    assert_eq!(names(&markers("tasks")), of(&[("GET /tea", 1), ("database", 1)]));
    // 90 us and, to the end of the timeline, 50.
    let tea = first["byType"].as_array().unwrap().iter().find(|it| it["markerName"] == "GET /tea").unwrap();
    for (what, ms) in [("min", 0.05), ("max", 0.09)] {
        let read = tea["durationStats"][what].as_f64().unwrap();
        assert!((read - ms).abs() < 1e-6, "{what}: {read}, not {ms}");
    }
}

#[test]
fn firefox_connects_what_is_of_one_request() {
    let (_directory, path) = for_firefox(known::timeline());
    let Some(pq) = Pq::load(&path) else { return };
    let found = |thread: &str, search: &str| {
        let thread = pq.thread(thread);
        pq.json(&["thread", "markers", "--thread", &thread, "--limit", "0", "--search", search])
    };
    let count = |thread: &str| found(thread, "flow:11")["filteredMarkerCount"].as_u64().unwrap();
    assert_eq!(["worker-0", "worker-1", "tasks"].map(count), [4, 3, 2]);

    let black = found("worker-0", "f1:black");
    let handle = black["byType"][0]["topMarkers"][0]["handle"].as_str().unwrap_or_else(|| panic!("{black}"));
    let marker = pq.json(&["marker", "info", handle]);
    let field = |label: &str| {
        let fields = marker["fields"].as_array().unwrap_or_else(|| panic!("{marker}"));
        fields.iter().find(|it| it["label"] == label).map(|it| it["formattedValue"].clone())
    };
    assert_eq!((&marker["name"], &marker["category"]["name"]), (&json!("brew.step"), &json!("database")));
    for (label, value) in
        [("group", "database"), ("task", "21"), ("request", "11"), ("cups", "3"), ("kind", "black")]
    {
        assert_eq!(field(label), Some(json!(value)), "{label}: {marker}");
    }
    let late = found("worker-0", "note:end not seen");
    assert_eq!(late["filteredMarkerCount"], 1, "{late}");
}

#[test]
fn perfetto_finds_tracks_slices_and_flows() {
    let (_directory, path) = file("known.pftrace", |out| encode::perfetto(&known::timeline(), out));
    let Some(python) = python_with("perfetto") else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/timelines/track_events.py");
    let said = printed(Command::new(python).arg(script).arg(&path).output().unwrap());
    let read: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(read["clock"], json!({ "1": CLOCK.real_ns - 10_000, "3": CLOCK.mono_ns - 10_000 }));
    let tracks = read["tracks"].as_array().unwrap();
    let named = |name: &str| {
        let track = tracks.iter().find(|it| it["name"] == name).unwrap_or_else(|| panic!("{name}: {read}"));
        let row = |it: &Value| {
            let us = |it: &Value| it.as_u64().map(|ns| ns / 1_000);
            (
                it["name"].as_str().unwrap().to_owned(),
                us(&it["begin"]).unwrap(),
                us(&it["end"]),
                it["flows"].clone(),
            )
        };
        track["events"].as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    let row = |name: &str, begin, end: u64, flow: u64| {
        let flows = if flow == 0 { json!([]) } else { json!([flow]) };
        (name.to_owned(), begin, (end != 0).then_some(end), flows)
    };
    assert_eq!(
        tracks.iter().map(|it| it["name"].as_str().unwrap()).collect::<Vec<_>>(),
        ["teaparty", "worker-0", "worker-1", "GET /tea", "database"]
    );
    assert_eq!((&tracks[0]["pid"], &tracks[1]["tid"]), (&json!(4000), &json!(4001)));
    assert_eq!(
        named("worker-0"),
        [
            row("GET /tea", 120, 210, 11),
            row("database", 140, 180, 11),
            row("brew", 150, 170, 11),
            row("brew.step", 160, 0, 11),
            row("brew.step", 910, 0, 0),
            row("GET /tea", 960, 1_010, 33),
            row("brew.step", 1_010, 0, 33),
        ]
    );
    assert_eq!(
        named("worker-1"),
        [
            row("GET /tea", 0, 50, 33),
            row("GET /tea", 510, 710, 11),
            row("database", 560, 610, 11),
            row("brew.step", 570, 0, 11),
        ]
    );
    assert_eq!(named("GET /tea"), [row("request", 110, 720, 11)]);
    assert_eq!(named("database"), [row("request", 130, 620, 11)]);
    let step = &tracks[1]["events"][3];
    assert_eq!(step["category"], json!(["brew.step"]));
    assert_eq!(step["arguments"], json!({ "task": 21, "group": "database", "cups": 3, "kind": "black" }));
}
