//! Tasks that leak in a live service, as the command lists them and as Go's own tool reads them.
//!
//! The service is this program, run once more: it leaks a task ten times a second (in the
//! long mode once a second, for ten minutes), has lost two, and has others that come and go.

use std::future::pending;
use std::process::Command;
use std::time::Duration;

use dormouse::Group;
use dormouse_testkit::c::have;
use dormouse_testkit::{HANG, is_long};
use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use tokio::time::{interval, sleep};

use crate::fleet::serving::{Serving, TOKEN};
use crate::support::{command, finish_within};
use crate::tasks::TaskService;

/// The line of this file that ends with a mark.
fn line_of(mark: &str) -> u64 {
    let mut lines = include_str!("leaks.rs").lines().zip(1..);
    lines.find(|(line, _)| line.ends_with(mark)).expect("a marked line").1
}

/// The service: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn service() {
    dormouse::init().expect("an agent");
    let pause = if is_long() { Duration::from_secs(1) } else { Duration::from_millis(100) };
    let work = async move {
        dormouse::tokio::spawn(pending::<()>()); // lost
        dormouse::tokio::spawn(pending::<()>());
        for _ in 0..3 {
            dormouse::tokio::spawn(async { Notify::new().notified().await });
        }
        let mut turns = interval(pause);
        println!("ready");
        loop {
            turns.tick().await;
            let (reply, answer) = oneshot::channel::<()>();
            std::mem::forget(reply);
            dormouse::tokio::spawn(answer); // leaks
            dormouse::tokio::spawn(sleep(Duration::from_millis(5)));
        }
    };
    std::thread::spawn(|| {
        let _end = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(Group::new("orders").instrument(work));
}

fn lines(of: &Value) -> Vec<u64> {
    of.as_array().expect("rows").iter().map(|row| row["line"].as_u64().expect("a line")).collect()
}

#[test]
fn a_leak_is_the_first_row() {
    let service = TaskService::start_test("leaks::service", &[("DORMOUSE_WAITS", "1")]);
    let mut asked = command(["tasks", &service.target(), "--leaks", "--json"]);
    let time = if is_long() {
        asked.args(["--for", "10m"]);
        Duration::from_secs(600)
    } else {
        Duration::ZERO
    };
    let leaks = finish_within(asked, time + HANG).json();
    assert_eq!(lines(&leaks["proven"]), [line_of("// lost"), line_of("// lost") + 1], "{leaks}");
    assert_eq!(lines(&leaks["suspected"]), [line_of("// leaks")], "{leaks}");
    let leak = &leaks["suspected"][0];
    assert!(leak["grown"].as_u64() > Some(8) && leak["groups"] == serde_json::json!(["orders"]), "{leak}");
    assert!(leak["file"].as_str().is_some_and(|file| file.ends_with("tests/leaks.rs")), "{leak}");
    // The stack of the wait: of the receiver's poll.
    let is_its = |place: &&Value| place["place"] == leak["place"];
    let place = leaks["places"].as_array().expect("places").iter().find(is_its).expect("its place");
    let frames = place["frames"].to_string();
    assert!(frames.contains("oneshot"), "{frames}");

    let text = service.tasks(&["--leaks"]).stdout;
    assert!(text.contains("2 tasks that nothing can wake, 1 spawn site"), "{text}");
    go_reads_leaks(&service);
}

/// The service's leaks over HTTP.
fn go_reads_leaks(service: &TaskService) {
    if !have(&["go"]) {
        return;
    }
    let serving = Serving::start(service.runtime(), &[&service.target()], &[]);
    let home = tempfile::tempdir().expect("a directory");
    let top = |options: &[&str]| {
        let address = format!("http://any:{TOKEN}@127.0.0.1:{}/debug/pprof/taskleak", serving.daemon.port());
        let mut command = Command::new("go");
        command.args(["tool", "pprof", "-top", "-timeout", "60"]).args(options).arg(&address);
        let run = command.env("PPROF_TMPDIR", home.path()).output().expect("go");
        assert!(run.status.success(), "{run:?}");
        String::from_utf8_lossy(&run.stdout).into_owned()
    };
    let all = top(&["-nodefraction=0", "-cum"]);
    assert!(all.contains("Type: taskleak"), "{all}");
    assert!(all.contains(&format!("tests/leaks.rs:{}", line_of("// leaks"))), "{all}");
    let proven = top(&["-tagfocus=leak=proven"]);
    assert!(proven.contains("(nothing can wake it)") && !proven.contains("oneshot"), "{proven}");
}
