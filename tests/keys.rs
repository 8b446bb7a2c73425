//! Keys of live services: listed, switched, held.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{HANG, Running, Service, run};

#[test]
fn keys_lists_the_selection_of_a_glob() {
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
fn sleep_pauses_a_service_until_wake() {
    let service = Service::start(|command| {
        command.envs([("DORMOUSE_RECORD", "menu.*"), ("DORMOUSE_TRIGGERS", "request>1h")]);
    });
    let recorded = service.keys_on("menu.*");
    let mut on = Running::start(["on", &service.target(), "order.*"]);
    assert!(on.line().starts_with("on: "));
    let slept = run(["--json", "sleep", &service.target()]).json();
    assert!(slept["clients"] == 1 && slept["keys"].as_u64().is_some_and(|keys| keys > 0), "{slept}");
    let ended = on.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("dormouse was put to sleep by process"), "{ended:?}");
    for refused in [["on", "menu.*"], ["trace", "menu.*"], ["keys", "*"], ["record", "menu.*"]] {
        run([refused[0], &service.target(), refused[1]])
            .assert_fails(1, &["dormouse is asleep for", "dormouse wake"]);
    }
    assert!(run(["ps"]).stdout.contains("asleep for"));
    assert!(run(["doctor", &service.target()]).stdout.contains("agent.asleep"));
    let again = run(["--json", "sleep", &service.target()]).json();
    assert_eq!((&again["keys"], &again["asleep"]["pid"]), (&0.into(), &slept["asleep"]["pid"]));
    let woken = run(["wake", &service.target()]);
    assert!(woken.code == Some(0) && woken.stdout.contains("is awake: it was asleep for"), "{woken:?}");
    assert_eq!((service.keys_on("menu.*"), service.keys_on("order.*")), (recorded, 0));
    assert_eq!(run(["--json", "record", &service.target()]).json()["recorder"]["glob"], "menu.*");
    assert_eq!(
        run(["--json", "triggers", &service.target()]).json()["triggers"].as_array().map(Vec::len),
        Some(1)
    );
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
fn a_timed_lease_outlives_the_command() {
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

/// The service's list of the keys that match.
fn keys_of(service: &Service, glob: &str) -> Vec<Value> {
    let run = run(["--json", "keys", &service.target(), glob]);
    run.json()["keys"].as_array().expect("a list of keys").clone()
}

#[test]
fn keys_lists_holders_and_their_time() {
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
fn dwelling_keys_are_taken_up_without_patching() {
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
fn bad_times_are_refused_by_name() {
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
fn off_ends_others_leases_by_force_only() {
    let service = Service::idle();
    let mut on = Running::start(["on", &service.target(), "menu.*"]);
    on.line();
    let off = run(["off", &service.target(), "*"]);
    assert_eq!(off.code, Some(1), "a negative finding: {off:?}");
    let holder = format!("process {} (dormouse on ", on.pid());
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
fn commands_that_count_are_named_as_holders() {
    const TIMES: &[&str] = &["dormouse.waits", "dormouse.switch"];
    const COUNTED: &[&str] = &["dormouse.switch", "dormouse.alloc", "dormouse.alloc.counted"];
    const SAMPLED: &[&str] = &["dormouse.alloc", "dormouse.alloc.sampled", "dormouse.alloc.followed"];
    let service = Service::idle();
    let target = &service.target();
    let commands: [(&[&str], _); 5] = [
        (&["stat", target, "--waits"], TIMES),
        (&["stat", target, "-e", "alloc-count,alloc-bytes"], COUNTED),
        (&["tasks", target, "--waiting", "1h", "--for", "1h"], &["dormouse.waits"]),
        (&["profile", target, "--kind", "wall"], TIMES),
        (&["profile", target, "--kind", "alloc", "--live"], SAMPLED),
    ];
    for (args, expected) in commands {
        let command = Running::start(args.iter().copied());
        let own = (u64::from(command.pid()), format!("dormouse {} ", args[0]));
        let start = std::time::Instant::now();
        loop {
            let keys = keys_of(&service, "dormouse.*");
            let on = |name: &&&str| keys.iter().any(|key| key["name"] == **name && key["on"] == true);
            if expected.iter().all(|name| on(&name)) {
                break;
            }
            assert!(start.elapsed() < HANG, "{args:?}: {keys:?}");
        }
        for key in keys_of(&service, "dormouse.*").iter().filter(|key| key["on"] == true) {
            let [held] = &key["held"].as_array().expect("holders")[..] else { panic!("{args:?}: {key}") };
            let name = held["client"].as_str().expect("a name");
            assert!(held["by"] == "client" && held["pid"] == own.0 && name.starts_with(&own.1), "{key}");
            assert_eq!(held["leases"], key["leases"], "{args:?}: {key}");
        }
        let text = run(["keys", target, expected[0]]).stdout;
        assert!(text.contains(&format!("process {} ({}", own.0, own.1)), "{text}");
        command.end_by(Signal::INT);
        service.await_keys_on("dormouse.*", |on| on == 0);
    }
}

#[test]
fn each_part_of_a_lease_has_a_holder() {
    let service = Service::idle();
    let target = &service.target();
    let start = |args: &[&str]| Running::start(args.iter().copied());
    let profile = ["profile", target, "--kind", "alloc"];
    let commands = [start(&profile), start(&profile), start(&["stat", target, "-e", "alloc-count"])];
    let pids = commands.each_ref().map(|command| u64::from(command.pid()));
    let start = std::time::Instant::now();
    loop {
        let keys = keys_of(&service, "dormouse.alloc");
        let held = keys[0]["held"].as_array().map_or(&[][..], Vec::as_slice);
        if pids.iter().all(|pid| held.iter().any(|held| held["pid"] == *pid)) {
            assert!(held.iter().all(|held| held["by"] == "client"), "{keys:?}");
            break;
        }
        assert!(start.elapsed() < HANG, "{keys:?}");
    }
    for command in commands {
        command.end_by(Signal::INT);
    }
}

#[test]
fn own_keys_are_left_alone_unless_named() {
    let service = Service::idle();
    let matched = |glob: &str| -> Vec<String> {
        let on = run(["--json", "on", &service.target(), glob, "--for", "1s"]).json();
        let names = on["matched"].as_array().expect("names").iter();
        names.map(|name| name.as_str().expect("a name").to_owned()).collect()
    };
    let is_own = |name: &String| name.starts_with("dormouse.");
    assert!(!matched("*").iter().any(is_own));
    let named = matched("dormouse.*");
    assert!(!named.is_empty() && named.iter().all(is_own), "{named:?}");
}
