//! With `DORMOUSE_MAX_CPU` an agent that nobody asks anything suspends the parts that cost more, at
//! its second check or a later one. No test harness: each case is a process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use dormouse::Group;
use dormouse_testkit::long_only;

/// The agent checks each ten seconds, from its start on. It would look around by itself only once a
/// minute.
const LONG: Duration = Duration::from_secs(50);

/// Runs tasks until their times are suspended, and prints the agent's check of the limit, and its
/// answers to requests that need times.
fn service() {
    let agent = dormouse::init().unwrap();
    assert!(dormouse::waits::is_on());
    let (group, begun) = (Group::new("GET /menu"), Instant::now());
    while dormouse::waits::is_on() {
        assert!(begun.elapsed() < LONG, "nothing was suspended");
        (0..10_000).for_each(|_| group.scope(|| ()));
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut stream = UnixStream::connect(agent.path()).unwrap();
    for request in [
        r#""id":1,"op":"hello","client":"a test""#,
        r#""id":2,"op":"doctor""#,
        r#""id":3,"op":"lock-report""#,
        r#""id":4,"op":"tasks""#,
    ] {
        writeln!(stream, r#"{{"v":1,{request}}}"#).unwrap();
    }
    BufReader::new(stream).lines().skip(1).take(3).for_each(|line| println!("{}", line.unwrap()));
}

pub(crate) fn main() {
    if std::env::var_os("DORMOUSE_TEST_SERVICE").is_some() {
        return service();
    }
    if !long_only() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut service = Command::new(std::env::current_exe().unwrap());
    service.env("DORMOUSE_TEST_SERVICE", "1").env("DORMOUSE_RUNTIME_DIR", place.path());
    service.env("DORMOUSE_MAX_CPU", "0.01%").env("DORMOUSE_WAITS", "1");
    let output = service.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers = String::from_utf8(output.stdout).unwrap();
    let [doctor, refused @ ..] = &answers.lines().collect::<Vec<_>>()[..] else { panic!("no answer") };
    assert_eq!(refused.len(), 2, "{refused:?}");
    for answer in refused {
        assert!(answer.contains("asleep: ") && answer.contains("times of tasks"), "{answer}");
    }
    let check = doctor.split(r#""name":"limit.cpu""#).nth(1).unwrap_or_else(|| panic!("{doctor}"));
    let check = check.split('}').next().unwrap();
    assert!(check.contains("times of tasks") && check.contains("DORMOUSE_MAX_CPU allows"), "{check}");
    println!("1 passed, 0 failed");
}
