//! Events that `DORMOUSE_COUNT` names are counted from `init` on, and times are taken if
//! `DORMOUSE_WAITS` says so; nonsense in these and others is told. No test harness: each case is a
//! process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use dormouse::Group;

/// The doctor's line about it.
fn doctor(socket: &Path) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    writeln!(stream, r#"{{"v":1,"id":1,"op":"hello","client":"a test"}}"#).unwrap();
    writeln!(stream, r#"{{"v":1,"id":2,"op":"doctor"}}"#).unwrap();
    let answer = lines.nth(1).unwrap().unwrap();
    let Some(at) = answer.find("groups.count") else { return "silent".to_owned() };
    answer[at..answer[at..].find('}').map_or(answer.len(), |end| at + end)].to_owned()
}

/// Says what is counted for a group that was before `init` and one that came after, and what the
/// doctor says.
fn service() {
    let before = Group::new("before");
    let agent = dormouse::init().unwrap();
    assert_eq!(dormouse::init().unwrap().path(), agent.path());
    for group in [before, Group::new("after")] {
        group.scope(|| std::hint::black_box(vec![1_u8; 1 << 22]).len());
        let counts = group.read_counts();
        println!("{}", counts.iter().map(|count| count.event.name()).collect::<Vec<_>>().join(","));
        assert!(counts.iter().all(|count| count.value > 0 || count.event.name() != "page-faults"));
    }
    println!("{} {}", doctor(agent.path()), agent.warnings().join("; "));
    println!("{}", if dormouse::waits::is_on() { "times" } else { "no times" });
}

/// The output of a service with this setting: the events that it counts, and the words of the
/// doctor.
fn run(setting: Option<&str>) -> (String, String) {
    let place = tempfile::tempdir().unwrap();
    let mut service = Command::new(std::env::current_exe().unwrap());
    service.env("DORMOUSE_TEST_SERVICE", "1").env("DORMOUSE_RUNTIME_DIR", place.path());
    match setting {
        Some(setting) => service.env("DORMOUSE_COUNT", setting),
        None => service.env_remove("DORMOUSE_COUNT"),
    };
    let output = service.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let [before, after, doctor, times] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!((before, times), (after, "no times"));
    (before.to_owned(), doctor.to_owned())
}

/// Whether a service with this setting takes times, and what its agent warns of.
fn with(variable: &str, setting: &str) -> (String, String) {
    let place = tempfile::tempdir().unwrap();
    let mut service = Command::new(std::env::current_exe().unwrap());
    service.env("DORMOUSE_TEST_SERVICE", "1").env("DORMOUSE_RUNTIME_DIR", place.path());
    let output = service.env_remove("DORMOUSE_COUNT").env(variable, setting).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let [_, _, doctor, times] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    (times.to_owned(), doctor.strip_prefix("silent ").unwrap().to_owned())
}

pub(crate) fn main() {
    if std::env::var_os("DORMOUSE_TEST_SERVICE").is_some() {
        return service();
    }
    for setting in [None, Some(""), Some(" , ")] {
        assert_eq!(run(setting), (String::new(), "silent ".to_owned()));
    }
    let (counted, doctor) = run(Some("task-clock, page-faults"));
    assert_eq!(counted, "task-clock,page-faults");
    assert!(doctor.contains(r#""state":"ok""#) && doctor.contains("task-clock, page-faults"), "{doctor}");

    let (counted, doctor) = run(Some("page-fault,task-clock"));
    assert_eq!(counted, "task-clock", "what can be had is counted");
    assert!(doctor.contains(r#""state":"limited""#), "{doctor}");
    assert!(doctor.contains("no event named page-fault;") && doctor.contains("page-faults"), "{doctor}");
    assert!(doctor.contains("\" DORMOUSE_COUNT has counted"), "the agent warns of it, too: {doctor}");

    let (counted, doctor) = run(Some("\u{7}nonsense\u{e9}"));
    assert_eq!(counted, "");
    assert!(doctor.contains("from the start: nothing; there is no event"), "{doctor}");

    assert_eq!(with("DORMOUSE_WAITS", "1"), ("times".to_owned(), String::new()));
    assert_eq!(with("DORMOUSE_WAITS", "0"), ("no times".to_owned(), String::new()));
    let (times, warning) = with("DORMOUSE_WAITS", "yes");
    assert_eq!(times, "no times");
    assert!(warning.contains("\"yes\""), "{warning}");

    for (variable, right, wrong) in [("DORMOUSE_PERF", "1", "yes"), ("DORMOUSE_RECORD_DISK", "1GiB", "all")] {
        assert_eq!(with(variable, right).1, "");
        let warning = with(variable, wrong).1;
        assert!(warning.contains(variable) && warning.contains(&format!("\"{wrong}\"")), "{warning}");
    }
    println!("13 passed, 0 failed");
}
