//! `dormouse bench` where its reports go, and how it ends.

use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::support::{HANG, Running, command, finish, run};
use rustix::process::Signal;
use serde_json::Value;

fn report(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error} in {text:?}", path.display()))
}

#[test]
fn a_report_is_written_into_new_directories() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("new/reports/");
    let bench = run(["bench", "poll", "--quick", "--reps", "2", "-o", path.to_str().expect("UTF-8")]);
    assert_eq!(bench.code, Some(0), "{bench:?}");
    assert!(bench.stdout.starts_with("dormouse bench poll\n"), "{}", bench.stdout);
    let report = report(&path.join("poll.json"));
    assert_eq!((&report["schema"], &report["bench"]), (&1.into(), &"poll".into()));
}

#[test]
fn nothing_runs_without_a_writable_place() {
    let directory = tempfile::tempdir().expect("a directory");
    let in_the_way = directory.path().join("reports");
    fs::write(&in_the_way, "").expect("a file");
    let missing = directory.path().join("missing/keys.json");
    for (workload, path) in [("all", &in_the_way), ("keys", &missing)] {
        let path = path.to_str().expect("UTF-8");
        run(["bench", workload, "-o", path]).assert_fails(1, &[path, "-o"]);
    }
    let json = run(["--json", "bench", "all", "-o", in_the_way.to_str().expect("UTF-8")]);
    let error: Value = serde_json::from_str(&json.stderr).expect("one document");
    assert!(error.to_string().contains("reports"), "{error}");
}

#[test]
fn an_unmeasurable_workload_is_exit_1() {
    let mut bench = command(["bench", "teaparty", "--quick"]);
    bench.env("CARGO", "/bin/false");
    let bench = finish(bench);
    assert_eq!(bench.code, Some(1), "{bench:?}");
    assert!(
        bench.stdout.contains("teaparty/with") && bench.stdout.contains("unavailable: "),
        "{}",
        bench.stdout
    );
    assert!(bench.stderr.contains("teaparty: no row could be measured: building"), "{}", bench.stderr);
}

#[test]
fn runs_of_one_workload_are_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("of/alloc.json");
    fs::create_dir(directory.path().join("of")).expect("a directory");
    let bench =
        run(["bench", "alloc", "--quick", "--reps", "2", "--runs", "2", "-o", path.to_str().expect("UTF-8")]);
    assert_eq!(bench.code, Some(0), "{bench:?}");
    assert_eq!(bench.stdout.matches("dormouse bench alloc\n").count(), 2, "{}", bench.stdout);
    let lines = fs::read_to_string(path).expect("a file");
    let reports: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a report")).collect();
    assert!(reports.len() == 2 && reports.iter().all(|report| report["bench"] == "alloc"));
    assert_ne!(reports[0]["rows"], reports[1]["rows"]);
}

#[test]
fn rows_before_ctrl_c_stay_whole() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    let mut bench = Running::start(["bench", "all", "--quick", "--reps", "2", "-o", path]);
    // A report is written before the next one is printed.
    loop {
        match bench.line().as_str() {
            "dormouse bench poll\n" => break,
            "" => panic!("it ended: {:?}", bench.end()),
            _ => {}
        }
    }
    let mark = format!("DORMOUSE_BENCH_RUN={}.", bench.pid());
    let ended = bench.end_by(Signal::INT);
    assert_eq!(ended.code, None, "ended by the signal, as a shell wants it: {ended:?}");
    assert_eq!(report(&directory.path().join("keys.json"))["bench"], "keys");
    let page = fs::read_to_string(directory.path().join("report.html")).expect("a page");
    assert!(page.ends_with("</html>\n") && page.contains("update/batch-flip"));
    for entry in fs::read_dir(directory.path()).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "json") {
            assert_eq!(report(&path)["schema"], 1);
        }
    }
    // The workload that ran at that moment ends, too.
    let start = Instant::now();
    while is_somebody_marked(&mark) {
        assert!(start.elapsed() < HANG, "a workload outlives its run");
        std::thread::yield_now();
    }
}

/// Whether a process has a variable that begins like this.
fn is_somebody_marked(mark: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("processes");
    processes.filter_map(Result::ok).any(|process| {
        let environ = fs::read(process.path().join("environ")).unwrap_or_default();
        environ.split(|&byte| byte == 0).any(|variable| variable.starts_with(mark.as_bytes()))
    })
}
