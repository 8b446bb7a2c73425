//! The command on live services, as people and scripts use it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{self, DORMOUSE, HANG, Running, Service, command, finish, run};

#[test]
fn ps_lists_services_with_what_they_are() {
    let service = Service::idle();
    let text = run(["ps"]);
    assert_eq!(text.code, Some(0));
    let head: Vec<&str> = text.stdout.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(head, ["PID", "NAME", "UID", "KEYS", "SITES", "VERSION"], "{}", text.stdout);
    let json = run(["--json", "ps"]).json();
    assert_eq!(json["schema"], 1);
    let rows = json["processes"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["pid"] == service.pid()).expect("the service");
    assert_eq!((&row["name"], &row["agent"]["protocol"]), (&"teaparty".into(), &1.into()));
    assert!(row["agent"]["keys"].as_u64() > Some(0) && row["agent"]["sites"].as_u64() > Some(0), "{row}");
}

#[test]
fn nonsense_settings_are_told_at_the_start() {
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let mut child = command(["teaparty", "--load", "10", "--for", "200ms"]);
    child.env("DORMOUSE_RUNTIME_DIR", runtime.path());
    child.envs([
        ("DORMOUSE_CLOCK", "sundial"),
        ("DORMOUSE_KEYS", "sledgehammer"),
        ("DORMOUSE_UNWIND_MEMORY", "a barn"),
    ]);
    let run = support::finish(child);
    assert_eq!(run.code, Some(0), "it serves all the same: {run:?}");
    for name in
        ["DORMOUSE_CLOCK=sundial", "DORMOUSE_KEYS=sledgehammer", "DORMOUSE_UNWIND_MEMORY is \"a barn\""]
    {
        assert!(run.stderr.contains(name), "{run:?}");
    }
    let mut doctor = command(["doctor"]);
    doctor.env("DORMOUSE_CLOCK", "sundial");
    let said = support::finish(doctor).stdout;
    assert!(said.contains("DORMOUSE_CLOCK=sundial") && said.contains("unset DORMOUSE_CLOCK"), "{said}");
    let read = said.lines().find(|line| line.contains("clock.read")).expect("what a read costs");
    assert!(read.contains(" ns by ") && said.contains("clock.thread"), "{said}");
}

#[test]
fn trace_prints_records_in_order_and_switches_off() {
    let service = Service::busy();
    let trace = run(["--json", "trace", &service.target(), "*", "--count", "200"]);
    assert_eq!(trace.code, Some(0), "{}", trace.stderr);
    let mut lines = trace.json_lines();
    let (start, end) = (lines.remove(0), lines.pop().expect("an end"));
    assert_eq!((&start["type"], &start["pid"]), (&"start".into(), &service.pid().into()));
    assert!(start["probes"].as_array().is_some_and(|probes| !probes.is_empty()));
    assert_eq!((&end["type"], &end["tally"]["records"]), (&"end".into(), &200.into()));
    assert_eq!(lines.len(), 200);
    let time = |line: &Value| line["time_unix_ns"].as_u64().expect("a time");
    assert!(lines.is_sorted_by_key(time), "records of all threads are in one order");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_nanos();
    assert!(lines.iter().all(|line| u128::from(time(line)).abs_diff(now) < HANG.as_nanos()), "and of today");
    let menu = lines.iter().find(|line| line["probe"] == "menu.read").expect("somebody read the menu");
    assert_eq!((&menu["group"], &menu["phase"]), (&"GET /menu".into(), &"point".into()));
    assert!(menu["fields"]["items"].is_u64() && menu["thread"].is_string() && menu["tid"].is_u64(), "{menu}");
    let exit = lines.iter().find(|line| line["phase"] == "exit").expect("a probed function");
    assert!(exit["fields"]["elapsed_ns"].is_u64(), "{exit}");
    service.await_keys_on("*", |on| on == 0);
}

#[test]
fn trace_ends_by_time_count_and_signal() {
    let service = Service::busy();
    let timed = run(["trace", &service.target(), "menu.*", "--for", "1s"]);
    assert!(timed.code == Some(0) && timed.stderr.contains(" records in "), "{timed:?}");
    let line = timed.stdout.lines().next().expect("a record");
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(&words[2..5], ["GET", "/menu", "menu.read"], "{line}");
    assert!(words[0].len() == 18 && line.contains("items="), "{line}");
    let counted = run(["trace", &service.target(), "*", "-n", "3"]);
    assert_eq!((counted.code, counted.stdout.lines().count()), (Some(0), 3));
    for signal in [Signal::INT, Signal::TERM] {
        let mut trace = Running::start(["trace", &service.target(), "*"]);
        trace.line();
        let ended = trace.end_by(signal);
        assert!(ended.code == Some(0) && ended.stderr.contains(" record"), "{ended:?}");
        service.await_keys_on("*", |on| on == 0);
    }
}

#[test]
fn a_request_over_budget_shows_in_trace() {
    let service = Service::start(|command| {
        command.args(["--cpu-budget", "2ms"]);
    });
    let mut trace = Running::start(["--json", "trace", &service.target(), "dormouse.over_budget"]);
    let start: Value = serde_json::from_str(&trace.line()).expect("a line of JSON");
    assert_eq!(start["type"], "start", "{start}");
    // Waiting is no burning; and one over the budget is enough. On a slow machine the first of all
    // may burn as much.
    for path in ["/menu", "/steep?ms=50", "/blend?spoons=32"] {
        let answer = service.get(path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let of_blend = |record: &Value| {
        assert_ne!(record["group"], "GET /steep", "{record}");
        record["group"] == "GET /blend"
    };
    let record = loop {
        let record: Value = serde_json::from_str(&trace.line()).expect("a line of JSON");
        if of_blend(&record) {
            break record;
        }
    };
    let fields = &record["fields"];
    assert_eq!(record["probe"], "dormouse.over_budget", "{record}");
    assert_eq!(fields["limit_us"], 2000, "{record}");
    assert!(fields["cpu_us"].as_u64() >= Some(2000), "{record}");
    let ended = trace.end_by(Signal::INT);
    let more = ended.json_lines().into_iter().filter(|line| line["probe"].is_string());
    assert_eq!(more.filter(of_blend).count(), 0, "one over the budget is enough: {ended:?}");
}

#[test]
fn a_trace_leaves_flags_of_the_service_alone() {
    let service = Service::idle();
    for verb in ["trace", "record"] {
        run([verb, &service.target(), "menu.fancy"])
            .assert_fails(1, &["no probe matches", "`menu.fancy`", "dormouse keys"]);
    }
    // Beside a probe: that alone is on.
    let mut trace = Running::start(["trace", &service.target(), "menu.*", "--json"]);
    let start: Value = serde_json::from_str(&trace.line()).expect("a line of JSON");
    assert_eq!(
        (&start["type"], &start["matched"]),
        (&"start".into(), &serde_json::json!(["menu.read"])),
        "{start}"
    );
    let keys = run(["keys", &service.target(), "menu.*", "--json"]);
    let keys: Value = serde_json::from_str(&keys.stdout).expect("one document");
    let on = keys["keys"].as_array().expect("keys").iter().filter(|key| key["on"] == true);
    assert_eq!(on.map(|key| &key["name"]).collect::<Vec<_>>(), ["menu.read"], "{keys}");
    trace.end_by(Signal::INT);
}

#[test]
fn top_once_accounts_for_the_process() {
    let service = Service::busy();
    let text = run(["top", &service.target(), "--once", "--interval", "500ms"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    for part in [
        "% in groups",
        "GROUP",
        "GET /menu",
        "(unattributed)",
        "(process)",
        "(before)",
        "THREAD",
        "REQ/s",
        "POLLS/s",
    ] {
        assert!(text.stdout.contains(part), "no {part} in {}", text.stdout);
    }
    let top = run(["--json", "top", &service.target(), "--once"]).json();
    assert!(top["interval_ns"].as_u64() >= Some(1_000_000_000), "{top}");
    let cpu = |row: &Value| row["cpu_ns"].as_f64().expect("CPU time");
    let groups: f64 = top["groups"].as_array().expect("groups").iter().map(cpu).sum();
    let (process, rest) = (cpu(&top["process"]), cpu(&top["unattributed"]));
    assert!((groups - (process - rest)).abs() <= 0.05 * process, "{groups} of {process} less {rest}");
    // Nothing was counted before, so what groups used then is charged to none now.
    let counted = top["counted_ns"].as_f64().expect("the time it is of");
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as f64;
    assert!(process <= 1.05 * counted * processors, "{process} in {counted}: {top}");
    assert!(top["before_cpu_ns"].as_u64() > Some(0), "{top}");
    let menu = top["groups"]
        .as_array()
        .expect("groups")
        .iter()
        .find(|row| row["name"] == "GET /menu")
        .expect("a route");
    assert!(menu["requests_per_s"].as_f64() > Some(0.0) && menu["cpu_ns_per_request"].is_u64(), "{menu}");
    assert!(menu["polls_per_s"].as_f64() > Some(0.0) && menu["cpu_percent"].as_f64() > Some(0.0), "{menu}");
}

#[test]
fn hidden_commands_are_not_suggested() {
    for name in ["tp", "teapart", "teapar"] {
        let refused = run([name]);
        assert!(refused.code == Some(2) && !refused.stderr.contains("teaparty"), "{refused:?}");
    }
    let near = run(["stt"]);
    assert!(near.code == Some(2) && near.stderr.contains("'stat'"), "{near:?}");
}

#[test]
fn top_prints_snapshots_without_a_terminal() {
    let service = Service::idle();
    let top = run(["top", &service.target(), "--count", "3", "--interval", "100ms"]);
    assert_eq!((top.code, top.stdout.matches("(process)").count()), (Some(0), 3), "{top:?}");
    let mut endless = Running::start(["--json", "top", &service.target(), "--interval", "50ms"]);
    for _ in 0..3 {
        let line: Value = serde_json::from_str(&endless.line()).expect("JSON");
        assert_eq!(line["pid"], service.pid());
    }
    assert_eq!(endless.end_by(Signal::INT).code, Some(0));
}

#[test]
fn top_ends_with_its_service() {
    let mut service = Service::idle();
    let mut top = Running::start(["--json", "top", &service.target(), "--interval", "50ms"]);
    top.line();
    service.kill();
    let ended = top.end();
    assert!(ended.code == Some(1) && ended.stderr.contains("has ended"), "{ended:?}");
}

#[test]
fn doctor_examines_machine_and_process() {
    let service = Service::idle();
    for args in [&["--json", "doctor"][..], &["--json", "doctor", &service.target()]] {
        let doctor = run(args);
        let json = doctor.json();
        let checks = json["checks"].as_array().expect("checks");
        let all_well = checks.iter().all(|check| check["state"] != "unavailable");
        assert_eq!(doctor.code, Some(i32::from(!all_well)), "{json}");
        assert!(checks.iter().any(|check| check["name"] == "clock.thread"), "{json}");
        assert!(checks.iter().all(|check| check["detail"].is_string()), "{json}");
        let frames = checks.iter().find(|check| check["name"] == "profile.frame-pointers");
        assert_eq!(frames.is_some(), json["pid"].is_u64(), "of a process alone: {json}");
        let has_names = checks.iter().any(|check| check["name"] == "profile.names");
        assert_eq!(has_names, json["pid"].is_u64(), "of a process alone: {json}");
        let stacks = checks.iter().any(|check| check["name"] == "profile.stacks");
        assert_eq!(stacks, json["pid"].is_u64(), "of a process alone: {json}");
        // The service is built as this test is, one way or the other.
        if let Some(check) = frames {
            assert!(
                check["detail"].as_str().is_some_and(|it| it.contains(" functions of its own")),
                "{json}"
            );
            assert_eq!(check["state"] == "limited", check["fix"].is_string(), "{json}");
        }
    }
    let text = run(["doctor"]).stdout;
    assert!(text.starts_with("this machine\nSTATE"), "{text}");
}

#[test]
fn completions_and_man_pages_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(["generate", "completions", shell]);
        assert!(script.code == Some(0) && script.stdout.contains("dormouse"), "{shell}");
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pages = dir.path().join("man");
    assert_eq!(run(["generate".as_ref(), "man".as_ref(), pages.as_os_str()]).code, Some(0));
    assert!(pages.join("dormouse-trace.1").exists());
    run(["generate", "man", "/proc/nowhere"]).assert_fails(1, &["cannot write man pages to /proc/nowhere"]);
}

#[test]
fn colour_is_for_terminals_or_on_request() {
    assert!(!run(["doctor"]).stdout.contains('\x1b'), "not into a pipe");
    assert!(run(["doctor", "--color", "always"]).stdout.contains("\x1b["));
    let json = run(["--json", "doctor", "--color", "always"]).stdout;
    assert!(!json.contains("\\u001b") && !json.contains('\x1b'), "never in JSON");
}

#[test]
fn a_service_in_other_namespaces_is_found() {
    if !rustix::process::geteuid().is_root() {
        return support::skip("only root can make namespaces here");
    }
    // A container in small: its own process ids, its own file system, a socket that is nowhere in
    // ours.
    let script = "mount -t tmpfs none /tmp && exec \"$0\" teaparty --exit-with-parent";
    let spawned = std::process::Command::new("unshare")
        .args(["--pid", "--fork", "--mount", "--mount-proc", "sh", "-c", script])
        .arg(support::DORMOUSE)
        .env_remove("DORMOUSE_RUNTIME_DIR")
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut outside) = spawned else { return support::skip("there is no unshare") };
    let mut line = String::new();
    BufReader::new(outside.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    if line.is_empty() {
        outside.wait().expect("its end");
        return support::skip("namespaces cannot be made here");
    }
    let children = format!("/proc/{0}/task/{0}/children", outside.id());
    let inside = std::fs::read_to_string(children).expect("its child");
    let inside = inside.trim();
    let pid: u64 = inside.parse().expect("one child");

    let keys = run(["--json", "keys", inside, "menu.*"]);
    assert_eq!(keys.code, Some(0), "{keys:?}");
    let on = run(["on", inside, "menu.*", "--keep"]);
    assert_eq!(on.code, Some(0), "{on:?}");
    let listed = run(["--json", "ps"]).json();
    let rows = listed["processes"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["pid"].as_u64() == Some(pid)).expect("the service, by our number");
    assert_eq!(row["agent"]["pid"], 1, "its own number is another: {row}");

    drop(outside.stdin.take());
    outside.wait().expect("its end");
}

#[test]
fn a_service_shows_what_dormouse_costs_it() {
    let service = Service::visited();
    let snapshots = run(["--json", "top", &service.target(), "-n", "2", "-i", "300ms"]).json_lines();
    let own = &snapshots.last().expect("a snapshot")["own"];
    for part in ["threads_ns", "polls_ns", "memory_bytes"] {
        assert!(own[part].as_u64().is_some_and(|value| value > 0), "{part}: {own}");
    }
    assert!(own["cpu_percent"].as_f64().is_some_and(|percent| percent > 0.0), "{own}");
    let text = run(["top", &service.target(), "-n", "1", "-i", "300ms"]).stdout;
    assert!(text.contains(", dormouse costs "), "{text}");
    assert!(run(["doctor", &service.target()]).stdout.contains("dormouse has used"));
}

#[test]
fn clients_are_listed_with_what_they_take() {
    let service = support::Service::idle();
    let mut top = support::Running::start(["--json", "top", &service.target()]);
    top.line();
    let listed = run(["--json", "clients", &service.target()]).json();
    let clients = listed["clients"].as_array().expect("a list");
    let watched = clients.iter().find(|client| client["pid"] == top.pid()).expect("the one that watches");
    assert_eq!(watched["does"], serde_json::json!(["counts task-clock"]), "{listed}");
    assert!(watched["client"].as_str().is_some_and(|name| name.starts_with("dormouse top ")), "{listed}");
    assert_eq!(clients.iter().filter(|client| client["asks"] == true).count(), 1, "{listed}");
    let text = run(["clients", &service.target()]).stdout;
    assert!(text.contains("counts task-clock") && text.contains("lists this"), "{text}");
    top.end_by(rustix::process::Signal::INT);
}

#[test]
fn an_ignored_hangup_ends_no_run() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" stat -r 2 -- sleep 0.2", DORMOUSE]);
    let stat = finish(command);
    assert!(stat.code == Some(0) && stat.stdout.contains("2 runs"), "{stat:?}");
}
