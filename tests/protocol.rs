//! The agent against clients that are broken, hostile or many: each gets a typed refusal, and the
//! service goes on.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use dormouse_protocol::Verb;
use dormouse_testkit::skip;

use crate::support::{DORMOUSE, NOBODY, Service, Wire, run};
use serde_json::{Value, json};

const HELLO: &str = r#"{"v":1,"id":1,"op":"hello","client":"test"}"#;

fn code(answer: &Value) -> &str {
    answer["error"]["code"].as_str().unwrap_or_else(|| panic!("no refusal: {answer}"))
}

#[test]
fn a_malformed_request_ends_only_its_connection() {
    let service = Service::idle();
    let mut other = service.wire();
    for line in [
        "",
        "hello",
        "{",
        "[]",
        "{}",
        r#"{"v":1,"id":1}"#,
        r#"{"v":1,"id":1,"op":"dance"}"#,
        r#"{"v":"one","id":1,"op":"hello","client":"x"}"#,
        r#"{"v":1,"id":-1,"op":"hello","client":"x"}"#,
        r#"{"v":1,"id":1,"op":"hello"}"#,
        "\u{0}\u{1}\u{2}",
        "GET / HTTP/1.1\r",
    ] {
        let mut wire = Wire::open(&service.socket());
        let answer = wire.ask(line);
        assert_eq!(code(&answer), "bad-request", "{line}: {answer}");
        assert_eq!(wire.receive(), None, "{line}: the connection is closed");
    }
    let mut wire = Wire::open(&service.socket());
    wire.send(&[0xff, 0xfe, b'\n']);
    assert_eq!(code(&wire.receive().expect("an answer")), "bad-request");
    let keys = other.ask(r#"{"v":1,"id":2,"op":"keys"}"#);
    assert!(keys["ok"]["keys"].is_array(), "another connection is not disturbed: {keys}");
    service.assert_alive();
}

#[test]
fn nothing_is_answered_before_hello() {
    let service = Service::idle();
    let mut wire = Wire::open(&service.socket());
    let answer = wire.ask(r#"{"v":1,"id":7,"op":"on","glob":"*","keep":true}"#);
    assert_eq!((code(&answer), &answer["id"]), ("bad-request", &json!(7)));
    assert_eq!(service.keys_on("*"), 0);
}

#[test]
fn another_protocol_version_is_named_and_refused() {
    let service = Service::idle();
    for v in [0, 2, u32::MAX] {
        let mut wire = Wire::open(&service.socket());
        let answer = wire.ask(&format!(r#"{{"v":{v},"id":3,"op":"hello","client":"test"}}"#));
        assert_eq!((code(&answer), &answer["id"]), ("version", &json!(3)), "{answer}");
        assert!(answer["error"]["message"].as_str().expect("words").contains(&v.to_string()), "{answer}");
    }
    service.assert_alive();
}

#[test]
fn unknown_fields_of_newer_clients_are_ignored() {
    let service = Service::idle();
    let mut wire = Wire::open(&service.socket());
    let answer = wire.ask(r#"{"v":1,"id":1,"op":"hello","client":"test","colour":"green"}"#);
    assert!(answer["ok"].is_object(), "{answer}");
}

#[test]
fn an_oversized_request_is_refused_before_its_end() {
    let service = Service::idle();
    let mut wire = Wire::open(&service.socket());
    // Without an end of line: the agent must not wait for one.
    wire.send(&vec![b'x'; 64 * 1024]);
    assert_eq!(code(&wire.receive().expect("an answer")), "too-long");
    assert_eq!(wire.receive(), None);
    service.assert_alive();
}

#[test]
fn half_a_request_keeps_no_other_waiting() {
    let service = Service::idle();
    let mut half = Wire::open(&service.socket());
    half.send(&HELLO.as_bytes()[..20]);
    service.assert_alive();
    half.send(&HELLO.as_bytes()[20..]);
    half.send(b"\n");
    let answer = half.receive().expect("an answer");
    assert!(answer["ok"].is_object(), "the other half came in time: {answer}");
}

#[test]
fn half_a_request_is_given_up_eventually() {
    let service = Service::idle();
    let mut never_greeted = Wire::open(&service.socket());
    let mut greeted = service.wire();
    greeted.send(b"{\"v\":1,");
    // Ten seconds of the agent's patience, spent on both at once.
    assert_eq!(code(&greeted.receive().expect("an answer")), "bad-request");
    assert_eq!(greeted.receive(), None);
    assert_eq!(code(&never_greeted.receive().expect("an answer")), "bad-request");
    assert_eq!(never_greeted.receive(), None);
    service.assert_alive();
}

#[test]
fn a_client_that_leaves_is_forgotten() {
    let service = Service::idle();
    for n in [0, 1, 20, HELLO.len()] {
        let mut wire = Wire::open(&service.socket());
        wire.send(&HELLO.as_bytes()[..n]);
    }
    service.assert_alive();
}

#[test]
fn requests_at_once_are_answered_in_order() {
    let service = Service::idle();
    let mut wire = service.wire();
    let lines: Vec<String> =
        (10..40).map(|id| format!("{{\"v\":1,\"id\":{id},\"op\":\"keys\"}}\n")).collect();
    wire.send(lines.concat().as_bytes());
    for id in 10..40 {
        assert_eq!(wire.receive().expect("an answer")["id"], id);
    }
}

#[test]
fn a_client_that_never_reads_harms_itself_only() {
    let service = Service::idle();
    let mut wire = service.wire();
    let line = "{\"v\":1,\"id\":1,\"op\":\"keys\"}\n".repeat(100);
    // Far more answers than a socket holds.
    wire.send(line.as_bytes());
    service.assert_alive();
}

#[test]
fn idle_clients_give_way_to_those_who_come() {
    let service = Service::idle();
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let socket = service.socket();
            thread::spawn(move || {
                let mut wire = Wire::open(&socket);
                let answer = wire.ask(HELLO);
                (wire, answer)
            })
        })
        .collect();
    let mut held: Vec<(Wire, Value)> =
        clients.into_iter().map(|client| client.join().expect("an answer")).collect();
    for (_, answer) in &held {
        assert!(
            answer["ok"].is_object() || code(answer) == "busy",
            "nobody is left without a word: {answer}"
        );
    }
    service.assert_alive();
    let ended = held.iter_mut().filter(|(_, answer)| answer["ok"].is_object());
    let ended = ended.filter_map(|(wire, _)| {
        wire.send(b"{\"v\":1,\"id\":2,\"op\":\"keys\"}\n");
        Some(wire.receive()?["error"]["code"] == "busy")
    });
    assert!(ended.filter(|&busy| busy).count() > 0, "the others have been told why");
}

#[test]
fn clients_with_leases_stay_connected() {
    if !rustix::process::geteuid().is_root() {
        return crate::support::skip("only root can be another user");
    }
    let runtime = tempfile::tempdir().expect("a temporary directory");
    chown(runtime.path(), Some(NOBODY), Some(NOBODY)).expect("a directory of another user");
    let service = Service::start_as(DORMOUSE.as_ref(), runtime, |command| {
        command.uid(NOBODY).gid(NOBODY);
    });
    let service = match service {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return crate::support::skip(
                "other users may not read the directory that the command was built in",
            );
        }
        result => result.expect("a service of another user"),
    };
    let socket = service.socket();
    let (hold, holds) = mpsc::channel();
    let (going_on, go_on) = mpsc::channel();
    let other = thread::spawn(move || {
        // This thread is another user; the C library would have all threads be.
        // SAFETY: one system call.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1) }, 0);
        let clients = (0..32).map(|_| {
            let mut wire = Wire::open(&socket);
            wire.ask(HELLO);
            assert!(wire.ask(r#"{"v":1,"id":2,"op":"on","glob":"menu.read"}"#)["ok"].is_object());
            wire
        });
        let clients: Vec<Wire> = clients.collect();
        let mut another = Wire::open(&socket);
        let refusal = another.ask(HELLO);
        assert_eq!(code(&refusal), "busy", "all of them hold a key");
        assert!(refusal["error"]["message"].as_str().expect("words").contains("none is idle"), "{refusal}");
        hold.send(clients).expect("the test waits");
        // Root's client is there, and idle: its place is no user's.
        go_on.recv().expect("root's client");
        let refusal = Wire::open(&socket).ask(HELLO);
        assert_eq!(code(&refusal), "busy", "{refusal}");
    });
    let held = holds.recv().expect("32 clients");
    let mut root = service.wire();
    going_on.send(()).expect("the thread waits");
    other.join().expect("a refusal");
    assert!(root.ask(r#"{"v":1,"id":2,"op":"keys"}"#)["ok"].is_object(), "root has stayed");
    drop(root);
    assert_eq!(run(["off", &service.target(), "*", "--force"]).code, Some(0), "root has a place");
    assert_eq!(service.keys_on("*"), 0);
    drop(held);
    service.assert_alive();
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let service = Service::idle();
    let mut greeted = service.wire();
    let mut silent: Vec<Wire> = (0..31).map(|_| Wire::open(&service.socket())).collect();
    // All places are taken; whoever speaks gets that of the oldest that does not.
    let mut another = service.wire();
    assert_eq!(code(&silent.remove(0).receive().expect("a word")), "busy");
    for wire in [&mut greeted, &mut another] {
        assert!(wire.ask(r#"{"v":1,"id":2,"op":"keys"}"#)["ok"].is_object(), "who has spoken stays");
    }
    for mut wire in silent {
        assert_eq!(code(&wire.receive().expect("the end of the agent's patience")), "bad-request");
    }
    service.assert_alive();
}

#[test]
fn a_connection_counts_until_it_wants_others() {
    let service = Service::busy();
    let mut wire = service.wire();
    let hello = wire.ask(HELLO);
    let ops = hello["ok"]["ops"].as_array().expect("operations");
    assert!(["events", "count", "stat"].iter().all(|op| ops.contains(&json!(op))), "{hello}");
    let events = wire.ask(r#"{"v":1,"id":2,"op":"events"}"#);
    let names: Vec<&Value> =
        events["ok"]["events"].as_array().expect("events").iter().map(|event| &event["name"]).collect();
    assert!(names.contains(&&json!("task-clock")), "{events}");

    let counts = |wire: &mut Wire| {
        let stat = wire.ask(r#"{"v":1,"id":3,"op":"stat"}"#);
        assert!(stat["ok"]["clock"]["tier"].is_string(), "{stat}");
        stat["ok"]["groups"][0]["counts"].clone()
    };
    assert_eq!(counts(&mut wire)[0]["event"], "task-clock", "as an older client expects");
    let counted = wire.ask(r#"{"v":1,"id":4,"op":"count","events":["task-clock"]}"#);
    assert_eq!(counted["ok"]["counted"][0]["unit"], "ns", "{counted}");
    assert_eq!(counts(&mut wire)[0]["event"], "task-clock");
    let unknown = wire.ask(r#"{"v":1,"id":5,"op":"count","events":["task-clock","sneezes"]}"#);
    assert_eq!(code(&unknown), "no-event", "{unknown}");
    assert_eq!(counts(&mut wire)[0]["event"], "task-clock", "a refusal changes nothing");
    let none = wire.ask(r#"{"v":1,"id":6,"op":"count","events":[]}"#);
    assert_eq!(none["ok"]["counted"], json!([]));
    assert_eq!(counts(&mut wire), Value::Null);
}

#[test]
fn groups_are_charged_cpu_time_beside_events() {
    // The last one cannot be counted on most virtual machines: what is left is CPU time.
    for event in ["page-faults", "alloc-count", "cycles"] {
        let service = Service::busy();
        let mut wire = service.wire();
        wire.ask(&format!(r#"{{"v":1,"id":2,"op":"count","events":["{event}"]}}"#));
        let mut charged = || {
            let stat = wire.ask(r#"{"v":1,"id":3,"op":"stat"}"#);
            let groups = stat["ok"]["groups"].as_array().expect("groups").clone();
            groups.iter().filter_map(|group| group["cpu_ns"].as_u64()).sum::<u64>()
        };
        let before = charged();
        let start = std::time::Instant::now();
        while charged() <= before {
            assert!(start.elapsed() < crate::support::HANG, "{event}: its groups stand at {before} ns");
        }
    }
}

#[test]
fn forced_off_notifies_clients_that_listen() {
    let service = Service::idle();
    let mut deaf = service.wire();
    let mut holder = Wire::open(&service.socket());
    holder.ask(r#"{"v":1,"id":1,"op":"hello","client":"test","notices":true}"#);
    for wire in [&mut deaf, &mut holder] {
        assert!(wire.ask(r#"{"v":1,"id":2,"op":"on","glob":"menu.*"}"#)["ok"].is_object());
    }
    assert_eq!(crate::support::run(["off", &service.target(), "menu.read", "--force"]).code, Some(0));
    let told = holder.receive().expect("a notice");
    let ended = &told["note"]["ended"];
    assert_eq!((&ended["keys"], &told["ok"]), (&json!(1), &Value::Null), "{told}");
    assert!(ended["left"].as_u64() > Some(0) && ended["pid"].is_u64() && ended["uid"].is_u64(), "{told}");
    // The other one hears nothing but its answers.
    assert_eq!(deaf.ask(r#"{"v":1,"id":9,"op":"keys"}"#)["id"], 9);
}

#[test]
fn values_out_of_range_change_nothing() {
    let service = Service::idle();
    let mut wire = service.wire();
    for (request, refusal) in [
        (json!({"op": "on", "glob": "*", "for_ms": 0}), "bad-request"),
        (json!({"op": "on", "glob": "*", "for_ms": u64::MAX}), "bad-request"),
        (json!({"op": "on", "glob": "*", "for_ms": 5, "keep": true}), "bad-request"),
        (json!({"op": "on", "glob": "*", "for_ms": 5, "dwell_ms": 5}), "bad-request"),
        (json!({"op": "on", "glob": "*", "dwell_ms": 5, "keep": true}), "bad-request"),
        (json!({"op": "on", "glob": "*", "dwell_ms": 0}), "bad-request"),
        (json!({"op": "on", "glob": "*", "for_ms": 31 * 24 * 3_600_000_u64 + 1}), "bad-request"),
        (json!({"op": "off", "glob": "*", "dwell_ms": u64::MAX}), "bad-request"),
        (json!({"op": "on", "glob": "["}), "bad-glob"),
        (json!({"op": "on", "glob": ""}), "bad-glob"),
        (json!({"op": "on", "glob": "no.such.key"}), "no-match"),
        (json!({"op": "trace", "glob": "no.such.key"}), "no-match"),
    ] {
        let mut line = request.clone();
        line["v"] = json!(1);
        line["id"] = json!(5);
        let answer = wire.ask(&line.to_string());
        assert_eq!(code(&answer), refusal, "{request}: {answer}");
    }
    assert_eq!(service.keys_on("*"), 0);
    let answer = wire.ask(r#"{"v":1,"id":6,"op":"doctor"}"#);
    assert!(answer["ok"]["checks"].is_array(), "a refused request does not end the connection: {answer}");
}

#[test]
fn ended_leases_leave_room_for_others() {
    let service = Service::idle();
    let mut wire = service.wire();
    // More often than a connection may hold leases.
    for _ in 0..300 {
        for request in
            [r#"{"v":1,"id":2,"op":"on","glob":"menu.read"}"#, r#"{"v":1,"id":3,"op":"off","glob":"*"}"#]
        {
            let answer = wire.ask(request);
            assert_eq!(answer["ok"]["changed"], 1, "{answer}");
        }
    }
}

#[test]
fn timed_leases_are_extended_not_piled_up() {
    let service = Service::idle();
    let mut wire = service.wire();
    let mut on = |ms: u64| {
        let request = json!({"v": 1, "id": 2, "op": "on", "glob": "menu.read", "for_ms": ms});
        let answer = wire.ask(&request.to_string());
        assert!(answer["ok"].is_object(), "{answer}");
    };
    for _ in 0..300 {
        on(600_000);
        on(1);
    }
    let keys = wire.ask(r#"{"v":1,"id":3,"op":"keys","glob":"menu.read"}"#);
    let key = &keys["ok"]["keys"][0];
    assert_eq!((&key["leases"], key["held"].as_array().map(Vec::len)), (&1.into(), Some(1)), "{key}");
    assert!(key["off_in_ms"].as_u64() > Some(500_000), "{key}");
}

/// A client in another language, by the page and the schema alone.
#[test]
fn a_stranger_speaks_the_protocol() {
    let service = Service::busy();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let asked = Command::new("python3")
        .arg(format!("{root}/tests/client.py"))
        .arg(service.socket())
        .arg(format!("{root}/docs/protocol.schema.json"))
        .output();
    let Ok(asked) = asked else { return skip("there is no python3") };
    let (said, error) = [asked.stdout, asked.stderr].map(|text| String::from_utf8(text).unwrap()).into();
    assert!(asked.status.success(), "{error}");
    // It cannot know which registers are free, nor whether a file may be written.
    let left = ["watch", "watch-report", "record-save"];
    macro_rules! names {
        ($($name:ident($module:ident::$request:ident),)*) => { [$(<dormouse_protocol::$request as Verb>::NAME),*] };
    }
    for name in dormouse_protocol::for_each_verb!(names) {
        assert!(left.contains(&name) || said.split_whitespace().any(|it| it == name), "{name}: {said}");
    }
    service.assert_alive();
}
