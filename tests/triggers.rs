//! Triggers of a live service, by command; their files, read like the service; and a soak.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_testkit::{eventually, short_or_long};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{DORMOUSE, RUNTIME_VARIABLES, Run, Service, run, signal_to};

/// A busy service that writes files into a directory.
fn service(directory: &Path) -> Service {
    Service::start(|command| {
        command.args(["--load", "300", "--for", "10m"]);
        command.env("DORMOUSE_RECORD_DIR", directory).env("DORMOUSE_RECORD", "steep.*,menu.*");
    })
}

fn triggers(target: &str, args: &[&str]) -> Run {
    // Services in debug builds are slow, on busy machines more so.
    run(["triggers", target, "--timeout", "60s"].iter().chain(args))
}

fn rows(target: &str) -> Vec<Value> {
    let run = triggers(target, &["--json"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    run.json()["triggers"].as_array().unwrap().clone()
}

#[test]
fn triggers_are_armed_listed_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let target = service.target();
    assert!(triggers(&target, &[]).stdout.contains("no trigger is armed"));
    triggers(&target, &["--add", "request>5"])
        .assert_fails(2, &["the time `5` has no unit", "request>500ms"]);
    triggers(&target, &["--add", "steep.begin.mss>5"])
        .assert_fails(1, &["steep.begin.mss", "steep.begin.ms"]);
    triggers(&target, &["--remove", "7"]).assert_fails(1, &["no trigger 7"]);
    let added = triggers(&target, &["--add", "request>1h; steep.begin.ms>=0; cpu>1% for 1s in nobody"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    eventually(|| rows(&target)[1]["file"].is_string());
    let all = rows(&target);
    let why = |at: usize| all[at]["why_not"].as_str().unwrap();
    assert!(
        why(0).starts_with("highest seen ") && why(0).ends_with(" of 3600 s")
            || why(0).ends_with(" of 60 min")
    );
    assert!(why(1).starts_with("fired ") && why(1).contains("at most each 60 s"), "{}", why(1));
    assert!(why(2).starts_with("no group matches `nobody`: there are "), "{}", why(2));
    let text = triggers(&target, &["--remove", "1"]).stdout;
    assert!(!text.contains("request>1h") && text.contains("steep.begin.ms>=0"), "{text}");
    assert!(text.contains("KiB used in"), "{text}");
}

#[test]
fn a_file_is_read_like_a_service() {
    let directory = tempfile::tempdir().unwrap();
    let service = service(directory.path());
    let target = service.target();
    // Times are taken before the file, and so are places.
    assert_eq!(triggers(&target, &["--add", "request>1h"]).code, Some(0));
    eventually(|| run(["record", &target, "--json"]).stdout.contains("\"records\""));
    let saved = run(["record", &target, "--save", "--json"]);
    assert_eq!(saved.code, Some(0), "{saved:?}");
    let file = saved.json()["file"].as_str().unwrap().to_owned();
    assert!(file.ends_with(".dormouse"));
    assert_eq!(rows(&target).len(), 1, "the command's trigger is gone");
    drop(service);

    let tasks = run(["tasks", &file, "--json"]);
    assert_eq!(tasks.code, Some(0), "{tasks:?}");
    assert!(tasks.stderr.contains("recorded: a command"), "{tasks:?}");
    assert!(!tasks.json()["tasks"].as_array().unwrap().is_empty());
    let tree = run(["tasks", &file, "--tree"]);
    assert!(tree.stdout.contains("TASKS  LONGEST  PLACE") && tree.stdout.contains("connections"), "{tree:?}");
    let profile = run(["profile", &file]);
    assert_eq!(profile.code, Some(0), "{profile:?}");
    assert!(profile.stdout.contains("dormouse_teaparty::"), "functions have names: {profile:?}");
    run(["profile", &file, "--kind", "alloc"]).assert_fails(2, &["is one of cpu", "--kind"]);
    run(["keys", &file]).assert_fails(1, &["has not an answer to that"]);
    run(["stat", &file]).assert_fails(2, &["is a file"]);

    // A file of another kind is told.
    let other = directory.path().join("other.dormouse");
    fs::write(&other, "no file of ours").unwrap();
    run(["tasks", other.to_str().unwrap()]).assert_fails(2, &["is no file of dormouse's recorder"]);
    let bytes = fs::read(&file).unwrap();
    fs::write(&other, &bytes[..bytes.len() / 2]).unwrap();
    run(["tasks", other.to_str().unwrap()]).assert_fails(1, &["cannot read", "at byte"]);
}

/// The resident memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}

/// The bytes of our files, those that are being written included.
fn used(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).sum()
}

/// Triggers fire at their limit under a load: no request is lost, files stay within their budget,
/// and memory comes back.
#[test]
fn triggers_at_their_limit_soak() {
    const BUDGET: u64 = 2 << 20;
    let seconds = short_or_long(3, 30);
    let (runtime, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = Command::new(DORMOUSE);
    command.args(["teaparty", "--exit-with-parent", "--workers", "2", "--load", "300", "--for", "10m"]);
    for variable in RUNTIME_VARIABLES {
        command.env_remove(variable);
    }
    command.env("DORMOUSE_RUNTIME_DIR", runtime.path()).env("DORMOUSE_RECORD_DIR", directory.path());
    command.env("DORMOUSE_RECORD_DISK", "2MiB").env("DORMOUSE_RECORD", "*");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    let (pid, target) = (child.id(), child.id().to_string());
    // The recorder has its memory, and the load its connections.
    eventually(|| run(["record", &target, "--json"]).stdout.contains("\"aged\""));
    let before = resident(pid);
    let rules = "request>1ms every 1s; long-poll>1ms every 1s; cpu>1% for 1s every 1s; \
                 cpu>1% for 1s in * every 1s; steep.begin.ms>=0 every 1s; panic every 1s";
    let added = triggers(&target, &["--add", rules]);
    assert_eq!(added.code, Some(0), "{added:?}");
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut most_used, mut most_resident) = (0, 0);
    while Instant::now() < until {
        most_used = most_used.max(used(directory.path()));
        most_resident = most_resident.max(resident(pid));
        thread::sleep(Duration::from_millis(20));
    }
    let all = rows(&target);
    let fired: u64 = all.iter().map(|row| row["fired"].as_u64().unwrap()).sum();
    for row in &all {
        let number = row["number"].to_string();
        assert_eq!(triggers(&target, &["--remove", &number]).code, Some(0));
    }
    let mut after = 0;
    // The tables of callers, 43 MiB in a debug build, stay with the allocator.
    eventually(|| {
        after = resident(pid);
        after < before + (96 << 10)
    });
    signal_to(pid, Signal::INT);
    let mut report = String::new();
    output.read_to_string(&mut report).unwrap();
    assert!(child.wait().unwrap().success());
    println!(
        "{fired} files in {seconds} s; at most {most_used} of {BUDGET} bytes; resident {before} KiB before, \
         {most_resident} at most, {after} after\n{report}"
    );
    for row in &all {
        println!("{}: {} files; {}", row["rule"], row["fired"], row["why_not"]);
    }
    assert!(fired >= seconds / 5, "{fired} files in {seconds} s");
    assert!(most_used <= BUDGET, "{most_used}");
    assert!(report.contains(" 0 errors"), "{report}");
    let left = fs::read_dir(directory.path()).unwrap().flatten();
    assert!(left.into_iter().all(|entry| entry.file_name().to_string_lossy().ends_with(".dormouse")));
}
