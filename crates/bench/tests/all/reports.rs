//! Where reports go, and how a run ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use dormouse_testkit::HANG;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Run, command, run};

fn report(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error} in {text:?}", path.display()))
}

#[test]
fn a_report_is_written_into_new_directories() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("new/reports/");
    let bench = run(["poll", "--quick", "--reps", "2", "-o", path.to_str().expect("UTF-8")]);
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
        run([workload, "-o", path]).assert_fails(1, &[path, "-o"]);
    }
    let json = run(["all", "--json", "-o", in_the_way.to_str().expect("UTF-8")]);
    let error: Value = serde_json::from_str(&json.stderr).expect("one document");
    assert!(error.to_string().contains("reports"), "{error}");
}

#[test]
fn an_unmeasurable_workload_is_exit_1() {
    let mut bench = command(["teaparty", "--quick"]);
    bench.env("CARGO", "/bin/false");
    let bench: Run = bench.output().expect("the program runs").into();
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
    let bench = run(["alloc", "--quick", "--reps", "2", "--runs", "2", "-o", path.to_str().expect("UTF-8")]);
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
    let mut bench = command(["all", "--quick", "--reps", "2", "-o", path]);
    let bench = bench.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut bench = bench.spawn().expect("the program");
    let mut said = BufReader::new(bench.stdout.take().expect("its standard output"));
    // A report is written before the next one is printed.
    loop {
        let mut line = String::new();
        assert_ne!(said.read_line(&mut line).expect("a line"), 0, "it ended: {:?}", bench.wait());
        if line == "dormouse bench poll\n" {
            break;
        }
    }
    let mark = format!("DORMOUSE_BENCH_RUN={}.", bench.id());
    kill_process(Pid::from_child(&bench), Signal::INT).expect("a process of ours");
    said.read_to_end(&mut Vec::new()).expect("the rest");
    let ended = bench.wait().expect("its end");
    assert_eq!(ended.code(), None, "ended by the signal, as a shell wants it: {ended:?}");
    assert_eq!(report(&directory.path().join("alloc.json"))["bench"], "alloc");
    for entry in fs::read_dir(directory.path()).expect("a directory") {
        assert_eq!(report(&entry.expect("an entry").path())["schema"], 1);
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
