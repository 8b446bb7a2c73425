//! Clients that mean harm, and those that do not read.

use std::io::{ErrorKind, Read as _};

use rustix::process::Signal;

use super::asking::{Answer, Serving};
use crate::support::{DORMOUSE, HANG, Service, run};

/// The answer to a request whose head is given line by line.
fn raw(serving: &Serving, lines: &[&str]) -> Option<Answer> {
    serving.ask(lines.join("\r\n") + "\r\nConnection: close\r\n\r\n")
}

#[test]
fn requests_of_strangers_are_refused() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    let (host, token) =
        (format!("Host: {}", serving.host), format!("Authorization: Bearer {}", serving.token));
    let wrong = format!("Authorization: Bearer {}", "0".repeat(64));
    let keys = format!("GET /api/processes/{}/keys HTTP/1.1", service.pid());
    let (long, get) = (format!("GET /{} HTTP/1.1", "x".repeat(9000)), "GET /api/me HTTP/1.1");
    let cases: &[(&[&str], u16)] = &[
        (&[get, &host, &token], 200),
        (&[get, &host], 401),
        (&[get, &host, &wrong], 401),
        (&[get, &host, "Authorization: Basic eDp5"], 401),
        (&[&keys, &host], 401),
        (&["GET /no/such HTTP/1.1", &host], 401),
        (&["GET /no/such HTTP/1.1", &host, &token], 404),
        (&["GET /../../etc/passwd HTTP/1.1", &host, &token], 404),
        (&["GET /api/processes/..%2f..%2fetc/keys HTTP/1.1", &host, &token], 404),
        (&[get, "Host: evil.example", &token], 403),
        (&[get, "Host: 127.0.0.1.evil.example", &token], 403),
        (&[get, &token], 400),
        (&[get, &host, &token, "Origin: http://evil.example"], 403),
        (&[get, &host, &token, "Origin: null"], 403),
        (&[get, &host, &token, "Sec-Fetch-Site: cross-site"], 403),
        (&["POST /api/me HTTP/1.1", &host, &token, "Content-Length: 0"], 405),
        (&["HEAD / HTTP/1.1", &host], 200),
        (&["OPTIONS /api/me HTTP/1.1", &host, &token], 204),
        (&[&long, &host, &token], 414),
        (&["GET / HTTP/1.1", &host], 200),
        (&["GET /-/healthy HTTP/1.1", "Host: any"], 200),
        (&["nonsense"], 400),
    ];
    for (lines, status) in cases {
        let answer = raw(&serving, lines).unwrap_or_else(|| panic!("no answer to {lines:?}"));
        assert_eq!(answer.status, *status, "{lines:?}: {answer:?}");
    }
    let huge = format!("X: {}", "y".repeat(100_000));
    let huge = raw(&serving, &[get, &host, &token, &huge]);
    assert!(huge.is_none_or(|answer| answer.status == 431));
    let many: Vec<String> = (0..200).map(|n| format!("X-{n}: y")).collect();
    let many: Vec<&str> = [get, &host, &token].into_iter().chain(many.iter().map(String::as_str)).collect();
    assert!(raw(&serving, &many).is_none_or(|answer| answer.status == 431));
    service.assert_alive();
}

#[test]
fn requests_write_no_file_and_run_nothing() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    let place = serving.runtime().path().join("smuggled");
    let file = place.display();
    for (verb, query) in [
        ("profile", format!("o={file}.html")),
        ("profile", format!("output={file}.html")),
        ("profile", format!("for=10ms&hz=1%20-o%20{file}.html")),
        ("stat", format!("output={file}")),
        ("stat", format!("--output={file}")),
        ("stat", format!("command=touch&command={file}")),
        ("stat", format!("for=1s&--&touch&{file}")),
        ("tasks", "wake=1".into()),
        ("triggers", "add=request%3E1ms".into()),
        ("record", "glob=menu.*".into()),
        ("record", "save=true".into()),
        ("maps", "addr=-".into()),
        ("keys", "json=0".into()),
        ("keys", "timeout=9d".into()),
    ] {
        let answer = serving.get(&format!("/api/processes/{}/{verb}?{query}", service.pid()));
        assert_eq!(answer.status, 400, "{verb}?{query}: {answer:?}");
    }
    for verb in ["on", "off", "reset", "bench", "demo", "serve", "generate", "trace", "watch", "ps", "sleep"]
    {
        let answer = serving.get(&format!("/api/processes/{}/{verb}", service.pid()));
        assert!([404, 405].contains(&answer.status), "{verb}: {answer:?}");
    }
    let path = format!("/api/processes/{}/trace", service.pid());
    for body in [
        format!(r#"{{"glob":"*","output":"{file}.pftrace"}}"#),
        format!(r#"{{"glob":"*","o":"{file}.pftrace"}}"#),
        r#"{"glob":["*"]}"#.into(),
        "[]".into(),
        "{".into(),
    ] {
        assert_eq!(serving.post(&path, &body).status, 400, "{body}");
    }
    let long = format!(r#"{{"glob":"{}"}}"#, "x".repeat(70_000));
    assert_eq!(serving.post(&path, &long).status, 413);
    let form =
        serving.head("POST", &path, "Content-Length: 2\r\nContent-Type: text/plain\r\nConnection: close\r\n");
    assert_eq!(serving.ask(form + "{}").expect("an answer").status, 415);
    // A file of this user's that a verb would take for its target.
    let name = format!("/api/processes/{}/keys", DORMOUSE.replace('/', "%2F"));
    assert_eq!(serving.get(&name).status, 404);
    let beside: Vec<_> = std::fs::read_dir(serving.runtime().path()).expect("a directory").collect();
    assert_eq!(beside.len(), 1, "its own directory alone: {beside:?}");
    service.assert_alive();
}

#[test]
fn the_page_has_a_strict_policy() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    let page = raw(&serving, &["GET / HTTP/1.1", &format!("Host: {}", serving.host)]).expect("the page");
    let policy = page.header("content-security-policy").expect("a policy");
    assert!(
        policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
        "{policy}"
    );
    // No number that somebody could learn, no host, and no exception: one script and one style.
    for of in ["script-src 'sha256-", "style-src 'sha256-"] {
        let (_, hash) = policy.split_once(of).unwrap_or_else(|| panic!("no {of} in {policy}"));
        assert_eq!(hash.find("=';"), Some(43), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("nonce"), "{policy}");
    assert!(!page.text().contains("teaparty") && !page.text().contains(&serving.token));
    for (name, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ] {
        assert_eq!(page.header(name), Some(value), "{name}");
    }
}

#[test]
fn streams_that_do_not_read_harm_nobody() {
    let service = Service::visited();
    let serving = Serving::of([service.pid()]);
    let path = format!("/api/processes/{}/live", service.pid());
    let mut first = serving.stream(&path);
    first.await_event("sample");
    let (descriptors, memory) = serving.takes();
    let held: Vec<_> = (0..100).map(|_| serving.send(serving.head("GET", &path, ""))).collect();
    // Beyond the bound each is told so at once; of the others nothing is read but that.
    let refused = held.iter().filter(|stream| {
        let (mut stream, mut status) = (*stream, [0; 12]);
        stream.read_exact(&mut status).expect("an answer");
        &status == b"HTTP/1.1 503"
    });
    assert_eq!(refused.count(), 101 - 64);
    // The others go on while the first has ten samples.
    for _ in 0..10 {
        first.await_event("sample");
    }
    assert_eq!(serving.get("/api/me").status, 200);
    assert_eq!(serving.get("/metrics").status, 200);
    let (now, grown) = serving.takes();
    assert!(now <= descriptors + 110, "{descriptors} descriptors became {now}");
    assert!(grown < memory + 48 * 1024, "{memory} kB became {grown}");
    drop(held);
    drop(first);
    let start = std::time::Instant::now();
    while serving.takes().0 > descriptors + 4 {
        assert!(start.elapsed() < HANG, "{:?}", serving.takes());
        std::thread::yield_now();
    }
    assert_eq!(serving.stream(&path).status, 200, "their places are free");
    service.assert_alive();
}

#[test]
fn slow_heads_and_crowds_are_closed() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    let mut slow = serving.send("GET / HTTP/1.1\r\nHost:");
    let crowd: Vec<_> = (0..300).map(|_| serving.send("")).collect();
    let mut all = Vec::new();
    // Closed by the server, with or without a word.
    let _ = slow.read_to_end(&mut all);
    drop(crowd);
    let start = std::time::Instant::now();
    let bare = format!("GET /-/healthy HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", serving.host);
    while serving.ask(&bare).is_none_or(|answer| answer.status != 200) {
        assert!(start.elapsed() < HANG, "it serves again");
    }
}

#[test]
fn crowds_take_no_place_of_others() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    let mut known = serving.stream(&format!("/api/processes/{}/live", service.pid()));
    known.await_event("sample");
    let mut crowd: Vec<_> = (0..300).map(|_| serving.send("GET / HTTP/1.1\r\nHost:")).collect();
    assert_eq!(serving.get("/api/me").status, 200, "beside 300 that ask for nothing");
    let mut oldest = crowd.swap_remove(0);
    let closed = oldest.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(closed, Ok(0) | Err(ErrorKind::ConnectionReset)), "{closed:?}");
    // One that was there with the token before them is there still.
    for _ in 0..2 {
        known.await_event("sample");
    }
    service.assert_alive();
}

#[test]
fn crowds_cut_no_answer() {
    let service = Service::visited();
    // The answer of a scrape waits a second for it.
    service.signal(Signal::STOP);
    let serving = Serving::with(&["--public-metrics"], [service.pid()]);
    let ask = |head: String| {
        let mut asked = serving.send(head);
        asked.read_exact(&mut [0]).expect("an answer");
        asked
    };
    // Most of the places: the kernel lets no larger crowd in at once.
    let known: Vec<_> = (0..220).map(|_| ask(serving.head("GET", "/-/healthy", ""))).collect();
    let host = &serving.host;
    let mut scrape =
        serving.send(format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    // By then it has been begun with.
    ask(serving.head("GET", "/-/healthy", ""));
    let crowd: Vec<_> = (0..100).map(|_| serving.send("GET / HTTP/1.1\r\nHost:")).collect();
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).expect("an answer");
    let up = format!("dormouse_up{{process=\"teaparty\",pid=\"{}\"}} 0", service.pid());
    assert!(answer.contains(&up), "{answer:?}");
    drop((known, crowd));
    service.signal(Signal::CONT);
}

#[test]
fn a_taken_port_is_named() {
    let service = Service::idle();
    let serving = Serving::of([service.pid()]);
    run(["serve", "--listen", &serving.host])
        .assert_fails(1, &["cannot listen on", &serving.host, "--listen"]);
}
