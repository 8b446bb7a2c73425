//! The command when what it is asked for cannot be: the exit code, the words, and a service that
//! goes on.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::{DORMOUSE, HANG, NOBODY, Run, Running, Service, command, finish, run, skip};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::process::Signal;

/// A process id that no process has: of a child that has ended and was waited for.
fn dead_pid() -> String {
    let mut child = Command::new("true").spawn().expect("true");
    child.wait().expect("its end");
    child.id().to_string()
}

#[test]
fn a_missing_target_is_exit_3() {
    let dead = dead_pid();
    for verb in [
        &["keys"][..],
        &["on"],
        &["off"],
        &["trace"],
        &["top"],
        &["doctor"],
        &["stat"],
        &["list"],
        &["tasks"],
    ] {
        let with = |target: &str| -> Run {
            let glob = ["on", "off", "trace"].contains(&verb[0]).then_some("*");
            run(verb.iter().copied().chain([target]).chain(glob))
        };
        with(&dead).assert_fails(3, &[&format!("there is no process {dead}")]);
        with("no-such-service-anywhere")
            .assert_fails(3, &["no process is named \"no-such-service-anywhere\""]);
    }
}

#[test]
fn bad_input_is_named_with_what_to_write() {
    let many = (1..=41).map(|ms| format!("{ms}ms")).collect::<Vec<_>>().join(",");
    for (args, words) in [
        (&["locks"][..], &["<TARGET>"][..]),
        (&["locks", ""], &["it is empty", "name a process"]),
        (&["locks", "tea", "--for", "0s"], &["--for", "more than nothing"]),
        (&["locks", "tea", "--for", "5"], &["no unit after 5"]),
        (&["locks", "tea", "--for", "9999999999999999999h"], &["longer than 584 years"]),
        (&["locks", "tea", "--limit", "some"], &["--limit"]),
        (&["locks", "/etc/passwd"], &["no file of dormouse's recorder"]),
        (&["tasks", "tea", "--leaks", "--for", "1"], &["no unit after 1"]),
        (&["tasks", "tea", "--leaks", "--cpu"], &["--leaks cannot be used with --cpu"]),
        (&["tasks", "tea", "--leaks", "--limit", "3"], &["--leaks cannot be used with --limit"]),
        (&["serve", "--buckets", ""], &["--buckets", "it is empty"]),
        (&["serve", "--buckets", "1s,"], &["it is empty"]),
        (&["serve", "--buckets", "5"], &["no unit after 5"]),
        (&["serve", "--buckets", "2s,1s"], &["1s comes after 2s", "each once"]),
        (&["serve", "--buckets", "1s,1s"], &["1s comes after 1s"]),
        (&["serve", "--buckets", "-1s"], &["--buckets", "it is negative", "write a number and ms, s"]),
        (&["serve", "--buckets", "1s,-2s"], &["--buckets", "it is negative"]),
        (&["serve", "--buckets", "--no-waits"], &["--buckets", "write a number and ms, s"]),
        (&["serve", "--buckets", "0s"], &["no bucket ends at 0"]),
        (&["serve", "--buckets", "2h"], &["no bucket ends at 7200s", "3600s"]),
        (&["serve", "--buckets", "1s;2s"], &["unknown unit"]),
        (&["serve", "--buckets", &many], &["from 1 to 40 chosen buckets, not 41"]),
    ] {
        run(args).assert_fails(2, words);
    }
    for verb in ["stat", "top", "serve"] {
        for (objective, words) in [
            ("", &["there is none", "write `GET *: 99.9% < 250ms`"][..]),
            ("; ;", &["there is none"]),
            ("GET *", &["`GET *`", "no `:` behind its groups", "write `GROUPS: 99.9% < 250ms`"]),
            (": 99% < 1s", &["`: 99% < 1s`", "no groups before its `:`"]),
            ("GET *: 99% < 1s; POST *: 99%", &["the objective `POST *: 99%`", "`99%` has no `<`"]),
            ("GET *: 99 < 1s", &["its share `99` has no `%`"]),
            ("GET *: -1% < 1s", &["its share `-1%` is no percentage above 0 and below 100"]),
            ("-GET *: 101% < 1s", &["the objective `-GET *: 101% < 1s`", "its share `101%`"]),
            ("GET *: 99% < -1s", &["`GET *: 99% < -1s`", "-1s", "as in `99.9% < 250ms`"]),
            ("GET *: 99% < 1", &["the time `1` has no unit"]),
            ("GET [: 99% < 1s", &["the objective `GET [: 99% < 1s`"]),
            ("-1s", &["the objective `-1s`", "no `:` behind its groups"]),
        ] {
            let target = if verb == "serve" { &[][..] } else { &["tea"] };
            let args = [verb, "--objective", objective].into_iter().chain(target.iter().copied());
            run(args).assert_fails(2, &[&["--objective"][..], words].concat());
        }
    }
    for args in [&["locks"][..], &["tasks", "--leaks"]] {
        let dead = dead_pid();
        run(args.iter().copied().chain([&*dead])).assert_fails(3, &[&format!("there is no process {dead}")]);
    }
}

#[test]
fn names_near_an_unknown_one_are_shown() {
    let program =
        tempfile::Builder::new().prefix("nearby").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a place");
    let path = program.path().join("marchharehouse");
    std::fs::hard_link(DORMOUSE, &path).expect("a second name for the command");
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let service = Service::start_as(path.as_os_str(), runtime, |_| {}).expect("a service");
    run(["keys", "marchharehuose"]).assert_fails(3, &["no process is named", "near:", "marchharehouse"]);
    let found = run(["--json", "keys", "marchharehouse"]);
    assert_eq!(found.code, Some(0), "{found:?}");
    let second =
        Service::start_as(path.as_os_str(), tempfile::tempdir().expect("another"), |_| {}).expect("another");
    let (a, b) = (format!("process {}", service.pid()), format!("process {}", second.pid()));
    run(["keys", "marchharehouse"]).assert_fails(2, &["2 processes are named", &a, &b, "give the id"]);
}

#[test]
fn a_process_without_dormouse_is_exit_3() {
    // This test is one.
    let me = std::process::id().to_string();
    run(["keys", &me]).assert_fails(3, &["has no dormouse in it", "call dormouse::init()"]);
    let json = run(["--json", "keys", &me]);
    json.assert_fails(3, &[]);
    let error: serde_json::Value = serde_json::from_str(&json.stderr).expect("JSON on standard error");
    assert_eq!(error["schema"], 1);
    assert_eq!((&error["error"]["kind"], &error["error"]["exit"]), (&"no-target".into(), &3.into()));
    assert!(error["error"]["hint"].as_str().expect("a hint").contains("init"));
}

#[test]
fn a_thread_is_not_a_target() {
    let service = Service::idle();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", service.pid())).expect("its threads");
    let thread = tasks
        .filter_map(|task| task.ok()?.file_name().into_string().ok())
        .find(|tid| *tid != service.target())
        .expect("a second thread");
    let process = format!("{thread} is a thread of process {}", service.pid());
    run(["keys", &thread]).assert_fails(3, &[&process]);
}

#[test]
fn an_unmatched_glob_is_exit_1() {
    let service = Service::idle();
    for verb in ["keys", "on", "off", "trace"] {
        run([verb, &service.target(), "menu.raed"])
            .assert_fails(1, &["no key matches", "menu.raed", "near:", "menu.read"]);
    }
    service.assert_alive();
}

#[test]
fn a_malformed_glob_is_exit_2() {
    let service = Service::idle();
    for glob in ["[", "{a", "", "!", "a,,b["] {
        let refused = run(["on", &service.target(), glob]);
        assert_eq!(refused.code, Some(2), "{glob:?}: {refused:?}");
        assert!(refused.stderr.contains("error:") && refused.stdout.is_empty(), "{glob:?}: {refused:?}");
    }
    let long = "x".repeat(20_000);
    run(["on", &service.target(), &long]).assert_fails(2, &["bytes long, the most is 16384"]);
    assert_eq!(service.keys_on("*"), 0);
    service.assert_alive();
}

#[test]
fn a_malformed_command_line_is_exit_2() {
    for (args, parts) in [
        (&["on", "1", "*", "--for", "30"][..], &["--for", "no unit after 30"][..]),
        (&["on", "1", "*", "--for", "30x"], &["--for", "unknown unit \"x\""]),
        (&["on", "1", "*", "--for", "soon"], &["--for", "no number before \"soon\""]),
        (&["on", "1", "*", "--for", "0s"], &["--for", "more than nothing"]),
        (&["on", "1", "*", "--for", "-5s"], &["-5"]),
        (&["trace", "1", "*", "--for", "99999999999d"], &["--for", "584 years"]),
        (&["trace", "1", "*", "--count", "0"], &["--count"]),
        (&["on", "1", "*", "--for", "1s", "--keep"], &["--for", "--keep"]),
        (&["on", "1"], &["GLOB"]),
        (&["keys"], &["TARGET"]),
        (&["keys", ""], &["TARGET", "it is empty"]),
        (&["keys", "0"], &["TARGET", "0 is no process"]),
        (&["top", "1", "--interval", "1ms"], &["--interval", "at least 50ms"]),
        (&["top", "1", "--once", "--count", "2"], &["--once"]),
        (&["--timeout", "never", "ps"], &["--timeout", "no number"]),
        (&["--color", "blue", "ps"], &["--color", "blue"]),
        (&["dance"], &["dance"]),
        (&["generate", "completions", "cobol"], &["cobol"]),
    ] {
        let refused = run(args);
        refused.assert_fails(2, &["error:"]);
        refused.assert_fails(2, parts);
        let json = run(["--json"].iter().chain(args));
        json.assert_fails(2, &[]);
        let error: serde_json::Value = serde_json::from_str(&json.stderr).expect("JSON on standard error");
        assert_eq!(error["error"]["kind"], "usage", "{error}");
    }
    let help = run::<&str>([]);
    assert_eq!(help.code, Some(2));
    assert!(help.stderr.contains("Examples:") && help.stderr.contains("Exit codes:"), "{help:?}");
}

#[test]
fn a_killed_trace_switches_its_probes_off() {
    let service = Service::busy();
    let mut trace = Running::start(["trace", &service.target(), "*"]);
    assert!(!trace.line().is_empty(), "a record came, so probes are on");
    assert!(service.keys_on("*") > 0);
    let ended = trace.end_by(Signal::KILL);
    assert_eq!(ended.code, None);
    service.await_keys_on("*", |on| on == 0);
    service.assert_alive();
}

#[test]
fn a_killed_client_takes_its_lease_along() {
    let service = Service::idle();
    let mut on = Running::start(["on", &service.target(), "menu.*"]);
    assert!(on.line().starts_with("on:"));
    assert!(service.keys_on("menu.*") > 0);
    on.end_by(Signal::KILL);
    service.await_keys_on("*", |on| on == 0);
}

#[test]
fn a_dead_process_is_no_process() {
    let mut service = Service::idle();
    service.kill();
    assert!(service.socket().exists(), "killed, it could not clean up");
    run(["keys", &service.target()]).assert_fails(3, &["there is no process"]);
    let listed = run(["ps"]);
    assert!(!listed.stdout.lines().any(|row| row.trim_start().starts_with(&service.target())), "{listed:?}");
}

#[test]
fn stale_socket_files_are_no_hindrance() {
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let directory = runtime.path().join("dormouse");
    std::fs::create_dir(&directory).expect("a directory");
    std::fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("a mode");
    let stale = directory.join("1.sock");
    let fresh = directory.join("2.sock");
    for socket in [&stale, &fresh] {
        drop(std::os::unix::net::UnixListener::bind(socket).expect("a socket"));
    }
    // A minute old; the other one might belong to a process that is about to listen.
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    let then = then.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let then = Timespec { tv_sec: then.as_secs().cast_signed(), tv_nsec: 0 };
    let times = Timestamps { last_access: then, last_modification: then };
    utimensat(CWD, &stale, &times, AtFlags::empty()).expect("a time");
    let service = Service::start_as(DORMOUSE.as_ref(), runtime, |_| {}).expect("a service");
    service.assert_alive();
    assert!(!stale.exists(), "the next process sweeps");
    assert!(fresh.exists(), "not what is new");
}

#[test]
fn a_removed_socket_file_is_made_anew() {
    let service = Service::idle();
    let mut wire = service.wire();
    std::fs::remove_dir_all(service.socket().parent().expect("a directory")).expect("its socket file");
    let path = service.socket().display().to_string();
    run(["keys", &service.target()]).assert_fails(1, &[&path, "nobody can be reached", "makes it anew"]);
    let listed = run(["ps"]);
    let row = listed.stdout.lines().find(|row| row.trim_start().starts_with(&service.target()));
    assert!(row.expect("a row").contains("nobody can be reached"), "{listed:?}");
    // Any request has the agent look.
    let start = Instant::now();
    while !service.socket().exists() {
        wire.ask(r#"{"v":1,"id":2,"op":"keys"}"#);
        assert!(start.elapsed() < HANG);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    service.assert_alive();
    assert!(wire.ask(r#"{"v":1,"id":3,"op":"keys"}"#)["ok"].is_object(), "an old connection goes on");
}

#[test]
fn a_sockets_path_does_not_reach_terminals_raw() {
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let directory = runtime.path().join("\u{202e}/dormouse");
    std::fs::create_dir_all(&directory).expect("a directory");
    let (pid, path) = (std::process::id(), directory.join(format!("{}.sock", std::process::id())));
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    std::fs::remove_file(&path).expect("its file");
    let (listed, refused) = (run(["ps"]), run(["keys", &pid.to_string()]));
    drop(listener);
    for text in [listed.stdout, refused.stderr] {
        assert!(text.contains("\\u{202e}/dormouse") && !text.contains('\u{202e}'), "{text}");
    }
}

#[test]
fn a_strangers_socket_is_not_the_targets() {
    let mut sleeper = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().expect("sleep");
    let runtime = tempfile::tempdir().expect("a temporary directory");
    let directory = runtime.path().join("dormouse");
    std::fs::create_dir(&directory).expect("a directory");
    // This test listens where the agent of `sleep` would, if it had one.
    let listener = std::os::unix::net::UnixListener::bind(directory.join(format!("{}.sock", sleeper.id())));
    let refused = run(["keys", &sleeper.id().to_string()]);
    sleeper.kill().expect("a child");
    sleeper.wait().expect("its end");
    drop(listener.expect("a socket"));
    refused.assert_fails(3, &["has no dormouse in it"]);
}

#[test]
fn the_socket_may_have_an_abstract_name() {
    let base = tempfile::tempdir().expect("a temporary directory");
    let (broken, open) = (base.path().join("a\nb"), base.path().join("open"));
    for directory in [&broken, &open] {
        std::fs::create_dir(directory).expect("a directory");
    }
    std::fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("a mode");
    let places = [
        ("/proc/no/such/directory".as_ref(), "does not exist"),
        (&*broken, "line break"),
        (&*open, "others"),
    ];
    for (place, why) in places {
        let service = Service::start(|command| {
            command.env("DORMOUSE_RUNTIME_DIR", place);
        });
        let uid = rustix::process::geteuid().as_raw();
        let name = format!("@dormouse-{uid}/{}.", service.pid());
        assert!(service.warning.contains(&name), "{}", service.warning);
        service.assert_alive();
        let doctor = run(["doctor", &service.target()]);
        for part in ["agent.place", why, "DORMOUSE_RUNTIME_DIR", &name] {
            assert!(doctor.stdout.contains(part), "{part}: {doctor:?}");
        }
        let here = finish({
            let mut command = command(["doctor"]);
            command.env("DORMOUSE_RUNTIME_DIR", place);
            command
        });
        assert!(here.code == Some(0) && here.stdout.contains(why), "{here:?}");

        if uid != 0 {
            skip("only root can be another user, and in another network");
            continue;
        }
        let mut stranger = command(["on", &service.target(), "*"]);
        stranger.uid(NOBODY).gid(NOBODY);
        finish(stranger).assert_fails(4, &["belongs to uid 0, you are uid 65534", "nsenter --user"]);
        assert_eq!(service.keys_on("*"), 0);
        let mut elsewhere = command(["keys", &service.target()]);
        // SAFETY: one system call.
        unsafe {
            elsewhere.pre_exec(|| match libc::unshare(libc::CLONE_NEWNET) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        finish(elsewhere).assert_fails(1, &["in another network namespace", "nsenter --net"]);
    }
}

/// Has the kernel refuse to make code writable in what the command starts.
fn refuse_exec_gain(command: &mut Command) {
    let refuse = || {
        // SAFETY: concerns permissions of the process alone.
        let refused = unsafe { libc::prctl(libc::PR_SET_MDWE, libc::PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) };
        if refused == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: one system call.
    unsafe { command.pre_exec(refuse) };
}

#[test]
fn keys_switch_without_writable_code() {
    let service = Service::start(refuse_exec_gain);
    let on = run(["on", &service.target(), "menu.*", "--keep"]);
    assert_eq!(on.code, Some(0), "{on:?}");
    assert!(service.keys_on("menu.*") > 0);
    assert_eq!(run(["off", &service.target(), "menu.*"]).code, Some(0));
    assert_eq!(service.keys_on("menu.*"), 0);
    let doctor = run(["doctor", &service.target()]);
    for said in
        ["through /proc/thread-self/mem", "keys.write.mprotect: to change it", "MemoryDenyWriteExecute=no"]
    {
        assert!(doctor.stdout.contains(said), "{}", doctor.stdout);
    }
}

#[test]
fn a_command_with_another_environment_finds_the_service() {
    let default = Service::start(|command| {
        command.env_remove("DORMOUSE_RUNTIME_DIR");
    });
    let xdg = tempfile::tempdir().expect("a temporary directory");
    let by_xdg = Service::start(|command| {
        command.env_remove("DORMOUSE_RUNTIME_DIR").env("XDG_RUNTIME_DIR", xdg.path());
    });
    let own = Service::idle();
    for service in [&default, &by_xdg, &own] {
        for change in [
            &(|command: &mut Command| {
                command.env_clear();
            }) as &dyn Fn(&mut Command),
            &|command| {
                command.env("DORMOUSE_RUNTIME_DIR", "/nonexistent").env("XDG_RUNTIME_DIR", "/proc");
            },
            &|command| {
                command.current_dir("/").env("HOME", "/nonexistent").env("TMPDIR", "/nonexistent");
            },
        ] {
            let mut command = command(["--json", "keys", &service.target()]);
            change(&mut command);
            let found = finish(command);
            assert_eq!(found.code, Some(0), "{found:?}");
        }
        let listed = run(["--json", "ps"]).json();
        let pids = listed["processes"].as_array().expect("a list").iter().map(|row| row["pid"].clone());
        assert!(pids.collect::<Vec<_>>().contains(&service.pid().into()));
    }
}

#[test]
fn a_closed_pipe_is_silent_success() {
    let service = Service::busy();
    let target = &service.target();
    for args in [
        &["ps"][..],
        &["keys", target],
        &["--json", "keys", target],
        &["doctor"],
        &["generate", "completions", "bash"],
        &["--help"],
        &["on", target, "menu.*", "--for", "1s"],
        &["top", target, "--interval", "50ms"],
        &["--json", "top", target, "--interval", "50ms"],
    ] {
        let closed = Running::start(args).end_by_closing_stdout();
        let quiet = closed.stderr.is_empty();
        assert!(closed.code == Some(0) && quiet, "{args:?}: {closed:?}");
    }
    // Before it is closed, a trace has announced itself.
    let mut trace = Running::start(["trace", target, "*"]);
    trace.line();
    let closed = trace.end_by_closing_stdout();
    assert!(closed.code == Some(0) && closed.stderr.lines().count() == 1, "{closed:?}");
    service.await_keys_on("*", |on| on == 0);
}

#[test]
fn a_full_disk_is_told() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let output = command(["doctor"]).stdout(full).stderr(Stdio::piped()).output().expect("a run");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("cannot write to standard output: No space left"), "{stderr}");
}

#[test]
fn a_stopped_service_does_not_stop_the_command() {
    let service = Service::idle();
    service.signal(Signal::STOP);
    let start = Instant::now();
    run(["--timeout", "300ms", "keys", &service.target()])
        .assert_fails(1, &["has given no answer for 300 ms", "--timeout"]);
    let listed = run(["--timeout", "300ms", "ps"]);
    let row =
        listed.stdout.lines().find(|row| row.trim_start().starts_with(&service.target())).expect("a row");
    assert!(row.contains("has given no answer"), "{row}");
    assert!(start.elapsed() < HANG / 2);
    service.signal(Signal::CONT);
    service.assert_alive();
}
