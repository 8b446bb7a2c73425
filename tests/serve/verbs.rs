//! The server and the command say the same.

use std::os::unix::fs::MetadataExt as _;

use dormouse_testkit::eventually;

use super::asking::Serving;
use crate::support::{Service, run};

#[test]
fn reading_verbs_answer_as_the_command_does() {
    let service = Service::visited();
    let pid = service.pid();
    let serving = Serving::of([pid]);
    for (path, args) in [
        ("keys?glob=menu.*", &["keys", "{}", "menu.*"][..]),
        ("list", &["list", "{}"]),
        ("slots", &["slots", "{}"]),
        ("triggers", &["triggers", "{}"]),
        ("maps?addr=0x1", &["maps", "{}", "0x1"]),
    ] {
        // Threads begin, and have their names, between the two.
        eventually(|| {
            let answer = serving.get(&format!("/api/processes/{pid}/{path}"));
            let target = service.target();
            let args = args.iter().map(|&arg| if arg == "{}" { target.as_str() } else { arg });
            let told = run(["--json"].into_iter().chain(args));
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            answer.json() == told.json()
        });
    }
    for (path, field) in [
        ("stat?for=20ms&waits=1", "groups"),
        ("tasks?for=10ms", "tasks"),
        ("doctor", "checks"),
        ("profile?for=50ms", "groups"),
        ("profile.json?seconds=1&kind=wall", "nodes"),
    ] {
        let answer = serving.get(&format!("/api/processes/teaparty/{path}"));
        // A name leads there only if it means one service.
        let answer =
            if answer.status == 200 { answer } else { serving.get(&format!("/api/processes/{pid}/{path}")) };
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(answer.json()[field].is_array(), "{path}: {}", answer.text());
    }
    let listed = serving.get("/api/processes").json();
    assert_eq!(listed["processes"].as_array().expect("a list").len(), 1, "the server itself is none");
    assert_eq!(listed["processes"][0]["agent"]["pid"], pid);
    assert_eq!(serving.get("/api/me").json()["uid"], rustix::process::geteuid().as_raw());
}

#[test]
fn a_server_is_named_as_holder() {
    let service = Service::visited();
    let serving = Serving::of([service.pid()]);
    assert_eq!(serving.get("/metrics").status, 200);
    let path = format!("/api/processes/{}/keys?glob=dormouse.switch", service.pid());
    let key = &serving.get(&path).json()["keys"][0];
    let held = &key["held"][0];
    assert_eq!((&held["by"], &held["pid"]), (&"client".into(), &serving.pid().into()), "{key}");
    assert!(held["client"].as_str().is_some_and(|name| name.starts_with("dormouse serve ")), "{key}");
}

#[test]
fn failures_have_the_commands_words() {
    let service = Service::idle();
    let pid = service.pid();
    let serving = Serving::of([pid]);
    let unknown = serving.get(&format!("/api/processes/{pid}/keys?glob=no.such.key"));
    assert_eq!((unknown.status, &unknown.json()["error"]["kind"]), (404, &"failed".into()));
    let wrong = serving.get(&format!("/api/processes/{pid}/keys?glob=%7B"));
    assert_eq!((wrong.status, &wrong.json()["error"]["kind"]), (400, &"usage".into()));
    let few = serving.get(&format!("/processes/{pid}/debug/pprof/allocs?bytes=1"));
    assert_eq!(few.status, 400, "{few:?}");
    let odd = serving.get(&format!("/api/processes/{pid}/stat?for=banana"));
    assert_eq!(odd.status, 400, "{odd:?}");
    let gone = serving.get("/api/processes/no-such-service/keys");
    assert_eq!((gone.status, &gone.json()["error"]["kind"]), (404, &"no-target".into()));
}

#[test]
fn metrics_have_all_services_of_the_server() {
    let (one, two) = (Service::visited(), Service::visited());
    let serving = Serving::of([one.pid(), two.pid()]);
    let metrics = serving.get("/metrics").text();
    for pid in [one.pid(), two.pid()] {
        assert!(
            metrics.contains(&format!("dormouse_up{{process=\"teaparty\",pid=\"{pid}\"}} 1")),
            "{metrics}"
        );
        let cpu = format!("dormouse_cpu_time_seconds_total{{process=\"teaparty\",pid=\"{pid}\"");
        assert!(metrics.contains(&cpu), "{metrics}");
    }
    let packed =
        serving.ask(serving.head("GET", "/metrics", "Accept-Encoding: gzip\r\nConnection: close\r\n"));
    let packed = packed.expect("an answer");
    assert_eq!((packed.header("content-encoding"), &packed.body[..2]), (Some("gzip"), &[0x1f, 0x8b][..]));
    let open = Serving::with(&["--public-metrics"], [one.pid()]);
    let bare = open.ask(format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", open.host));
    assert_eq!(bare.expect("an answer").status, 200);
}

#[test]
fn profiles_are_at_the_addresses_of_go() {
    let service = Service::visited();
    let serving = Serving::of([service.pid()]);
    for path in [
        "/debug/pprof/profile?seconds=1",
        &format!("/processes/{}/debug/pprof/allocs?seconds=1", service.pid()),
    ] {
        let answer = serving.get(path);
        assert_eq!((answer.status, &answer.body[..2]), (200, &[0x1f, 0x8b][..]), "{path}: {}", answer.head);
    }
    assert_eq!(serving.post("/debug/pprof/symbol", "").text(), "num_symbols: 0\n");
    assert_eq!(serving.get("/debug/pprof/goroutine").status, 404);
    assert_eq!(serving.get("/debug/pprof/profile?pid=1").status, 404);
}

#[test]
fn a_key_goes_off_by_its_time() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    let path = format!("/api/processes/{}/keys", service.pid());
    let on = serving.post(&path, r#"{"glob":"menu.*","on":true,"for_ms":700}"#);
    assert_eq!(on.status, 200, "{on:?}");
    let on = on.json();
    assert_eq!((&on["state"], &on["mode"]), (&"on".into(), &"timed".into()));
    assert!(on["off_at_unix_ms"].is_u64() && on["by"]["user"].is_string(), "{on}");
    service.await_keys_on("menu.*", |on| on == 0);
    let kept = serving.post(&path, r#"{"glob":"menu.*","on":true,"for_ms":3600000}"#);
    assert_eq!((kept.status, service.keys_on("menu.*") > 0), (200, true));
    let off = serving.post(&path, r#"{"glob":"menu.*","on":false}"#);
    assert_eq!((off.status, service.keys_on("menu.*")), (200, 0));
}

#[test]
fn hanging_up_ends_a_trace() {
    let service = Service::visited();
    let serving = Serving::of([service.pid()]);
    let path = format!("/api/processes/{}/trace", service.pid());
    let mut trace = serving.posted_stream(&path, r#"{"glob":"menu.*"}"#);
    assert_eq!(trace.status, 200);
    let (_, start) = trace.next().expect("a start");
    assert_eq!(start["type"], "start");
    assert!(trace.next().is_some(), "records");
    assert!(service.keys_on("menu.*") > 0);
    drop(trace);
    service.await_keys_on("menu.*", |on| on == 0);

    // One that records nothing has nothing to write, and must see it all the same.
    let idle = Service::idle();
    let of_idle = Serving::of([idle.pid()]);
    let path_of_idle = format!("/api/processes/{}/trace", idle.pid());
    let mut quiet = of_idle.posted_stream(&path_of_idle, r#"{"glob":"menu.*"}"#);
    quiet.next().expect("a start");
    drop(quiet);
    idle.await_keys_on("menu.*", |on| on == 0);

    let mut short = serving.posted_stream(&path, r#"{"glob":"menu.*","count":2}"#);
    assert_eq!(short.await_event("end")["exit"], 0);
    assert!(short.next().is_none());
}

#[test]
fn the_end_ends_leases_and_removes_the_token() {
    let service = Service::visited();
    let mut serving = Serving::of([service.pid()]);
    let found = std::fs::metadata(&serving.token_file).expect("the token's file");
    assert_eq!((found.mode() & 0o777, serving.token.len()), (0o600, 64));
    assert!(serving.token_file.starts_with(serving.runtime().path()));
    let path = format!("/api/processes/{}/trace", service.pid());
    let mut trace = serving.posted_stream(&path, r#"{"glob":"menu.*"}"#);
    trace.next().expect("a start");
    assert_eq!(serving.end(), Some(0));
    assert!(!serving.token_file.exists());
    service.await_keys_on("menu.*", |on| on == 0);
}
