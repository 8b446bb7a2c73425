//! Comparisons of reports, which are changed here as a build would change them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Run, run};

const PROCESSES: u32 = 8;

/// The one report that all of these are made of.
fn measured(directory: &Path) -> Value {
    let path = directory.join("poll.json");
    let bench = run(["poll", "--quick", "--reps", "2", "-o", path.to_str().expect("UTF-8")]);
    assert_eq!(bench.code, Some(0), "{bench:?}");
    serde_json::from_str(&fs::read_to_string(&path).expect("a report")).expect("JSON")
}

/// A side of processes whose rows have these values times `scale`, each a little apart.
fn side(directory: &Path, name: &str, report: &Value, scale: f64, processes: u32) -> PathBuf {
    let lines = (0..processes).map(|process| {
        let mut report = report.clone();
        for row in report["rows"].as_array_mut().expect("rows") {
            let values = row["values"].as_array_mut().expect("values");
            for value in values {
                *value = json!(value.as_f64().expect("a number") * scale * (1.0 + f64::from(process) / 1e4));
            }
        }
        format!("{report}\n")
    });
    let path = directory.join(name);
    fs::write(&path, lines.collect::<String>()).expect("a file");
    path
}

fn compare(paths: &[&Path], flags: &[&str]) -> Run {
    let paths = paths.iter().map(|path| path.to_str().expect("UTF-8"));
    run(["compare"].into_iter().chain(paths).chain(flags.iter().copied()))
}

/// The comparison is printed, and the gate says why it is shut.
fn assert_is_shut(run: &Run, parts: &[&str]) {
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(parts.iter().all(|part| run.stderr.contains(part)), "{parts:?}: {}", run.stderr);
    assert!(run.stdout.contains("poll/dormouse"), "{}", run.stdout);
}

#[test]
fn a_slower_build_ends_with_1() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let report = measured(directory);
    let old = side(directory, "old.json", &report, 1.0, PROCESSES);
    let same = side(directory, "same.json", &report, 1.00001, PROCESSES);
    let slower = side(directory, "slower.json", &report, 1.1, PROCESSES);

    let calm = compare(&[&old, &same], &["--fail-on-regression"]);
    assert_eq!(calm.code, Some(0), "{calm:?}");
    assert!(calm.stdout.contains("0 worse and 0 better"), "{}", calm.stdout);

    let bad = compare(&[&old, &slower], &["--fail-on-regression"]);
    assert_is_shut(&bad, &["worse"]);
    assert!(bad.stdout.contains("+10.0%") && bad.stdout.contains("geomean poll/"), "{}", bad.stdout);
    assert_eq!(compare(&[&old, &slower], &[]).code, Some(0), "nobody asked for a gate");
    let wide = compare(&[&old, &slower], &["--fail-on-regression", "--threshold", "20%"]);
    assert_eq!(wide.code, Some(0), "{wide:?}");

    let page = directory.join("page.html");
    let json = compare(&[&old, &same, &slower], &["--json", "--html", page.to_str().expect("UTF-8")]);
    let json: Value = serde_json::from_str(&json.stdout).expect("one document");
    assert_eq!((&json["schema"], json["sides"].as_array().map(Vec::len)), (&json!(1), Some(3)));
    assert!(json["worse"].as_u64().is_some_and(|worse| worse > 0), "{json}");
    let html = fs::read_to_string(&page).expect("a page");
    assert!(html.starts_with("<!doctype html>") && html.contains("poll/"), "{html}");
    assert!(!html.contains("http://") && !html.contains("https://"), "the page loads nothing");
}

#[test]
fn a_gate_that_cannot_tell_is_shut() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let report = measured(directory);
    let old = side(directory, "old.json", &report, 1.0, 1);
    let slower = side(directory, "slower.json", &report, 2.0, 1);
    let gate = compare(&[&old, &slower], &["--fail-on-regression"]);
    assert_is_shut(&gate, &["undecided", "--runs"]);
    let shown = compare(&[&old, &slower], &[]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.stdout.contains("+100.0% ?"), "{}", shown.stdout);
}

#[test]
fn runs_that_differ_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let report = measured(directory);
    let old = side(directory, "old.json", &report, 1.0, 1);
    let mut other = report.clone();
    other["machine"]["cpu"] = json!("another");
    let path = side(directory, "other.json", &other, 1.0, 1);
    compare(&[&old, &path], &[]).assert_fails(1, &["other.json", "cpu", "--across-machines"]);
    assert_eq!(compare(&[&old, &path], &["--across-machines"]).code, Some(0));

    other["machine"]["cpu"] = json!("another \u{1b}[31m");
    let coloured = side(directory, "coloured.json", &other, 1.0, 1);
    let refused = compare(&[&old, &coloured], &["--across-machines"]);
    refused.assert_fails(1, &["coloured.json", "line 1", "u{1b}"]);
    assert!(!refused.stderr.contains('\u{1b}'), "{:?}", refused.stderr);

    let broken = directory.join("broken.json");
    fs::write(&broken, "{\"schema\":1,\"bench\":\"keys\"\n").expect("a file");
    compare(&[&old, &broken], &[]).assert_fails(1, &["broken.json", "line 2"]);
    compare(&[&old], &[]).assert_fails(2, &["PATH"]);
    compare(&[&old, &old], &["--threshold", "much"]).assert_fails(2, &["--threshold"]);
    compare(&[&old, &old], &["--html", "/proc/self/fd"]).assert_fails(1, &["/proc/self/fd"]);
    compare(&[&old, &old], &["--html", old.to_str().expect("UTF-8")])
        .assert_fails(2, &["old.json", "--html"]);
}
