//! Page faults of a command go into a file that is whole, whatever ends the command, and that the
//! bench replays.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;

use dormouse_lab::faults::{FaultOp as Op, read};
use dormouse_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Run, command, run};

fn record(path: &Path, flags: &[&str], program: &[&str]) -> Run {
    let path = path.to_str().expect("UTF-8");
    run(["record-faults", "-o", path].iter().chain(flags).chain(&["--"]).chain(program))
}

/// Whether page faults can be recorded here at all; else the skip is counted.
fn can_record() -> bool {
    let place = tempfile::tempdir().expect("a temporary directory");
    let probe = record(&place.path().join("probe"), &[], &["true"]);
    let can = probe.code == Some(0);
    if !can {
        skip(format_args!("page faults cannot be recorded here: {}", probe.stderr.trim()));
    }
    can
}

fn trace(path: &Path) -> Vec<Op> {
    read(File::open(path).expect("a trace")).expect("a whole trace")
}

fn count(ops: &[Op], what: fn(&Op) -> bool) -> usize {
    ops.iter().filter(|op| what(op)).count()
}

#[test]
fn a_recorded_program_is_replayed() {
    if !can_record() {
        return;
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = place.path().join("listing.faults.gz");
    let recorded = record(&path, &[], &["sh", "-c", "ls / >/dev/null; echo done; exit 7"]);
    assert_eq!((recorded.code, recorded.stdout.as_str()), (Some(7), "done\n"), "{recorded:?}");
    let ops = trace(&path);
    let faults = count(&ops, |op| matches!(op, Op::Fault { .. }));
    // The shell, its child, and what that executes.
    assert!(count(&ops, |op| matches!(op, Op::Process { .. })) >= 3 && faults > 50, "{ops:?}");
    assert!(recorded.stderr.contains(&format!("listing.faults.gz: {faults} faults of ")), "{recorded:?}");
    assert!(matches!(ops[..2], [Op::Process { parent: None }, Op::Thread { process: 0 }]));

    let trace = path.to_str().expect("UTF-8");
    let replayed = run(["maps", "--quick", "--reps", "2", "--json", "--trace", trace]);
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
    assert!(replayed.stdout.contains("\"hit-rate/listing/dormouse\""), "{}", replayed.stdout);
}

#[test]
fn a_recording_ends_by_faults_or_signal() {
    if !can_record() {
        return;
    }
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = place.path().join("ended");
    let most = record(&path, &["--most", "20"], &["ls", "/"]);
    assert_eq!(most.code, Some(0), "{most:?}");
    assert_eq!(count(&trace(&path), |op| matches!(op, Op::Fault { .. })), 20);

    let words = ["record-faults", "-o", path.to_str().expect("UTF-8"), "--"];
    let mut running = command(words.into_iter().chain(["sh", "-c", "echo ready; exec sleep 600"]))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let mut said = BufReader::new(running.stdout.take().expect("its output"));
    said.read_line(&mut String::new()).expect("a line");
    kill_process(Pid::from_child(&running), Signal::TERM).expect("a process of ours");
    said.read_to_end(&mut Vec::new()).expect("its end");
    assert_eq!(running.wait().expect("its end").code(), Some(128 + 15));
    assert!(!trace(&path).is_empty());
}

#[test]
fn nothing_runs_where_no_trace_can_be() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let (path, mark) = (place.path().join("precious"), place.path().join("mark"));
    fs::write(&path, "of somebody else").expect("a file");
    let touch = ["touch", mark.to_str().expect("UTF-8")];
    record(&path, &[], &touch).assert_fails(1, &["precious is no trace of page faults"]);
    assert_eq!(fs::read_to_string(&path).expect("a file"), "of somebody else");
    record(Path::new("/proc/x"), &[], &touch).assert_fails(1, &["/proc/x"]);
    assert!(!mark.exists());
    record(&path, &[], &[]).assert_fails(2, &["COMMAND"]);
}
