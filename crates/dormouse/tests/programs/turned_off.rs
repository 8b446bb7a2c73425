//! With `DORMOUSE=off` nothing of dormouse starts, whatever the other variables and the service's
//! code request; another value is told, and counts as on. No test harness: each case is a process.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::StatVfsMountFlags;

use dormouse::metrics::{Metrics, MetricsSpec};
use dormouse::sync::{Holds, LockTimes};
use dormouse::{Access, Event, Group, InitError, ProfileSpec, TaskBudget, Watch, WatchSpec};
use dormouse_events::Mode;

dormouse::static_key! { static FLAG: "off.flag" = false; }

fn step(cups: u32) {
    dormouse::probe!("off.step", cups);
}

/// The descriptors and threads of this process, and the signals that it catches.
fn traces() -> [String; 3] {
    let count = |dir: &str| std::fs::read_dir(dir).unwrap().count().to_string();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let caught = status.lines().find(|line| line.starts_with("SigCgt")).unwrap().to_owned();
    [count("/proc/self/fd"), count("/proc/self/task"), caught]
}

/// Prints what starts, or that nothing does.
fn service() {
    let before = traces();
    let agent = dormouse::init();
    if let Ok(agent) = agent {
        println!("on; {}", agent.warnings().join("; "));
        return;
    }
    assert!(matches!(agent, Err(InitError::Off)), "{agent:?}");
    let group = Group::new("GET /menu");
    group.scope(|| step(2));
    let word = 0_u64;
    let watched = WatchSpec::new((&raw const word).addr(), 8, Access::Write);
    let refused = [
        dormouse::start_counting(&[Event::TASK_CLOCK]).map(drop).unwrap_err().to_string(),
        dormouse::Waiting::start().map(drop).unwrap_err().to_string(),
        dormouse::trace("off.*").map(drop).unwrap_err().to_string(),
        dormouse::recorder::start("off.*", 1 << 20).map(drop).unwrap_err().to_string(),
        dormouse::triggers::add("panic").map(drop).unwrap_err().to_string(),
        dormouse::long_polls(Duration::from_millis(10)).map(drop).unwrap_err().to_string(),
        dormouse::Publishing::start().map(drop).unwrap_err().to_string(),
        group.budget(Duration::from_secs(1)).map(drop).unwrap_err().to_string(),
        group.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact).map(drop).unwrap_err().to_string(),
        Metrics::start(&MetricsSpec::new()).map(drop).unwrap_err().to_string(),
        LockTimes::start(Holds::Sampled).map(drop).unwrap_err().to_string(),
        watched.arm().map(drop).unwrap_err().to_string(),
        Watch::for_group(group, &watched).map(drop).unwrap_err().to_string(),
    ];
    let profiles = [ProfileSpec::cpu(), ProfileSpec::wall(), ProfileSpec::alloc(), ProfileSpec::faults()]
        .map(|spec| dormouse::ProfileRun::start(&spec).map(drop).unwrap_err().to_string());
    let refused = [&refused[..], &profiles].concat();
    assert!(refused.iter().all(|why| why.contains("dormouse is off")), "{refused:?}");
    assert!(!dormouse::waits::is_on() && group.read_counts().is_empty());
    assert_eq!(traces(), before);
    // A key of the service's own, and a budget of a task, are its behaviour.
    FLAG.enable().unwrap();
    assert!(dormouse::unlikely!(FLAG));
    let (exceeded, told) = mpsc::channel();
    let budget = TaskBudget::new(Duration::ZERO, move |used| exceeded.send(used).unwrap());
    drop(budget.enter());
    told.try_recv().unwrap();
    println!("off");
}

fn run(setting: &str) -> String {
    run_program(Command::new(std::env::current_exe().unwrap()), setting)
}

/// Runs a program that has more rights than its user; `None`: this user may make none.
fn run_with_rights(setting: &str) -> Option<String> {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("service");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // The kernel gives programs no rights there.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let flags = rustix::fs::statvfs(place.path()).unwrap().f_flag;
    if flags.contains(StatVfsMountFlags::NOSUID) || status.contains("NoNewPrivs:\t1") {
        return None;
    }
    let [user, group] = [65533, 65532];
    chown(&program, None, Some(group)).ok()?;
    for (path, mode) in [(place.path(), 0o755), (&*program, 0o2755)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let mut service = Command::new(&program);
    service.uid(user).gid(user);
    Some(run_program(service, setting))
}

fn run_program(mut service: Command, setting: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    service.env("DORMOUSE_TEST_SERVICE", "1").env("DORMOUSE_RUNTIME_DIR", place.path());
    service.env("DORMOUSE_COUNT", "task-clock").env("DORMOUSE_WAITS", "1").env("DORMOUSE_ON", "off.step");
    service.env("DORMOUSE_RECORD", "off.*").env("DORMOUSE_TRIGGERS", "panic");
    service.env("DORMOUSE_RECORD_DIR", place.path());
    let output = service.env("DORMOUSE", setting).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

pub(crate) fn main() {
    if std::env::var_os("DORMOUSE_TEST_SERVICE").is_some() {
        return service();
    }
    assert_eq!(run("off"), "off");
    assert_eq!(run("on"), "on;");
    assert_eq!(run(""), "on;");
    let warned = run("of");
    assert!(warned.starts_with("on; DORMOUSE is \"of\", and counts as `on`"), "{warned}");
    // Not read: the user could have the program do more than it may.
    let mut passed = 4;
    match run_with_rights("off") {
        Some(said) => {
            assert!(said.starts_with("on;"), "{said}");
            passed += 1;
        }
        None => dormouse_testkit::skip("this user may give no program more rights"),
    }
    println!("{passed} passed, 0 failed");
}
