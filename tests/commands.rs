//! The command on live services, as people and scripts use it.

mod support;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use support::{HANG, Running, Service, command, run, signal_to};

#[test]
fn ps_lists_services_with_what_they_are() {
    let service = Service::idle();
    let text = run(["ps"]);
    assert_eq!(text.code, Some(0));
    assert!(text.stdout.starts_with("  PID  NAME") || text.stdout.contains("PID  NAME"), "{}", text.stdout);
    let json = run(["--json", "ps"]).json();
    assert_eq!(json["schema"], 1);
    let rows = json["processes"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["pid"] == service.pid()).expect("the service");
    assert_eq!((&row["name"], &row["agent"]["protocol"]), (&"teaparty".into(), &1.into()));
    assert!(row["agent"]["keys"].as_u64() > Some(0) && row["agent"]["sites"].as_u64() > Some(0), "{row}");
}

#[test]
fn keys_lists_what_a_glob_selects_as_text_and_as_json() {
    let service = Service::idle();
    let text = run(["keys", &service.target(), "menu.*"]).stdout;
    let head = text.lines().next().expect("a head");
    assert_eq!(
        head.split_whitespace().collect::<Vec<_>>(),
        ["NAME", "STATE", "KIND", "SITES", "FIELDS", "WHERE"]
    );
    let row = text.lines().find(|line| line.starts_with("menu.read")).expect("a probe");
    assert!(row.contains("off") && row.contains("probe") && row.contains("menu.rs:"), "{row}");
    let json = run(["keys", &service.target(), "*,!menu.*", "--json"]).json();
    let keys = json["keys"].as_array().expect("a list");
    assert!(
        !keys.is_empty()
            && keys.iter().all(|key| !key["name"].as_str().expect("a name").starts_with("menu."))
    );
}

#[test]
fn on_in_the_foreground_holds_until_ctrl_c() {
    for signal in [Signal::INT, Signal::TERM] {
        let service = Service::idle();
        let mut on = Running::start(["on", &service.target(), "menu.*"]);
        assert!(on.line().starts_with("on: "));
        assert!(service.keys_on("menu.*") > 0);
        assert_eq!(service.keys_on("order.*"), 0);
        let ended = on.end_by(signal);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(
            ended.stdout.contains("  menu.read\n") && ended.stderr.contains("Ctrl-C switches them off"),
            "{ended:?}"
        );
        service.await_keys_on("*", |on| on == 0);
    }
}

#[test]
fn on_in_the_foreground_ends_with_its_service() {
    let mut service = Service::idle();
    let mut on = Running::start(["on", &service.target(), "*"]);
    assert!(on.line().starts_with("on: "));
    service.kill();
    let ended = on.end();
    assert!(ended.code == Some(1) && ended.stderr.contains("ended, or closed the connection"), "{ended:?}");
}

#[test]
fn a_timed_lease_outlives_the_command_and_ends_by_itself() {
    let service = Service::idle();
    let on = run(["--json", "on", &service.target(), "menu.read", "--for", "2s"]);
    assert_eq!(on.code, Some(0), "{on:?}");
    assert_eq!((&on.json()["state"], &on.json()["matched"][0]), (&"on".into(), &"menu.read".into()));
    assert_eq!(service.keys_on("menu.read"), 1);
    service.await_keys_on("menu.read", |on| on == 0);
}

#[test]
fn a_shorter_time_announces_the_one_that_holds() {
    let service = Service::idle();
    let target = &service.target();
    let long = run(["--json", "on", target, "menu.read", "--for", "10m"]);
    let done = long.json();
    assert_eq!(done["mode"], "timed");
    assert!(done["off_in_ms"].as_u64() > Some(500_000), "{done}");
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_millis();
    assert!(done["off_at_unix_ms"].as_u64().map(u128::from) > Some(now), "{done}");
    let short = run(["on", target, "menu.read", "--for", "5s"]);
    assert!(short.stderr.contains("an earlier --for holds longer"), "{short:?}");
    let kept = run(["--json", "on", target, "menu.read", "--keep"]).json();
    assert_eq!((&kept["mode"], &kept["off_at_unix_ms"]), (&"kept".into(), &Value::Null));
    let off = run(["--json", "off", target, "menu.read"]).json();
    assert_eq!((&off["mode"], &off["state"]), (&"now".into(), &"off".into()));
}

#[test]
fn off_lists_what_it_changed_and_nothing_else() {
    let service = Service::idle();
    let target = &service.target();
    assert_eq!(run(["on", target, "menu.read", "--keep"]).code, Some(0));
    let off = run(["off", target, "*"]);
    let names: Vec<&str> = off.stdout.lines().skip(1).map(str::trim).collect();
    assert_eq!(names, ["menu.read"], "{off:?}");
    let json = run(["--json", "off", target, "*"]).json();
    assert_eq!((&json["changed"], &json["names"]), (&0.into(), &serde_json::json!([])));
}

#[test]
fn a_setting_that_is_nonsense_is_told_at_the_start_and_by_doctor() {
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let mut child = command(["teaparty", "--load", "10", "--for", "200ms"]);
    child.env("DORMOUSE_RUNTIME_DIR", runtime.path());
    child.envs([("DORMOUSE_CLOCK", "sundial"), ("DORMOUSE_KEYS", "sledgehammer")]);
    let run = support::finish(child);
    assert_eq!(run.code, Some(0), "it serves all the same: {run:?}");
    for name in ["DORMOUSE_CLOCK=sundial", "DORMOUSE_KEYS=sledgehammer"] {
        assert!(run.stderr.contains(name), "{run:?}");
    }
    let mut doctor = command(["doctor"]);
    doctor.env("DORMOUSE_CLOCK", "sundial");
    let said = support::finish(doctor).stdout;
    assert!(said.contains("DORMOUSE_CLOCK=sundial") && said.contains("unset DORMOUSE_CLOCK"), "{said}");
    let read = said.lines().find(|line| line.contains("clock.read")).expect("what a read costs");
    assert!(read.contains(" ns by ") && said.contains("clock.thread"), "{said}");
}

/// What the service says of the keys that match.
fn keys_of(service: &Service, glob: &str) -> Vec<Value> {
    let run = run(["--json", "keys", &service.target(), glob]);
    run.json()["keys"].as_array().expect("a list of keys").clone()
}

#[test]
fn keys_lists_who_holds_a_key_and_for_how_long() {
    let service = Service::idle();
    let target = &service.target();
    assert_eq!(run(["on", target, "menu.read", "--for", "10m"]).code, Some(0));
    let timed = &keys_of(&service, "menu.read")[0];
    let left = timed["off_in_ms"].as_u64().expect("nothing but time keeps it on");
    assert!((1..=600_000).contains(&left), "{timed}");
    assert_eq!((&timed["held"][0]["by"], &timed["held"][0]["pid"]), (&"user".into(), &0.into()));
    let text = run(["keys", target, "menu.read"]).stdout;
    assert!(text.contains("HELD BY") && text.contains("on, off in ") && text.contains("user "), "{text}");

    let mut clients = [(); 2].map(|()| Running::start(["on", target, "menu.read"]));
    for on in &mut clients {
        assert_eq!(on.line(), "on: no key changed\n");
    }
    let held = &keys_of(&service, "menu.read")[0];
    assert_eq!((&held["leases"], &held["off_in_ms"]), (&3.into(), &Value::Null), "{held}");
    let pids = |held: &Value| {
        let each = held["held"].as_array().expect("holders").iter();
        each.filter(|h| h["by"] == "client").map(|h| h["pid"].as_u64()).collect::<Vec<_>>()
    };
    for on in &clients {
        assert!(pids(held).contains(&Some(on.pid().into())), "{held}");
    }
    // One goes, the other holds on.
    let [first, second] = clients;
    first.end_by(Signal::KILL);
    let start = std::time::Instant::now();
    while pids(&keys_of(&service, "menu.read")[0]) != [Some(second.pid().into())] {
        assert!(start.elapsed() < HANG);
    }
    assert_eq!(service.keys_on("menu.read"), 1);
    second.end_by(Signal::INT);
    assert_eq!(run(["off", target, "*"]).code, Some(0), "one's own timed lease ends with it");
    assert_eq!(service.keys_on("*"), 0);
}

#[test]
fn on_with_a_dwell_time_lingers_and_is_taken_up_again_without_patching() {
    let service = Service::idle();
    let target = &service.target();
    for round in 0..3 {
        let mut on = Running::start(["on", target, "menu.*", "--dwell", "10m"]);
        let head = on.line();
        assert_eq!(head == "on: no key changed\n", round > 0, "{head}");
        let ended = on.end_by(Signal::INT);
        assert!(
            ended.code == Some(0) && ended.stderr.contains("switches them off 10m00s later"),
            "{ended:?}"
        );
        // The agent notices the end of the connection.
        let start = std::time::Instant::now();
        let lingers = |key: &Value| key["leases"] == 1 && key["held"][0]["by"] == "nobody";
        while !keys_of(&service, "menu.*").iter().all(lingers) {
            assert!(start.elapsed() < HANG);
        }
    }
    let text = run(["keys", target, "menu.read"]).stdout;
    assert!(text.contains("on, off in "), "{text}");
    assert_eq!(run(["off", target, "menu.*"]).code, Some(0), "off is off");
    assert_eq!(service.keys_on("*"), 0);
}

#[test]
fn times_that_are_none_too_long_or_at_odds_are_refused_by_name() {
    for (args, part) in [
        (&["on", "1", "*", "--for", "0s"][..], "more than nothing"),
        (&["on", "1", "*", "--for", "32d"], "longer than 31d00h"),
        (&["on", "1", "*", "--dwell", "32d"], "longer than 31d00h"),
        (&["off", "1", "*", "--dwell", "0ms"], "more than nothing"),
        (&["on", "1", "*", "--dwell", "1s", "--for", "1s"], "cannot be used with"),
        (&["on", "1", "*", "--dwell", "1s", "--keep"], "cannot be used with"),
    ] {
        run(args.iter().copied()).assert_fails(2, &[part]);
    }
}

#[test]
fn off_with_a_dwell_time_is_deferred() {
    let service = Service::idle();
    let target = &service.target();
    assert_eq!(run(["on", target, "menu.read", "--keep"]).code, Some(0));
    let off = run(["off", target, "menu.read", "--dwell", "10m"]);
    assert!(off.code == Some(0) && off.stdout.starts_with("off: no key changed"), "{off:?}");
    assert!(off.stderr.contains("goes off in 10m00s"), "{off:?}");
    let key = &keys_of(&service, "menu.read")[0];
    assert_eq!((&key["on"], &key["baseline"]), (&true.into(), &false.into()));
    assert!(key["off_in_ms"].as_u64().is_some_and(|ms| ms > 0), "{key}");
    assert_eq!(run(["off", target, "menu.read", "--dwell", "1ms"]).code, Some(0));
    assert_eq!(service.keys_on("menu.read"), 1, "a dwell time is never cut short by another");
    assert_eq!(run(["off", target, "menu.read"]).code, Some(0));
    assert_eq!(service.keys_on("menu.read"), 0);
    run(["on", target, "menu.read", "--keep"]);
    run(["off", target, "menu.read", "--dwell", "50ms"]);
    service.await_keys_on("menu.read", |on| on == 0);
}

#[test]
fn what_is_kept_on_stays_until_off() {
    let service = Service::idle();
    let target = &service.target();
    assert_eq!(run(["on", target, "menu.*", "--keep"]).code, Some(0));
    assert!(service.keys_on("menu.*") > 0);
    let again = run(["on", target, "menu.*", "--keep"]);
    assert!(again.stdout.starts_with("on: no key changed"), "{again:?}");
    let off = run(["off", target, "*"]);
    assert!(off.code == Some(0) && off.stdout.starts_with("off: "), "{off:?}");
    assert_eq!(service.keys_on("*"), 0);
}

#[test]
fn off_lists_what_others_hold_and_ends_it_by_force_only() {
    let service = Service::idle();
    let mut on = Running::start(["on", &service.target(), "menu.*"]);
    on.line();
    let off = run(["off", &service.target(), "*"]);
    assert_eq!(off.code, Some(1), "a negative finding: {off:?}");
    let holder = format!("process {} of user", on.pid());
    assert!(
        off.stderr.contains("still on") && off.stderr.contains(&holder) && off.stderr.contains("--force"),
        "{off:?}"
    );
    assert!(service.keys_on("menu.*") > 0);
    assert_eq!(run(["off", &service.target(), "*", "--force"]).code, Some(0));
    assert_eq!(service.keys_on("*"), 0);
    let told = on.end();
    assert_eq!(told.code, Some(1), "it has nothing left to hold: {told:?}");
    assert!(
        told.stderr.contains("switched off by force:") && told.stderr.contains("nothing is held"),
        "{told:?}"
    );
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
fn trace_ends_by_time_by_count_and_by_ctrl_c_with_0() {
    let service = Service::busy();
    let timed = run(["trace", &service.target(), "menu.*", "--for", "1s"]);
    assert!(timed.code == Some(0) && timed.stderr.contains(" records in 1."), "{timed:?}");
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
fn a_request_that_burns_more_than_its_cpu_budget_shows_in_a_trace_and_others_do_not() {
    let service = Service::start(|command| {
        command.args(["--cpu-budget", "2ms"]);
    });
    let mut trace = Running::start(["--json", "trace", &service.target(), "http.over_budget"]);
    let start: Value = serde_json::from_str(&trace.line()).expect("a line of JSON");
    assert_eq!(start["type"], "start", "{start}");
    // Waiting is no burning; and one over the budget is enough.
    for path in ["/steep?ms=50", "/menu", "/blend?spoons=32"] {
        let answer = service.get(path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let record: Value = serde_json::from_str(&trace.line()).expect("a line of JSON");
    let fields = &record["fields"];
    assert_eq!((&record["probe"], &record["group"]), (&"http.over_budget".into(), &"GET /blend".into()));
    assert_eq!((&fields["route"], &fields["limit_us"]), (&"GET /blend".into(), &2000.into()), "{record}");
    assert!(fields["cpu_us"].as_u64() >= Some(2000), "{record}");
    let ended = trace.end_by(Signal::INT);
    assert_eq!(ended.json_lines().last().expect("an end")["tally"]["records"], 1, "{ended:?}");
}

#[test]
fn a_trace_of_keys_that_are_no_probes_says_that_it_will_be_silent() {
    let service = Service::idle();
    let trace = run(["trace", &service.target(), "menu.fancy", "--for", "100ms"]);
    assert!(
        trace.code == Some(0) && trace.stderr.contains("none of the 1 matched key is a probe"),
        "{trace:?}"
    );
}

#[test]
fn top_once_accounts_for_the_process() {
    let service = Service::busy();
    let text = run(["top", &service.target(), "--once", "--interval", "500ms"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    for part in ["GROUP", "GET /menu", "(unattributed)", "(process)", "THREAD", "POLLS/s"] {
        assert!(text.stdout.contains(part), "no {part} in {}", text.stdout);
    }
    let top = run(["--json", "top", &service.target(), "--once"]).json();
    assert!(top["interval_ns"].as_u64() >= Some(1_000_000_000), "{top}");
    let cpu = |row: &Value| row["cpu_ns"].as_f64().expect("CPU time");
    let groups: f64 = top["groups"].as_array().expect("groups").iter().map(cpu).sum();
    let (process, rest) = (cpu(&top["process"]), cpu(&top["unattributed"]));
    assert!((groups - (process - rest)).abs() <= 0.05 * process, "{groups} of {process} less {rest}");
    let menu = top["groups"]
        .as_array()
        .expect("groups")
        .iter()
        .find(|row| row["name"] == "GET /menu")
        .expect("a route");
    assert!(menu["polls_per_s"].as_f64() > Some(0.0) && menu["cpu_percent"].as_f64() > Some(0.0), "{menu}");
}

#[test]
fn top_prints_one_snapshot_after_the_other_where_nobody_watches() {
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
fn doctor_looks_at_this_machine_and_at_a_process() {
    let service = Service::idle();
    for args in [&["--json", "doctor"][..], &["--json", "doctor", &service.target()]] {
        let doctor = run(args);
        let json = doctor.json();
        let checks = json["checks"].as_array().expect("checks");
        let all_well = checks.iter().all(|check| check["state"] != "unavailable");
        assert_eq!(doctor.code, Some(i32::from(!all_well)), "{json}");
        assert!(checks.iter().any(|check| check["name"] == "clock.thread"), "{json}");
        assert!(checks.iter().all(|check| check["detail"].is_string()), "{json}");
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
fn the_demo_shows_every_route_records_and_what_came_of_it() {
    let demo = run(["demo", "--for", "4s", "--plain"]);
    assert_eq!(demo.code, Some(0), "{demo:?}");
    assert_eq!(demo.stdout.matches("(process)").count(), 5, "tables and the sum: {}", demo.stdout);
    for part in
        ["all on: ", "all off: ", "menu.read", "requests served", "no error", " keys, ", "CPU us/REQUEST"]
    {
        assert!(demo.stdout.contains(part), "no {part:?} in {}", demo.stdout);
    }

    let demo = run(["--json", "demo", "--for", "4s"]);
    assert_eq!(demo.code, Some(0), "{demo:?}");
    let lines = demo.json_lines();
    let summary = lines.last().expect("a summary");
    assert_eq!((&summary["type"], &summary["errors"]), (&"summary".into(), &0.into()));
    assert!(summary["served"].as_u64() > Some(100) && summary["on"]["sites"].as_u64() > Some(0), "{summary}");
    assert_eq!(summary["on"]["sites"], summary["off"]["sites"]);
    let routes = summary["routes"].as_array().expect("routes");
    assert!(routes.len() >= 4);
    for route in routes {
        assert!(route["cpu_ns"].as_u64() > Some(0) && route["served"].as_u64() > Some(0), "{route}");
    }
    assert!(lines.iter().any(|line| line["type"] == "record" && line["probe"].is_string()));
}

#[test]
fn a_demo_whose_service_dies_says_so() {
    let mut demo = Running::start(["--json", "demo", "--for", "1m"]);
    let start: Value = serde_json::from_str(&demo.line()).expect("JSON");
    signal_to(
        start["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process id"),
        Signal::KILL,
    );
    let ended = demo.end();
    assert!(
        ended.code == Some(1) && ended.stderr.contains("the demo's service ended: signal: 9"),
        "{ended:?}"
    );
}

#[test]
fn a_demo_whose_service_gets_no_agent_shows_its_complaint() {
    let mut command = command(["demo", "--for", "1s", "--plain"]);
    command.env("DORMOUSE_RUNTIME_DIR", "/proc/nowhere");
    let run = support::finish(command);
    assert!(run.code == Some(1) && run.stderr.contains("/proc/nowhere"), "{run:?}");
}

#[test]
fn a_demo_that_is_interrupted_takes_its_service_with_it() {
    let mut demo = Running::start(["--json", "demo", "--for", "1m"]);
    let start: Value = serde_json::from_str(&demo.line()).expect("JSON");
    let ended = demo.end_by(Signal::INT);
    assert_eq!(ended.code, Some(130), "{ended:?}");
    assert!(!std::path::Path::new(&format!("/proc/{}", start["pid"])).exists(), "no service stays behind");
}

#[test]
fn a_demo_that_is_killed_takes_its_service_with_it() {
    let mut child = command(["--json", "demo", "--for", "1m"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a demo");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let start: Value = serde_json::from_str(&line).expect("JSON");
    child.kill().expect("a demo to kill");
    child.wait().expect("its end");
    let service = format!("/proc/{}", start["pid"]);
    let begun = std::time::Instant::now();
    while std::path::Path::new(&service).exists() {
        assert!(begun.elapsed() < HANG, "{service} lives on");
        std::thread::yield_now();
    }
}

#[test]
fn a_service_in_namespaces_of_its_own_is_found_and_asked() {
    if !rustix::process::geteuid().is_root() {
        return support::skip("only root can make namespaces here");
    }
    // A container in small: its own process ids, its own file system, a socket that is nowhere in ours.
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
