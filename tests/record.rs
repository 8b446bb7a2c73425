//! `dormouse record --faults`: what a process touches goes into a file that is whole, whatever ends
//! the recording.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::support::{NOBODY, Run, command, finish, run, signal_to, skip};
use dormouse_maps::faults::{FaultOp as Op, read};
use rustix::process::Signal;
use serde_json::Value;

/// Whether page faults can be recorded here at all; else the skip is counted.
fn can_record() -> bool {
    let place = tempfile::tempdir().expect("a temporary directory");
    let probe = run(["record", "--faults", "-o", &at(&place, "probe"), "--", "true"]);
    let can = probe.code == Some(0);
    if !can {
        skip(format_args!("page faults cannot be recorded here: {}", probe.stderr.trim()));
    }
    can
}

fn at(place: &tempfile::TempDir, name: &str) -> String {
    place.path().join(name).to_str().expect("UTF-8").to_owned()
}

fn trace(path: &str) -> Vec<Op> {
    read(File::open(path).expect("a trace")).expect("a whole trace")
}

/// The summary, which agrees with the trace.
fn summary(run: &Run, path: &str) -> Value {
    let summary: Value = serde_json::from_str(run.stdout.lines().last().expect("a summary")).expect("JSON");
    let ops = trace(path);
    let count = |what: fn(&Op) -> bool| ops.iter().filter(|op| what(op)).count() as u64;
    assert_eq!(summary["faults"], count(|op| matches!(op, Op::Fault { .. })), "{summary}");
    assert_eq!(summary["threads"], count(|op| matches!(op, Op::Thread { .. })), "{summary}");
    assert_eq!(summary["processes"], count(|op| matches!(op, Op::Process { .. })), "{summary}");
    assert_eq!(summary["mapped"], count(|op| matches!(op, Op::Map { .. })), "{summary}");
    summary
}

/// The command, recording a process that runs.
struct Recorder {
    child: Child,
    messages: BufReader<ChildStderr>,
}

impl Recorder {
    /// Starts it, and waits until it records.
    fn of(pid: u32, path: &str) -> Recorder {
        let mut command = command(["record", "--faults", "--json", "-o", path, &pid.to_string()]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command");
        let mut messages = BufReader::new(child.stderr.take().expect("its messages"));
        let mut line = String::new();
        messages.read_line(&mut line).expect("a message");
        assert!(line.starts_with("recording the page faults of "), "{line}");
        Recorder { child, messages }
    }

    fn end(mut self) -> Run {
        let mut stderr = String::new();
        self.messages.read_to_string(&mut stderr).expect("its messages");
        let output = self.child.wait_with_output().expect("its end");
        let stdout = String::from_utf8(output.stdout).expect("UTF-8");
        Run { code: output.status.code(), stdout, stderr }
    }
}

#[test]
fn a_recorded_program_has_all_its_children() {
    if !can_record() {
        return;
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = at(&place, "listing.faults.gz");
    let program = "ls / >/dev/null; echo done; exit 7";
    let recorded = run(["record", "--faults", "--json", "-o", &path, "--", "sh", "-c", program]);
    assert_eq!(recorded.code, Some(7), "{recorded:?}");
    assert!(recorded.stdout.starts_with("done\n"), "{recorded:?}");
    let summary = summary(&recorded, &path);
    assert_eq!(
        (&summary["ended"], &summary["exit_code"], &summary["lost"]),
        (&"target".into(), &7.into(), &0.into())
    );
    // The shell, its child, and what that executes.
    assert!(summary["processes"].as_u64() >= Some(3) && summary["faults"].as_u64() > Some(50), "{summary}");
    assert!(matches!(trace(&path)[..2], [Op::Process { parent: None }, Op::Thread { process: 0 }]));

    // As text the summary is beside the command's own output, and an older trace is replaced.
    let text = run(["record", "--faults", "-o", &path, "--", "echo", "out"]);
    assert_eq!((text.code, text.stdout.as_str()), (Some(0), "out\n"), "{text:?}");
    assert!(text.stderr.contains("listing.faults.gz: ") && text.stderr.contains("of 1 program"), "{text:?}");
}

#[test]
fn a_killed_target_leaves_a_whole_trace() {
    if !can_record() {
        return;
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = at(&place, "killed");
    let mut target = Command::new("sh")
        .args(["-c", "while :; do (:); echo round; done"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    let recorder = Recorder::of(target.id(), &path);
    let mut rounds = BufReader::new(target.stdout.take().expect("its output")).lines();
    // Some are from before; a pipe does not hold that many.
    rounds.by_ref().take(20_000).for_each(|line| assert_eq!(line.expect("a line"), "round"));
    assert!(!Path::new(&path).exists(), "it has its name when it is whole");
    target.kill().expect("a process of ours");
    target.wait().expect("its end");
    let ended = recorder.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let summary = summary(&ended, &path);
    assert_eq!((&summary["ended"], &summary["exit_code"]), (&"target".into(), &Value::Null));
    // Forked subshells, each of which faults.
    assert!(summary["processes"].as_u64() > Some(10) && summary["faults"].as_u64() > Some(10), "{summary}");
}

/// Pages that a thread touches.
const PAGES: usize = 64;
/// So large that the allocator maps it anew, whatever it has.
const FRESH: usize = 64 << 20;

/// In the environment of the process that is recorded in that test.
const RECORDED: &str = "DORMOUSE_TEST_RECORDED";

/// Touches memory that nobody has touched; its first page.
fn touch() -> u64 {
    let mut memory = Vec::<u8>::with_capacity(FRESH);
    memory.resize(PAGES * 4096, 1);
    // Kept: else the other thread may get the same addresses.
    memory.leak().as_ptr().addr() as u64 >> 12
}

/// The recorded process: a thread that is there before, and one that comes later, each of which
/// touches memory when it is told to.
fn be_recorded() {
    let mut words = std::io::stdin().lines();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let before = std::thread::spawn(move || gone.recv().map(|()| touch()).expect("a word"));
    println!("ready");
    words.next();
    go.send(()).expect("a listener");
    let later = std::thread::spawn(touch);
    for thread in [before, later] {
        println!("page {}", thread.join().expect("a page"));
    }
    // Until it was recorded.
    words.next();
}

#[test]
fn every_thread_is_recorded_once_until_ctrl_c() {
    if std::env::var_os(RECORDED).is_some() {
        return be_recorded();
    }
    if !can_record() {
        return;
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = at(&place, "threads");
    let mut target = Command::new(std::env::current_exe().expect("this program"))
        .args([std::thread::current().name().expect("a test's thread"), "--exact", "--nocapture"])
        .env(RECORDED, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program");
    let said = BufReader::new(target.stdout.take().expect("its output"));
    let mut said = said.lines().map(|line| line.expect("a line"));
    assert!(said.any(|line| line.ends_with("ready")));
    let recorder = Recorder::of(target.id(), &path);
    let mut words = target.stdin.take().expect("its input");
    words.write_all(b"go\n").expect("a reader");
    let pages = said.by_ref().filter_map(|line| line.strip_prefix("page ")?.parse::<u64>().ok());
    let firsts: Vec<u64> = pages.take(2).collect();
    signal_to(recorder.child.id(), Signal::INT);
    let ended = recorder.end();
    drop(words);
    said.for_each(drop);
    assert!(target.wait().expect("its end").success());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let summary = summary(&ended, &path);
    assert_eq!((&summary["ended"], &summary["lost"]), (&"signal".into(), &0.into()));
    let ops = trace(&path);
    let mut by = Vec::new();
    for first in firsts {
        // One fault may bring several pages, so not all need be there.
        let pages = first..first + PAGES as u64;
        let seen: Vec<(u32, u64)> = ops
            .iter()
            .filter_map(|op| match op {
                Op::Fault { thread, page } if pages.contains(page) => Some((*thread, *page)),
                _ => None,
            })
            .collect();
        let thread = seen.first().expect("a page of the thread's").0;
        assert!(seen.iter().all(|&(by, _)| by == thread), "{seen:?}");
        let once: HashSet<u64> = seen.iter().map(|&(_, page)| page).collect();
        assert_eq!(once.len(), seen.len(), "{seen:?}");
        by.push(thread);
    }
    assert!(by.len() == 2 && by[0] != by[1], "{by:?}");
}

#[test]
fn a_recording_ends_by_time_faults_or_signal() {
    if !can_record() {
        return;
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = at(&place, "ended");
    let timed = run(["record", "--faults", "--json", "-o", &path, "--for", "50ms", "--", "sleep", "0.2"]);
    assert_eq!(timed.code, Some(0), "{timed:?}");
    assert_eq!(summary(&timed, &path)["ended"], "time");
    let most = run(["record", "--faults", "--json", "-o", &path, "--most", "20", "--", "ls", "/"]);
    let most = summary(&most, &path);
    assert_eq!((&most["ended"], &most["faults"]), (&"full".into(), &20.into()));

    let words = ["record", "--faults", "-o", &path, "--", "sh", "-c", "echo ready; exec sleep 600"];
    let mut running = crate::support::Running::start(words);
    assert_eq!(running.line(), "ready\n");
    let ended = running.end_by(Signal::TERM);
    assert_eq!(ended.code, Some(128 + 15), "{ended:?}");
    assert!(!trace(&path).is_empty());
}

#[test]
fn record_overwrites_nothing_but_traces() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let (path, mark) = (at(&place, "precious"), at(&place, "mark"));
    fs::write(&path, "of somebody else").expect("a file");
    run(["record", "--faults", "-o", &path, "--", "touch", &mark])
        .assert_fails(1, &["precious is no trace of page faults", "-o"]);
    assert_eq!(fs::read_to_string(&path).expect("a file"), "of somebody else");
    assert!(!Path::new(&mark).exists());
    run(["record", "--faults", "-o", "/proc/x", "--", "touch", &mark]).assert_fails(1, &["/proc/x"]);
    assert!(!Path::new(&mark).exists());
}

#[test]
fn missing_and_foreign_targets_are_told() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = at(&place, "x");
    run(["record", "--faults", "-o", &path, "4194304"]).assert_fails(3, &["there is no process 4194304"]);
    run(["record", "--faults", "-o", &path, "no-such-program"]).assert_fails(3, &["no process is named"]);
    let cannot_run = |program: &str| run(["record", "--faults", "-o", &path, "--", program]);
    cannot_run("/no/such/program").assert_fails(127, &["cannot run /no/such/program"]);
    cannot_run("/").assert_fails(126, &["cannot run /"]);
    run(["record", "-o", &path, "1"]).assert_fails(2, &["--faults"]);
    run(["record", "--faults", "-o", &path]).assert_fails(2, &["TARGET"]);
    run(["record", "--faults", "-o", &path, "1", "--", "true"]).assert_fails(2, &["cannot be used with"]);

    if !rustix::process::geteuid().is_root() {
        return skip("only root can be somebody else for a moment");
    }
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).expect("a directory for all");
    let mut others = command(["record", "--faults", "-o", &path, &std::process::id().to_string()]);
    others.uid(NOBODY);
    // Either the level for all is in the way or whose the process is.
    finish(others).assert_fails(4, &["counting page-faults is not allowed: ", "CAP_PERFMON"]);
    assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 0, "nothing is left");
}
