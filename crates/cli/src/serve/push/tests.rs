//! Pushes to a collector whose answers a test chooses.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dormouse_testkit::{HANG, eventually};

use super::Pusher;
use super::answer::PartialSuccess;
use super::post::{NotTaken, Pauses, Post};
use super::pusher::{PushBody, PushSource};
use super::settings::PushSettings;
use crate::serve::hub::Identity;

/// Pauses that no test waits for.
const SHORT: Pauses = Pauses { first: Duration::from_millis(1), most: Duration::from_millis(2) };
const TAKEN: &str = "200 OK\r\nContent-Length: 0";
const BUSY: &str = "503 Service Unavailable\r\nContent-Length: 0";

/// A request as the collector got it.
struct Got {
    head: String,
    body: Vec<u8>,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// A collector that gives these answers, one to a connection, and the last of them for ever. It
/// sends a request to the receiver before it answers, so that its request is there once an answer
/// is.
fn collector(answers: &'static [&'static str]) -> (PushSettings, Receiver<Got>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = settings(listener.local_addr().unwrap());
    let (sender, got) = mpsc::channel();
    std::thread::spawn(move || {
        for (connection, stream) in listener.incoming().enumerate() {
            let answer = answers[connection.min(answers.len() - 1)];
            let mut stream = stream.unwrap();
            if sender.send(receive(&stream)).is_err() {
                return;
            }
            let (status, body) = answer.split_once("\n\n").unwrap_or((answer, ""));
            write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{body}").unwrap();
        }
    });
    (settings, got)
}

fn receive(stream: &TcpStream) -> Got {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
    let mut got = Got { head, body: Vec::new() };
    let length = got.header("content-length").map_or(0, |length| length.parse().unwrap());
    got.body.resize(length, 0);
    reader.read_exact(&mut got.body).unwrap();
    got
}

fn settings(address: SocketAddr) -> PushSettings {
    PushSettings {
        url: format!("http://{address}/v1/metrics"),
        headers: Vec::new(),
        timeout: HANG,
        gzip: false,
        certificate: None,
        interval: HANG,
        delta: false,
        proxy: false,
        attributes: Vec::new(),
    }
}

fn deliver(settings: &PushSettings) -> Result<Option<PartialSuccess>, NotTaken> {
    let post = Post::new(settings.clone(), SHORT).unwrap();
    post.deliver(b"metrics", Instant::now() + settings.timeout, |_| true)
}

#[test]
fn bytes_arrive_as_they_are() {
    let (mut settings, got) = collector(&[TAKEN]);
    settings.headers.push(("x-tenant".parse().unwrap(), "tea".parse().unwrap()));
    assert_eq!(deliver(&settings), Ok(None));
    let got = got.recv().unwrap();
    assert!(got.head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{}", got.head);
    assert_eq!(got.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(got.header("user-agent"), Some(concat!("dormouse/", env!("CARGO_PKG_VERSION"))));
    assert_eq!((got.header("x-tenant"), got.header("content-encoding")), (Some("tea"), None));
    assert_eq!(got.body, b"metrics");
}

#[test]
fn bytes_arrive_zipped() {
    let (mut settings, got) = collector(&[TAKEN]);
    settings.gzip = true;
    assert_eq!(deliver(&settings), Ok(None));
    let got = got.recv().unwrap();
    assert_eq!(got.header("content-encoding"), Some("gzip"));
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&got.body[..]).read_to_end(&mut plain).unwrap();
    assert_eq!(plain, b"metrics");
}

#[test]
fn a_busy_collector_is_tried_again() {
    let busy = [
        BUSY,
        "429 Too Many Requests\r\nRetry-After: 0\r\nContent-Length: 0",
        "502 Bad Gateway\r\nRetry-After: Mon, 23 Nov 2026 08:00:00 GMT\r\nContent-Length: 0",
        "504 Gateway Timeout\r\nContent-Length: 0",
        TAKEN,
    ];
    let (settings, got) = collector(Box::leak(Box::new(busy)));
    assert_eq!(deliver(&settings), Ok(None));
    assert_eq!(got.try_iter().map(|got| got.body).filter(|body| body == b"metrics").count(), 5);
}

#[test]
fn a_refusal_is_final() {
    for status in ["400 Bad Request", "401 Unauthorized", "404 Not Found", "307 Temporary Redirect", "500 No"]
    {
        let answer = format!("{status}\r\nLocation: /other\r\nContent-Length: 0").leak();
        let (settings, got) = collector(Box::leak(Box::new([&*answer])));
        let missed = deliver(&settings).unwrap_err();
        assert!(missed.reason.contains(&status[..3]) && missed.quiet.is_none(), "{missed:?}");
        assert_eq!(got.try_iter().count(), 1, "{status}");
    }
}

#[test]
fn a_named_time_is_not_waited_out() {
    let cap = Duration::from_secs(300);
    for (named, quiet) in [
        ("Retry-After: 77", Duration::from_secs(77)),
        ("Retry-After: 3600", cap),
        ("Retry-After: 4294967295", cap),
        ("Retry-After: 99999999999999999999999", cap),
        ("Retry-After: Sat, 31 Dec 2196 23:59:59 GMT", cap),
        (
            "Date: Mon, 23 Nov 2026 08:00:00 GMT\r\nRetry-After: Mon, 23 Nov 2026 08:01:17 GMT",
            Duration::from_secs(77),
        ),
    ] {
        let answer = format!("503 Busy\r\n{named}\r\nContent-Length: 0").leak();
        let (mut settings, got) = collector(Box::leak(Box::new([&*answer])));
        settings.timeout = Duration::from_secs(60);
        let missed = deliver(&settings).unwrap_err();
        assert_eq!(missed.quiet, Some(quiet), "{named}");
        assert!(missed.reason.contains(named.lines().last().unwrap()), "{missed:?}");
        assert_eq!(got.try_iter().count(), 1, "{named}");
    }
}

#[test]
fn a_named_time_shortens_no_pause() {
    for named in ["0", "-1", "soon", "", "Mon, 23 Nov 2020 08:00:00 GMT"] {
        let answer = format!("429 Busy\r\nRetry-After: {named}\r\nContent-Length: 0").leak();
        let (settings, got) = collector(Box::leak(Box::new([&*answer])));
        let post = Post::new(settings, SHORT).unwrap();
        let mut waits = Vec::new();
        let wait = |pause| {
            waits.push(pause);
            waits.len() < 5
        };
        let missed = post.deliver(b"metrics", Instant::now() + HANG, wait).unwrap_err();
        assert_eq!((missed.quiet, got.try_iter().count()), (None, 5), "{named}");
        assert!(waits.iter().all(|pause| *pause >= SHORT.first / 2), "{named}: {waits:?}");
    }
}

#[test]
fn a_refusal_has_the_collectors_reason() {
    let answer = "400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 19\n\nonly delta is taken";
    let (settings, _got) = collector(Box::leak(Box::new([answer])));
    let missed = deliver(&settings).unwrap_err();
    assert_eq!(missed.reason, "the collector answers 400 Bad Request: only delta is taken");
}

#[test]
fn a_partial_success_is_reported() {
    // Field 1: a message of which field 1 is 7 and field 2 "old".
    let (settings, _got) = collector(&["200 OK\r\nContent-Length: 9\n\n\x0a\x07\x08\x07\x12\x03old"]);
    assert_eq!(deliver(&settings), Ok(Some(PartialSuccess { rejected: 7, message: "old".into() })));
}

#[test]
fn a_collector_that_is_gone_is_missed() {
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = settings(address);
    settings.timeout = Duration::from_millis(50);
    let missed = deliver(&settings).unwrap_err();
    assert_eq!(missed.quiet, None);
}

#[test]
fn a_collector_that_says_nothing_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = settings(listener.local_addr().unwrap());
    settings.timeout = Duration::from_millis(50);
    let start = Instant::now();
    assert!(deliver(&settings).is_err());
    assert!(start.elapsed() < HANG);
}

#[test]
fn certificates_come_from_the_file() {
    let mut settings = settings(([127, 0, 0, 1], 1).into());
    let file = tempfile::NamedTempFile::new().unwrap();
    settings.certificate = Some(file.path().to_owned());
    let path = file.path().to_str().unwrap();
    let none = Post::new(settings.clone(), SHORT).err().unwrap();
    assert!(none.contains(path) && none.contains("no certificate"), "{none}");
    settings.certificate = Some("/nonexistent/ca.pem".into());
    let missing = Post::new(settings, SHORT).err().unwrap();
    assert!(missing.contains("/nonexistent/ca.pem"), "{missing}");
}

impl<S: FnMut() -> Result<Vec<u8>, String>> PushSource for S {
    fn bodies(&mut self) -> Result<Vec<PushBody>, String> {
        Ok(vec![PushBody { bytes: self()?, points: 1, processes: vec![(1, 1)] }])
    }
}

/// A pusher whose pushes are numbered, and its messages.
fn pusher(settings: PushSettings) -> (Pusher, Arc<Mutex<Vec<String>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let mut pushes = 0;
    let source = move || {
        pushes += 1;
        Ok(format!("{pushes}").into_bytes())
    };
    let tell = {
        let told = Arc::clone(&told);
        move |text: &str| told.lock().unwrap().push(text.to_owned())
    };
    (Pusher::start_with(settings, SHORT, source, tell).unwrap(), told)
}

#[test]
fn the_end_is_one_more_push() {
    let (settings, got) = collector(&[TAKEN]);
    let (pusher, told) = pusher(settings);
    pusher.close();
    assert_eq!(got.recv().unwrap().body, b"1");
    assert!(told.lock().unwrap().is_empty());
}

#[test]
fn each_interval_brings_a_push() {
    let (mut settings, got) = collector(&[TAKEN]);
    settings.interval = Duration::from_millis(5);
    let (pusher, _) = pusher(settings);
    let first: Vec<_> = got.iter().take(3).map(|got| got.body).collect();
    assert_eq!(first, [b"1", b"2", b"3"]);
    pusher.close();
}

#[test]
fn failures_are_told_when_they_begin_and_end() {
    let refused = "400 Bad Request\r\nContent-Length: 0";
    let (mut settings, got) = collector(Box::leak(Box::new([refused, refused, refused, TAKEN])));
    settings.interval = Duration::from_millis(5);
    let (pusher, told) = pusher(settings);
    eventually(|| told.lock().unwrap().len() == 2);
    pusher.close();
    assert!(got.try_iter().count() >= 4);
    let told = told.lock().unwrap();
    assert!(told[0].contains("400") && told[1].contains("3 pushes have failed"), "{told:?}");
}

#[test]
fn only_changes_of_a_partial_success_are_told() {
    // Field 1: a message of which field 1 is 7 and field 2 the reason.
    const REASONS: [&str; 2] = [
        "200 OK\r\nContent-Length: 9\n\n\x0a\x07\x08\x07\x12\x03old",
        "200 OK\r\nContent-Length: 9\n\n\x0a\x07\x08\x07\x12\x03new",
    ];
    let (mut settings, _got) =
        collector(Box::leak(Box::new([REASONS[0], REASONS[1], REASONS[0], TAKEN, REASONS[1], TAKEN])));
    settings.interval = Duration::from_millis(5);
    let (pusher, told) = pusher(settings);
    eventually(|| told.lock().unwrap().len() == 4);
    pusher.close();
    let told = told.lock().unwrap();
    for (line, part) in
        told.iter().zip(["points: old", "all points again", "points: new", "all points again"])
    {
        assert!(line.contains(part), "{told:?}");
    }
}

#[test]
fn the_end_waits_for_no_dead_collector() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = settings(listener.local_addr().unwrap());
    settings.interval = Duration::from_millis(1);
    let (pusher, _) = pusher(settings);
    // An attempt is under way, and nothing will come of it.
    let _stuck = listener.accept().unwrap();
    let start = Instant::now();
    pusher.close();
    assert!(start.elapsed() < HANG / 2, "{:?}", start.elapsed());
}

/// A source of some processes, each with a body of its own.
struct Several {
    processes: Vec<u32>,
    taken: Arc<Mutex<Vec<Identity>>>,
}

impl PushSource for Several {
    fn bodies(&mut self) -> Result<Vec<PushBody>, String> {
        let body = |pid: &u32| PushBody {
            bytes: format!("{pid}").into_bytes(),
            points: 1,
            processes: vec![(*pid, 0)],
        };
        Ok(self.processes.iter().map(body).collect())
    }

    fn taken(&mut self, processes: &[Identity]) {
        self.taken.lock().unwrap().extend(processes);
    }
}

/// The processes taken, and the lines told, of one push of three bodies; and the bodies that have
/// arrived.
fn push_three(answers: &'static [&'static str]) -> (Vec<u32>, Vec<String>, String) {
    let (settings, got) = collector(answers);
    let (taken, told) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let source = Several { processes: vec![1, 2, 3], taken: Arc::clone(&taken) };
    let tell = {
        let told = Arc::clone(&told);
        move |text: &str| told.lock().unwrap().push(text.to_owned())
    };
    Pusher::start_with(settings, SHORT, source, tell).unwrap().close();
    let taken = taken.lock().unwrap().iter().map(|(pid, _)| *pid).collect();
    let told = told.lock().unwrap().clone();
    (taken, told, got.try_iter().map(|got| String::from_utf8(got.body).unwrap()).collect())
}

#[test]
fn a_refused_body_leaves_the_others() {
    let (taken, told, arrived) = push_three(&[TAKEN, "413 Content Too Large\r\nContent-Length: 0", TAKEN]);
    assert_eq!((taken, &*arrived), (vec![1, 3], "123"));
    assert!(
        told.len() == 1 && told[0].contains("of 1 of 3 processes") && told[0].contains("413"),
        "{told:?}"
    );
}

#[test]
fn a_busy_collector_gets_no_more_bodies() {
    let (taken, told, arrived) = push_three(&[TAKEN, BUSY]);
    assert_eq!((taken, &*arrived), (vec![1], "12"));
    assert!(told.len() == 1 && told[0].contains("of 2 of 3 processes"), "{told:?}");
}

#[test]
fn refused_points_of_bodies_are_added_up() {
    let some = "200 OK\r\nContent-Length: 9\n\n\x0a\x07\x08\x07\x12\x03old";
    let (taken, told, _) = push_three(Box::leak(Box::new([some, TAKEN, some])));
    assert_eq!(taken, [1, 2, 3]);
    assert!(told.len() == 1 && told[0].contains("14 points: old"), "{told:?}");
}

#[test]
fn bodies_are_short_enough_for_collectors() {
    let cut = |processes: &[(u32, usize, usize)]| -> Vec<Vec<u32>> {
        let mut bodies = Vec::new();
        for (pid, points, bytes) in processes {
            PushBody::add(&mut bodies, (*pid, 0), *points, &vec![0; *bytes]);
        }
        let all = processes.iter().map(|(.., bytes)| bytes).sum::<usize>();
        assert_eq!(bodies.iter().map(|body| body.bytes.len()).sum::<usize>(), all);
        bodies.iter().map(|body| body.processes.iter().map(|(pid, _)| *pid).collect()).collect()
    };
    assert_eq!(cut(&[]), [[0; 0]; 0]);
    assert_eq!(cut(&[(1, 9_000, 9), (2, 5_000, 9), (3, 1, 9)]), [&[1, 2][..], &[3]]);
    assert_eq!(cut(&[(1, 9, 3_000_000), (2, 9, 500_000), (3, 1, 1)]), [&[1, 2][..], &[3]]);
    assert_eq!(cut(&[(1, 1, 1), (2, 20_000, 9), (3, 1, 1)]), [&[1][..], &[2], &[3]], "alone");
}

#[test]
fn the_timeout_begins_after_the_reading() {
    let (mut settings, got) = collector(&[BUSY, TAKEN]);
    settings.timeout = Duration::from_secs(1);
    settings.interval = Duration::from_millis(5);
    let read = || {
        std::thread::sleep(Duration::from_secs(1));
        Ok(Vec::new())
    };
    let (sender, told) = mpsc::channel();
    let tell = move |text: &str| _ = sender.send(text.to_owned());
    let pusher = Pusher::start_with(settings, SHORT, read, tell).unwrap();
    got.iter().take(2).for_each(drop);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [""; 0]);
    drop(pusher);
}
