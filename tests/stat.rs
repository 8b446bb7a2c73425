//! `dormouse stat`: services, plain processes and commands, in text and in JSON.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::{DORMOUSE, Running, Service, command, finish, run, signal_to};
use dormouse_testkit::eventually;
use rustix::process::Signal;
use serde_json::Value;

/// A process without dormouse in it, which ends with the test.
struct Plain(Child);

impl Plain {
    fn start(script: &str) -> Plain {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        Plain(command.spawn().expect("a shell"))
    }

    fn busy() -> Plain {
        Plain::start("while :; do :; done")
    }

    fn target(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ns(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number of nanoseconds: {value}"))
}

/// A preloaded library under which CPU clocks of threads go a hundred times too fast. Clocks are
/// asked by the C library's `syscall`, whose arguments are where this has them.
const FAST: &str = "
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
long syscall(long n, long a, long b, long c, long d, long e, long f)
{
	long answer;
	register long r10 __asm__(\"r10\") = d, r8 __asm__(\"r8\") = e, r9 __asm__(\"r9\") = f;
	__asm__ volatile(\"syscall\" : \"=a\"(answer) : \"a\"(n), \"D\"(a), \"S\"(b), \"d\"(c), \"r\"(r10), \"r\"(r8),
			 \"r\"(r9) : \"rcx\", \"r11\", \"memory\");
	if (answer < 0 && answer > -4096) {
		errno = -answer;
		return -1;
	}
	int clock = a;
	if (n == SYS_clock_gettime && (clock == CLOCK_THREAD_CPUTIME_ID || (clock < 0 && clock & 4))) {
		struct timespec *time = (struct timespec *)b;
		long ns = 100 * (time->tv_sec * 1000000000 + time->tv_nsec);
		time->tv_sec = ns / 1000000000;
		time->tv_nsec = ns % 1000000000;
	}
	return answer;
}
";

#[test]
fn cpu_time_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let [source, library] = ["fast.c", "fast.so"].map(|name| folder.path().join(name));
    std::fs::write(&source, FAST).expect("a source");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiled.expect("a compiler").success());
    let service = Service::start(|command| {
        command.env("LD_PRELOAD", &library).args(["--load", "300", "--for", "10m"]);
    });
    let sentence = "CPU time of groups is refused: groups have more CPU time than their process";
    let mut text = run(["stat", &service.target(), "--for", "500ms"]);
    // Until groups have used enough.
    eventually(|| {
        text = run(["stat", &service.target(), "--for", "500ms"]);
        text.stdout.contains(sentence)
    });
    let menu = text.stdout.lines().find(|line| line.starts_with("GET /menu")).expect("a route");
    assert!(!menu.contains('.'), "neither milliseconds nor percent: {menu:?}");
    assert!(!text.stdout.contains("CPU time in groups"), "{}", text.stdout);
    let total = run(["--json", "stat", &service.target(), "--for", "100ms"]).json();
    assert!(total["cpu_refused"].is_string() && ns(&total["process"]["cpu_ns"]) > 0, "{total}");
    assert!(total["unattributed_cpu_ns"].is_null() && total["coverage_percent"].is_null(), "{total}");
    let groups = total["groups"].as_array().expect("groups");
    let is_absent = |group: &Value| group["cpu_ns"].is_null() && group["cpu_percent"].is_null();
    assert!(groups.len() > 2 && groups.iter().all(is_absent), "{total}");
    assert!(groups.iter().any(|group| group["requests"].as_u64() > Some(0)), "other figures stay");
    let top = run(["--json", "top", &service.target(), "--once"]).json();
    assert!(
        top["cpu_refused"].is_string() && top["groups"].as_array().unwrap().iter().all(is_absent),
        "{top}"
    );
    let top = run(["top", &service.target(), "--once"]);
    assert!(top.stdout.contains(sentence), "{top:?}");
}

#[test]
fn stat_counts_groups_and_threads() {
    let service = Service::busy();
    let text = run(["stat", &service.target(), "--for", "500ms"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    for part in [
        "CPU time",
        "CPUs used",
        "CPU time in groups",
        "GROUP",
        "GET /menu",
        "(unattributed)",
        "(process)",
        "THREAD",
        "within",
    ] {
        assert!(text.stdout.contains(part), "no {part:?} in {}", text.stdout);
    }
    assert!(text.stdout.contains("in ticks of 10"), "what user and kernel mode are worth: {}", text.stdout);
    let total = run(["--json", "stat", &service.target(), "--for", "500ms"]).json();
    assert_eq!((&total["schema"], &total["type"]), (&1.into(), &"total".into()));
    assert!(ns(&total["elapsed_ns"]) >= 500_000_000, "{total}");
    let groups = total["groups"].as_array().expect("groups");
    let charged: u64 = groups.iter().map(|group| ns(&group["cpu_ns"])).sum();
    let (process, rest) = (ns(&total["process"]["cpu_ns"]), ns(&total["unattributed_cpu_ns"]));
    assert!(process > 0 && charged > 0, "{total}");
    // The distance that the answer itself allows: on each processor, and for each thread.
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let members = total["threads"].as_array().map_or(0, Vec::len) as u64;
    let clock = &total["clock"];
    let apart = ns(&clock["group_skew_ns"]) * processors + ns(&clock["group_error_bound_ns"]) * members;
    assert!((charged + rest).abs_diff(process) <= apart, "{charged} and {rest} of {process}: {total}");
    let coverage = total["coverage_percent"].as_f64().expect("CPU time was used");
    assert!((coverage - charged as f64 / (charged + rest) as f64 * 100.0).abs() < 0.001, "{total}");
    let menu = groups.iter().find(|group| group["name"] == "GET /menu").expect("a route");
    let clock = &menu["counts"][0];
    assert_eq!((&clock["event"], &clock["unit"]), (&"task-clock".into(), &"ns".into()), "{menu}");
    assert!(ns(&clock["running_ns"]) <= ns(&clock["enabled_ns"]));
    // The error bounds of the numbers.
    assert!(total["clock"]["group_tier"].is_string() && total["clock"]["group_error_bound_ns"].is_u64());
    assert_eq!(total["clock"]["thread_error_bound_ns"], 0, "the agent asks the threads' own clocks");
    let threads = total["threads"].as_array().expect("threads");
    assert!(threads.iter().any(|thread| thread["voluntary_switches"].as_u64() > Some(0)), "{total}");
}

#[test]
fn the_total_follows_the_intervals() {
    let service = Service::busy();
    let run = run(["--json", "stat", &service.target(), "--interval", "100ms", "--for", "450ms"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let mut lines = run.json_lines();
    let total = lines.pop().expect("a total");
    assert_eq!((&total["type"], &total["ended"]), (&"total".into(), &false.into()));
    assert!(lines.len() >= 2 && lines.iter().all(|line| line["type"] == "interval"), "{lines:?}");
    let parts: u64 = lines.iter().map(|line| ns(&line["process"]["cpu_ns"])).sum();
    assert!(parts <= ns(&total["process"]["cpu_ns"]), "{parts} in parts of {total}");
}

#[test]
fn a_plain_process_has_threads_alone() {
    let busy = Plain::busy();
    let text = run(["stat", "-p", &busy.target(), "--for", "300ms"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.stdout.contains("threads only") && text.stdout.contains("THREAD"), "{}", text.stdout);
    assert!(!text.stdout.contains("GROUP"), "{}", text.stdout);
    let total = run(["--json", "stat", &busy.target(), "--for", "300ms"]).json();
    assert_eq!(total["groups"], Value::Null);
    assert!(ns(&total["process"]["cpu_ns"]) > 0, "{total}");
    assert!(ns(&total["clock"]["thread_error_bound_ns"]) > 0, "a tick behind: {total}");
    assert_eq!(total["threads"].as_array().map(Vec::len), Some(1));
    let asleep = Plain::start("exec sleep 600");
    let stat = format!("/proc/{}/stat", asleep.target());
    eventually(|| std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains("(sleep) S")));
    let total = run(["--json", "stat", &asleep.target(), "--for", "100ms"]).json();
    assert_eq!(ns(&total["process"]["cpu_ns"]), 0, "{total}");
}

#[test]
fn uncounted_events_have_reasons_and_never_0() {
    let busy = Plain::busy();
    let args = ["--json", "stat", &busy.target(), "--for", "100ms", "-e", "task-clock,page-faults,cycles"];
    let counted = run(args);
    assert_eq!(counted.code, Some(0), "{counted:?}");
    let total = counted.json();
    let counts = total["process"]["counts"].as_array().expect("counts").clone();
    let of = |name: &str| counts.iter().find(|count| count["event"] == name).expect("an event").clone();
    assert!(of("page-faults")["value"].is_u64());
    assert_eq!(of("cycles")["value"], Value::Null, "{total}");
    assert!(of("cycles")["reason"].as_str().is_some_and(|why| !why.is_empty()), "{total}");
    assert!(counted.stderr.contains("not counted: cycles"), "{counted:?}");
    let ran = run(["stat", "-e", "page-faults,cycles", "--", "true"]);
    assert!(ran.code == Some(0) && ran.stderr.contains("not counted: cycles"), "{ran:?}");
}

#[test]
fn work_in_no_group_has_words_for_events() {
    let service = Service::busy();
    let args = ["stat", &service.target(), "--for", "300ms", "-e", "task-clock,page-faults,alloc-bytes"];
    let text = run(args).stdout;
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a row").to_owned();
    assert_eq!(row("(unattributed)").matches("<not counted>").count(), 2, "{text}");
    assert_eq!(row("(process)").matches("<not counted>").count(), 1, "the kernel counts faults: {text}");
    let total = run(["--json"].into_iter().chain(args)).json();
    let counts = total["unattributed_counts"].as_array().expect("counts");
    let of = |name: &str| counts.iter().find(|count| count["event"] == name).expect("an event");
    assert_eq!(of("task-clock")["value"], total["unattributed_cpu_ns"]);
    for event in ["page-faults", "alloc-bytes"] {
        let reason = of(event)["reason"].as_str().unwrap_or_default();
        assert!(of(event)["value"].is_null() && reason.contains("no group"), "{total}");
    }
}

#[test]
fn an_unknown_event_is_exit_2() {
    let service = Service::idle();
    let busy = Plain::busy();
    for target in [service.target(), busy.target()] {
        for verb in ["stat", "top"] {
            run([verb, &target, "-e", "task-clok"])
                .assert_fails(2, &["no event is called", "near:", "task-clock"]);
        }
    }
    let ran = tempfile::tempdir().expect("a temporary directory");
    let mark = ran.path().join("mark");
    run(["stat", "-e", "task-clok", "--", "touch", mark.to_str().expect("a path")])
        .assert_fails(2, &["no event is called", "near:", "task-clock"]);
    assert!(!mark.exists(), "the command ran all the same");
    run(["stat", "1", "-e", "a,,b"]).assert_fails(2, &["--event", "a name is missing"]);
}

#[test]
fn objectives_of_a_command_end_with_it() {
    let service = Service::visited();
    let (name, objective) = ("99.5% < 1h", "GET *: 99.5%<1h");
    let groups = |objective: &[&str]| {
        let target = service.target();
        let args = [&["--json", "stat", &target, "--for", "1s"], objective].concat();
        run(args).json()["groups"].as_array().expect("groups").clone()
    };
    eventually(|| {
        let groups = groups(&["--objective", objective]);
        let met = |group: &Value| group["objectives_met"][name].as_u64().unwrap_or(0);
        for group in &groups {
            let is_route = group["name"].as_str().expect("a name").starts_with("GET ");
            assert_eq!(group["objective"] == name, is_route, "{group}");
        }
        groups.iter().map(met).sum::<u64>() > 0
    });
    assert!(groups(&[]).iter().all(|group| group["objective"].is_null()));
    let text = run(["top", &service.target(), "--once", "--plain", "--objective", objective]);
    assert!(text.stdout.contains("MET %"), "{text:?}");
    let wrong = run(["top", &service.target(), "--once", "--objective", "GET *: 99.5 < 1h"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("its share `99.5` has no `%`"), "{wrong:?}");
}

#[test]
fn an_incomplete_command_line_is_exit_2() {
    for args in [
        &["stat"][..],
        &["stat", "1", "--", "true"],
        &["stat", "1", "-p", "1"],
        &["stat", "-p", "0"],
        &["stat", "1", "-r", "3"],
        &["stat", "--for", "1s", "--", "true"],
        &["stat", "-r", "0", "--", "true"],
        &["stat", "1", "--interval", "1ms"],
    ] {
        run(args).assert_fails(2, &["error:"]);
    }
}

#[test]
fn top_has_event_columns_for_any_process() {
    let busy = Plain::busy();
    let args = ["top", &busy.target(), "--once", "--interval", "500ms", "-e", "page-faults,cycles"];
    let text = run(args);
    assert_eq!(text.code, Some(0), "{text:?}");
    for part in ["threads only", "page-faults/s", "cycles/s", "<not counted>"] {
        assert!(text.stdout.contains(part), "no {part:?} in {}", text.stdout);
    }
    let top = run(["--json"].iter().chain(&args)).json();
    assert!(top["process"]["cpu_ns"].as_u64() > Some(0) && top["groups"].is_null(), "{top}");
    assert!(top["threads"][0]["events"][0]["per_s"].is_number(), "{top}");
}

#[test]
fn list_gives_reasons_for_unavailable_events() {
    let service = Service::idle();
    let busy = Plain::busy();
    let here = run(["--json", "list"]).json();
    let inside = run(["--json", "list", &service.target()]).json();
    let outside = run(["--json", "list", &busy.target()]).json();
    for listed in [&here, &inside, &outside] {
        let events = listed["events"].as_array().expect("events");
        let of = |name: &str| events.iter().find(|event| event["name"] == name).expect("an event");
        assert_eq!((&of("task-clock")["available"], &of("task-clock")["unit"]), (&true.into(), &"ns".into()));
        for event in events {
            let why = event["unavailable"].as_str();
            assert_eq!(event["available"] == true, why.is_none(), "a reason or an event: {event}");
        }
    }
    assert_eq!(inside["pid"], service.pid());
    let text = run(["list", &service.target()]);
    assert!(text.code == Some(0) && text.stdout.starts_with("EVENT"), "{text:?}");
}

#[test]
fn ctrl_c_ends_with_the_totals() {
    let service = Service::busy();
    for signal in [Signal::INT, Signal::TERM] {
        let mut stat = Running::start(["--json", "stat", &service.target(), "--interval", "50ms"]);
        assert!(stat.line().contains("\"type\":\"interval\""));
        let ended = stat.end_by(signal);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let total = ended.json_lines().pop().expect("a total");
        assert_eq!((&total["type"], &total["ended"]), (&"total".into(), &false.into()));
    }
}

#[test]
fn stat_keeps_figures_of_dead_targets() {
    let mut service = Service::busy();
    let mut stat = Running::start(["--json", "stat", &service.target(), "--interval", "50ms"]);
    stat.line();
    service.kill();
    let ended = stat.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let total = ended.json_lines().pop().expect("a total");
    assert_eq!((&total["type"], &total["ended"]), (&"total".into(), &true.into()));
    assert!(ended.stderr.contains("has ended"), "{ended:?}");

    let plain = Plain::busy();
    let mut stat = Running::start(["--json", "stat", &plain.target(), "--interval", "50ms"]);
    stat.line();
    drop(plain);
    let ended = stat.end();
    assert!(ended.code == Some(0) && ended.stderr.contains("has ended"), "{ended:?}");
}

#[test]
fn an_ended_thread_stays_in_the_total() {
    // It runs a thread of its own for a while, as the service's load does.
    let service = Service::start(|command| {
        command.args(["--load", "300", "--for", "2s"]);
    });
    let stat = run(["--json", "stat", &service.target(), "--for", "1m"]);
    let total = stat.json();
    assert_eq!(total["ended"], true, "the party is over: {stat:?}");
    assert!(total["threads"].as_array().is_some_and(|threads| !threads.is_empty()), "{total}");
}

#[test]
fn a_commands_own_code_is_passed_through() {
    for (script, code) in [("exit 0", 0), ("exit 1", 1), ("exit 42", 42), ("kill -TERM $$", 128 + 15)] {
        let stat = run(["stat", "--", "sh", "-c", script]);
        assert_eq!(stat.code, Some(code), "{script}: {stat:?}");
        assert!(stat.stdout.contains("CPU time") && stat.stdout.contains("page faults"), "{stat:?}");
    }
    assert_eq!(run(["stat", "--", "true"]).code, Some(0));
    assert_eq!(run(["stat", "--", "false"]).code, Some(1));
    run(["stat", "--", "/no/such/program"]).assert_fails(127, &["cannot run /no/such/program"]);
    run(["stat", "--", "/"]).assert_fails(126, &["cannot run /"]);
}

#[test]
fn an_unwritable_output_is_exit_1() {
    // Closed to root as well.
    let closed = "/proc/sys/kernel/ostype";
    run(["stat", "-o", closed, "--", "true"]).assert_fails(1, &["cannot write", closed]);
}

#[test]
fn a_command_is_accounted_for_with_units() {
    let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done";
    let stat = run(["--json", "stat", "-o", "/dev/stderr", "--", "sh", "-c", script]);
    assert_eq!(
        (stat.code, stat.stdout.as_str()),
        (Some(0), "done\n"),
        "its own output stays apart: {stat:?}"
    );
    let used: Value = serde_json::from_str(&stat.stderr).expect("JSON");
    assert_eq!((&used["type"], &used["exit_code"], &used["run"]), (&"run".into(), &0.into(), &1.into()));
    assert_eq!(ns(&used["cpu_ns"]), ns(&used["user_ns"]) + ns(&used["system_ns"]));
    assert!(ns(&used["cpu_ns"]) > 0 && ns(&used["elapsed_ns"]) > 0, "{used}");
    for field in ["voluntary_switches", "involuntary_switches", "minor_faults", "major_faults"] {
        assert!(used[field].is_u64(), "{field}: {used}");
    }
    assert!(used["cpus_used"].is_f64(), "{used}");
}

#[test]
fn repeated_runs_have_a_mean_and_a_spread() {
    let text = run(["stat", "-r", "3", "--", "true"]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(
        text.stdout.contains("3 runs") && text.stdout.contains('±') && text.stdout.contains('%'),
        "{text:?}"
    );
    let json = run(["--json", "stat", "-r", "3", "--", "sh", "-c", "exit 3"]);
    assert_eq!(json.code, Some(3), "{json:?}");
    let mut lines = json.json_lines();
    let total = lines.pop().expect("a total");
    assert_eq!((lines.len(), &total["runs"], &total["failed_runs"]), (3, &3.into(), &3.into()));
    for field in ["mean", "stddev", "stddev_percent", "min", "max"] {
        assert!(total["elapsed_ns"][field].is_number(), "{field}: {total}");
    }
}

#[test]
fn stat_sees_a_command_from_inside() {
    let mut command = command(["--json", "stat", "-o", "/dev/stderr", "--"]);
    let runtime = tempfile::tempdir().expect("a temporary directory");
    command.env("DORMOUSE_RUNTIME_DIR", runtime.path());
    command.args([DORMOUSE, "teaparty", "--workers", "2", "--load", "300", "--for", "2s"]);
    let stat = finish(command);
    assert_eq!(stat.code, Some(0), "{stat:?}");
    let line = stat.stderr.lines().find(|line| line.starts_with("{\"schema\"")).expect("the figures");
    let used: Value = serde_json::from_str(line).expect("JSON");
    let groups = used["inside"]["groups"].as_array().unwrap_or_else(|| panic!("not seen: {used}"));
    assert!(groups.iter().any(|group| group["name"] == "GET /menu" && ns(&group["cpu_ns"]) > 0), "{used}");
    assert!(ns(&used["inside"]["before_end_ns"]) > 0, "{used}");
}

#[test]
fn stat_passes_signals_on_to_the_command() {
    let mut stat =
        command(["--json", "stat", "-o", "/dev/stderr", "--", "sh", "-c", "echo up; exec sleep 600"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it");
    let mut line = String::new();
    BufReader::new(stat.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    assert_eq!(line, "up\n");
    signal_to(stat.id(), Signal::TERM);
    let output = stat.wait_with_output().expect("its end");
    assert_eq!(output.status.code(), Some(128 + 15));
    let used: Value = serde_json::from_slice(&output.stderr).expect("the figures all the same");
    assert_eq!((&used["exit_code"], &used["signal"]), (&Value::Null, &15.into()));
}

#[test]
fn a_handled_signal_ends_repeated_runs() {
    let script = "sleep 600 & trap 'kill $!; exit 0' TERM; kill -TERM $PPID; wait";
    let stat = run(["--json", "stat", "-r", "3", "--", "sh", "-c", script]);
    assert_eq!(stat.json_lines().len(), 2, "one run, and the total: {stat:?}");
}

#[test]
fn stat_shows_where_tasks_spend_their_time() {
    let service = Service::busy();
    let total = run(["--json", "stat", &service.target(), "--waits", "--for", "500ms"]).json();
    let groups = total["groups"].as_array().expect("groups");
    let menu = groups.iter().find(|group| group["name"] == "GET /menu").expect("a route");
    let waits = &menu["waits"];
    let times = ["on_cpu", "stalled", "runnable", "await", "queued"].map(|name| {
        assert!(waits[format!("{name}_ns")].is_u64(), "{name} in {waits}");
        waits[format!("{name}_percent")].as_f64().unwrap_or_else(|| panic!("{name} in {waits}"))
    });
    assert!((times.iter().sum::<f64>() - 100.0).abs() < 0.001, "{times:?}");
    for name in ["latency", "poll", "delay", "await"] {
        let of = &waits[name];
        let [p50, p90, p99, max] = ["p50_ns", "p90_ns", "p99_ns", "max_ns"].map(|key| ns(&of[key]));
        assert!(0 < p50 && p50 <= p90 && p90 <= p99 && p99 <= max, "{name}: {of}");
        let buckets = of["positive"].as_array().expect("buckets").iter();
        let filled: u64 = buckets.map(|bucket| ns(&bucket[1])).sum();
        assert_eq!(ns(&of["count"]), ns(&of["zero_count"]) + filled, "{name}: {of}");
        assert_eq!((&of["scale"], &of["zero_threshold_ns"]), (&4.into(), &59.into()));
    }
    assert!(ns(&waits["latency"]["max_task"]) > 0, "{waits}");
    let plain = run(["--json", "stat", &service.target(), "--for", "100ms"]).json();
    assert!(plain["groups"][0].get("waits").is_none(), "nobody asked: {plain}");

    let text = run(["stat", &service.target(), "--waits", "--for", "300ms"]).stdout;
    assert!(
        text.contains("RUNNABLE") && text.contains("AWAITING") && text.contains("within 4.4 %"),
        "{text}"
    );
    let top = run(["--json", "top", &service.target(), "--waits", "--once"]).json();
    let groups = top["groups"].as_array().expect("groups");
    let menu = groups.iter().find(|group| group["name"] == "GET /menu").expect("a route");
    assert!(menu["waits"]["latency"]["p99_ns"].is_u64() && ns(&menu["slowest_ns"]) > 0, "{menu}");
    service.assert_alive();
}

#[test]
fn times_of_a_plain_process_are_refused() {
    let process = Plain::busy();
    for verb in ["stat", "top"] {
        run([verb, &process.target(), "--waits"]).assert_fails(3, &["no dormouse in it", "init"]);
    }
}
