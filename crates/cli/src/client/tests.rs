//! The client with agents that are half dead, garbled or of another version.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use dormouse_protocol::{Ended, Hello, KeysRequest, Note, Notice};

use super::Client;
use crate::exit::{Exit, Failure, Report};

/// Patience with agents that answer: only a hang would use it up.
const LONG: Duration = Duration::from_secs(60);
/// Patience with agents that never will.
const SHORT: Duration = Duration::from_millis(50);

fn hello(id: u64) -> String {
    format!(
        "{{\"v\":1,\"id\":{id},\"ok\":{{\"protocol\":1,\"version\":\"9.9\",\"pid\":1,\"start_ticks\":2,\
         \"name\":\"tea\",\"exe\":\"/tea\",\"uid\":0,\"keys\":3,\"sites\":4,\"of_a_newer_agent\":[]}}}}\n"
    )
}

/// Runs an agent that reads one line, does `then` and hangs up; returns the result of a greeting.
fn greet(
    patience: Duration,
    then: impl FnOnce(&mut UnixStream) + Send + 'static,
) -> Result<(Client, Hello), Failure> {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    let agent = thread::spawn(move || {
        let mut reader = BufReader::new(theirs);
        let mut line = String::new();
        reader.read_line(&mut line).expect("a request");
        assert!(line.starts_with("{\"v\":1,\"id\":1,\"op\":\"hello\",\"client\":\"dormouse "), "{line}");
        then(reader.get_mut());
    });
    ours.set_nonblocking(true).expect("a flag on a socket");
    let mut client = Client::new(super::Source::Socket(ours), 7, "tea (process 7)".into(), patience);
    let result = client.greet().map(|hello| (client, hello));
    if result.is_err() {
        agent.join().expect("the agent met what it expected");
    }
    result
}

fn refused(patience: Duration, then: impl FnOnce(&mut UnixStream) + Send + 'static) -> Report {
    match greet(patience, then) {
        Err(Failure::Said(report)) => *report,
        other => panic!("expected a failure with words, got {other:?}"),
    }
}

fn says(text: impl Into<Vec<u8>>) -> impl FnOnce(&mut UnixStream) + Send + 'static {
    let text = text.into();
    move |stream| {
        // The client may hang up first, which is its right.
        let _ = stream.write_all(&text);
    }
}

/// Holds the connection open until the client closes it.
fn holds(stream: &mut UnixStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn an_answer_in_small_pieces_is_put_together() {
    let greeted = greet(LONG, |stream| {
        for byte in hello(1).bytes() {
            stream.write_all(&[byte]).expect("a listening client");
        }
        holds(stream);
    });
    assert_eq!(greeted.expect("a greeting").1.version, "9.9");
}

#[test]
fn notices_before_an_answer_are_passed_over() {
    let note = Note::Ended(Ended { keys: 1, left: 0, uid: 0, pid: 2, asleep: false });
    let notice = serde_json::to_string(&Notice { v: 1, note }).expect("JSON");
    let said = format!("{notice}\n{notice}\n{}", hello(1));
    assert_eq!(greet(LONG, says(said)).expect("a greeting").1.version, "9.9");
}

#[test]
fn each_kind_of_silence_has_its_words() {
    let half = hello(1)[..40].to_owned();
    for (answer, exit, part) in [
        (String::new(), Exit::Failed, "tea (process 7) ended, or closed the connection"),
        (half, Exit::Failed, "in the middle of an answer"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n".into(), Exit::Failed, "it said \"HTTP/1.1 400 Bad Request\\r\""),
        ("\x1b[2J\n".into(), Exit::Failed, "\\u{1b}[2J"),
        ("{\"v\":1,\"id\":1}\n".into(), Exit::Failed, "neither an answer nor an error"),
        ("{\"v\":1,\"id\":1,\"ok\":{\"protocol\":\"one\"}}\n".into(), Exit::Failed, "invalid type"),
        (hello(9), Exit::Failed, "answered request 9 when 1 was asked"),
        ("{\"v\":2,\"id\":1,\"ok\":{}}\n".into(), Exit::Unsupported, "protocol 2"),
        (
            "{\"v\":1,\"id\":0,\"error\":{\"code\":\"version\",\"message\":\"speaks 7\"}}\n".into(),
            Exit::Unsupported,
            "protocol 1: speaks 7",
        ),
        (
            "{\"v\":1,\"id\":0,\"error\":{\"code\":\"busy\",\"message\":\"64 clients at once\"}}\n".into(),
            Exit::Failed,
            "64 clients at once",
        ),
        (
            "{\"v\":1,\"id\":1,\"error\":{\"code\":\"denied\",\"message\":\"user 5 is not user 0\"}}\n"
                .into(),
            Exit::Denied,
            "user 5 is not user 0",
        ),
        (
            "{\"v\":1,\"id\":1,\"error\":{\"code\":\"of-tomorrow\",\"message\":\"too late\"}}\n".into(),
            Exit::Failed,
            "too late",
        ),
    ] {
        let report = refused(LONG, says(answer.clone()));
        assert_eq!(report.exit, exit, "{answer}");
        assert!(report.message.contains(part), "{answer}: {}", report.message);
    }
}

#[test]
fn an_agent_that_never_answers_is_given_up() {
    let start = Instant::now();
    let report = refused(SHORT, holds);
    assert_eq!(report.message, "tea (process 7) has given no answer for 50.0 ms");
    assert!(start.elapsed() >= SHORT);
}

#[test]
fn a_dribbling_agent_is_given_up() {
    let report = refused(SHORT, |stream| {
        // Each byte comes in time; together they never become a line.
        while stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(report.message.contains("has given no answer"), "{}", report.message);
}

#[test]
fn an_endless_line_is_cut_off() {
    let report = refused(LONG, |stream| {
        let piece = vec![b'x'; 1 << 20];
        while stream.write_all(&piece).is_ok() {}
    });
    assert!(report.message.contains("longer than 4194304 bytes"), "{}", report.message);
}

#[test]
fn an_answer_has_a_bound_of_values() {
    let (mut client, _) = greet(LONG, |stream| {
        stream.write_all(hello(1).as_bytes()).expect("a listening client");
        let _ = BufReader::new(&mut *stream).read_line(&mut String::new());
        let values = ",0".repeat(5 << 20);
        let _ =
            writeln!(stream, "{{\"v\":1,\"id\":2,\"ok\":{{\"of_a_newer_agent\":[0{values}],\"keys\":[]}}}}");
        holds(stream);
    })
    .expect("a greeting");
    let Err(Failure::Said(report)) = client.call(KeysRequest { glob: None }) else {
        panic!("five million values are no keys")
    };
    assert!(report.message.contains("more than 4194304 values"), "{}", report.message);
}

#[test]
fn a_request_beyond_the_bound_is_not_sent() {
    let (mut client, _) = greet(LONG, |stream| {
        stream.write_all(hello(1).as_bytes()).expect("a listening client");
        holds(stream);
    })
    .expect("a greeting");
    let glob = Some("x".repeat(dormouse_protocol::MAX_LINE));
    let Err(Failure::Said(report)) = client.call(KeysRequest { glob }) else { panic!("it was sent") };
    assert_eq!(report.exit, Exit::Usage);
}

#[test]
fn the_end_of_a_service_is_noticed() {
    let (done, end) = std::sync::mpsc::channel::<()>();
    let (mut client, _) = greet(LONG, move |stream| {
        stream.write_all(hello(1).as_bytes()).expect("a listening client");
        let _ = end.recv();
    })
    .expect("a greeting");
    assert_eq!(client.notices().expect("nothing bad"), []);
    drop(done);
    crate::signals::wait([client.as_fd()], Some(Instant::now() + LONG)).expect("poll");
    assert!(client.notices().expect_err("an end").to_string().contains("closed the connection"));
}
