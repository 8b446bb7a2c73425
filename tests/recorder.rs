//! `dormouse record`: a flight recorder that outlives the command, and that everybody can see and
//! end.

use dormouse_testkit::eventually;

use crate::support::{Service, run};

#[test]
fn a_recorder_outlives_the_command_that_started_it() {
    let service = Service::busy();
    let target = service.target();
    let none = run(["record", &target]);
    none.assert_fails(1, &["has no recorder", " GLOB` starts one"]);

    let begun = run(["--json", "record", &target, "menu.*", "--memory", "512KiB"]);
    assert_eq!(begun.code, Some(0), "{begun:?}");
    let told = begun.json();
    assert_eq!((&told["state"], &told["recorder"]["glob"]), (&"on".into(), &"menu.*".into()), "{told}");
    assert_eq!(told["recorder"]["memory_bytes"], 512 * 1024, "{told}");
    assert!(service.keys_on("menu.*") > 0);

    // Its holder is known to all.
    let keys = run(["--json", "keys", &target, "menu.*"]).json();
    let holders: Vec<&str> = keys["keys"]
        .as_array()
        .expect("keys")
        .iter()
        .filter(|key| key["name"] == "menu.read")
        .flat_map(|key| key["held"].as_array().expect("holders"))
        .map(|holder| holder["by"].as_str().expect("a kind"))
        .collect();
    assert!(!holders.is_empty() && holders.iter().all(|by| *by == "recorder"), "{holders:?}");
    let off = run(["off", &target, "menu.*"]);
    assert!(off.code == Some(1) && off.stderr.contains("by the flight recorder, until"), "{off:?}");

    // The load goes on, and so do the records.
    eventually(|| run(["--json", "record", &target]).json()["recorder"]["records"].as_u64() > Some(10));
    let text = run(["record", &target]);
    assert!(text.stdout.contains("recorder on: menu.*, ") && text.stdout.contains("KiB"), "{text:?}");
    run(["record", &target, "*"]).assert_fails(1, &["a recorder runs already, of `menu.*`"]);

    // A trace beside it gets its own.
    let traced = run(["trace", &target, "menu.*", "--count", "3"]);
    assert_eq!((traced.code, traced.stdout.lines().count()), (Some(0), 3), "{traced:?}");

    let ended = run(["record", &target, "--off"]);
    assert!(ended.code == Some(0) && ended.stdout.starts_with("recorder off: menu.*"), "{ended:?}");
    assert_eq!(service.keys_on("menu.*"), 0);
    run(["record", &target, "--off"]).assert_fails(1, &["has no recorder"]);
    service.assert_alive();
}

#[test]
fn a_recorder_ends_by_its_time() {
    let service = Service::idle();
    let target = service.target();
    let begun = run(["record", &target, "menu.*", "--for", "300ms"]);
    assert!(begun.code == Some(0) && begun.stdout.contains(" left"), "{begun:?}");
    eventually(|| service.keys_on("menu.*") == 0);
    run(["record", &target]).assert_fails(1, &["has no recorder"]);
}

#[test]
fn force_ends_what_the_recorder_holds() {
    let service = Service::idle();
    let target = service.target();
    assert_eq!(run(["record", &target, "menu.*"]).code, Some(0));
    let off = run(["off", &target, "menu.*", "--force"]);
    assert_eq!(off.code, Some(0), "{off:?}");
    assert_eq!(service.keys_on("menu.*"), 0);
    let told = run(["--json", "record", &target]).json();
    assert_eq!(told["recorder"]["keys"], 0, "{told}");
    assert_eq!(run(["record", &target, "--off"]).code, Some(0));
}

#[test]
fn a_service_may_record_from_its_start() {
    let service = Service::start(|command| {
        command.env("DORMOUSE_RECORD", "menu.*");
    });
    assert!(service.keys_on("menu.*") > 0);
    let told = run(["--json", "record", &service.target()]).json();
    assert_eq!(told["recorder"]["memory_bytes"], 8 * 1024 * 1024, "{told}");

    let wrong = Service::start(|command| {
        command.env("DORMOUSE_RECORD", "no.such.probe");
    });
    let doctor = run(["doctor", &wrong.target()]);
    assert!(doctor.stdout.contains("DORMOUSE_RECORD has recorded nothing"), "{doctor:?}");
}

#[test]
fn wrong_command_lines_of_record_are_refused() {
    for arguments in [
        &["record", "x", "menu.*", "--memory", "8"][..],
        &["record", "x", "--memory", "8MiB"],
        &["record", "x", "--for", "3s"],
        &["record", "x", "menu.*", "--off"],
        &["record", "x", "--faults"],
        &["record"],
    ] {
        let refused = run(arguments.iter().copied());
        assert_eq!(refused.code, Some(2), "{arguments:?}: {refused:?}");
    }
    let service = Service::idle();
    let small = run(["record", &service.target(), "menu.*", "--memory", "1KiB"]);
    small.assert_fails(1, &["from 256 KiB to 1024 MiB"]);
}
