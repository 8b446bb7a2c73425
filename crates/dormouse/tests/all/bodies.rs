//! A latency ends with the head of the response. Streams are no requests, over real sockets.
#![cfg(all(feature = "axum", feature = "tower"))]
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::future::ready;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Response, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::{Router, routing::get};
use dormouse::tower::GroupLayer;
use dormouse::waits::{GroupWaits, Histogram, living};
use dormouse::{Group, OutcomesRow, Waiting};
use dormouse_testkit::{HANG, eventually, in_child, is_long};
use futures_util::{Stream, StreamExt as _, stream};
use http_body::Frame;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::framed::{data, framed, trailers};

/// A service whose requests are all in one group: `/json`, `/events`, which sends the number of
/// each step of the test, and `/parts`, whose body ends with the first step.
struct Service {
    group: Group,
    address: SocketAddr,
    step: watch::Sender<u64>,
    _runtime: Runtime,
}

fn steps(step: watch::Receiver<u64>) -> impl Stream<Item = u64> {
    stream::unfold(step, async |mut step| {
        step.changed().await.ok()?;
        let number = *step.borrow_and_update();
        Some((number, step))
    })
}

async fn events(
    State(step): State<watch::Receiver<u64>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(steps(step).map(|number| Ok(Event::default().data(number.to_string()))))
}

async fn slow() -> &'static str {
    tokio::time::sleep(Duration::from_millis(700)).await;
    "tea\n"
}

async fn parts(State(step): State<watch::Receiver<u64>>) -> Body {
    let parts = stream::iter([0]).chain(steps(step).take(1));
    Body::from_stream(parts.map(|number| Ok::<_, Infallible>(Bytes::from(format!("part {number}\n")))))
}

impl Service {
    fn start(name: &'static str) -> Self {
        let (step, steps) = watch::channel(0);
        let app = Router::new()
            .route("/json", get(async || "{\"tea\": 1}\n"))
            .route("/slow", get(slow))
            .route("/events", get(events))
            .route("/parts", get(parts))
            .with_state(steps)
            .layer(GroupLayer::new(move |_: &Request| name.into()));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(axum::serve(listener, app).into_future());
        Self { group: Group::new(name), address, step, _runtime: runtime }
    }

    /// A client that has read the head of a response.
    fn get(&self, path: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: tea\r\nConnection: close\r\n\r\n").unwrap();
        let mut stream = BufReader::new(stream);
        skip_to(&mut stream, "\r\n");
        stream
    }

    fn step(&self) {
        self.step.send_modify(|step| *step += 1);
    }

    fn whole(&self, path: &str) {
        let mut body = Vec::new();
        self.get(path).read_to_end(&mut body).unwrap();
        assert!(!body.is_empty());
    }

    /// Latencies, bodies and gaps between frames of streams.
    fn counts(&self) -> [u64; 3] {
        counts(&self.group.read_waits())
    }
}

fn counts(of: &GroupWaits) -> [u64; 3] {
    [&of.requests, &of.bodies, &of.gaps].map(Histogram::count)
}

/// Reads lines up to one that is `line`.
fn skip_to(stream: &mut impl std::io::BufRead, line: &str) {
    let mut read = String::new();
    while read != line {
        read.clear();
        assert!(stream.read_line(&mut read).unwrap() > 0, "closed before {line:?}");
    }
}

#[test]
fn streams_do_not_touch_the_figures_of_requests() {
    const REQUESTS: u64 = 30;
    const STEPS: u64 = 3;
    let clients = if is_long() { 200 } else { 20 };
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("requests and streams");
    let mut streams: Vec<_> = (0..clients).map(|_| service.get("/events")).collect();
    assert_eq!((service.group.read().long_lived, service.counts()), (clients, [0; 3]));
    for step in 1..=STEPS {
        service.step();
        for stream in &mut streams {
            skip_to(stream, &format!("data: {step}\n"));
        }
        (0..REQUESTS / STEPS).for_each(|_| service.whole("/json"));
    }
    let row = || service.group.read();
    eventually(|| row().alive == clients);
    assert_eq!((row().requests, row().long_lived), (REQUESTS, clients));
    let waits = service.group.read_waits();
    assert_eq!(counts(&waits), [REQUESTS, REQUESTS, STEPS * clients]);
    assert_eq!(waits.streams.frames, STEPS * clients);
    assert!(waits.streams.bytes > waits.streams.frames * "data: 1".len() as u64, "{:?}", waits.streams);
    drop(streams);
    eventually(|| row().alive == 0);
    let read = row();
    assert_eq!((read.long_lived, read.finished), (0, REQUESTS + clients));
    assert_eq!(read.outcomes, OutcomesRow { completed: REQUESTS, ..OutcomesRow::default() });
    assert_eq!(service.counts()[..2], [REQUESTS; 2]);
}

#[test]
fn a_latency_ends_while_its_body_is_sent() {
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("bodies in parts");
    let limit = Duration::from_millis(50);
    let _objective = service.group.objective("99% < 50ms").unwrap();
    let sent = Instant::now();
    let mut client = service.get("/parts");
    let head = Instant::now();
    assert_eq!((service.counts(), service.group.read().requests), ([1, 0, 0], 0));
    let of_group = |task: &dormouse::waits::LivingTask| task.group == service.group.id();
    let living: Vec<_> = living().filter(of_group).collect();
    assert!(living.len() == 1 && living[0].answered_ns.is_some(), "{living:?}");
    std::thread::sleep(limit);
    let ends = Instant::now();
    service.step();
    client.read_to_end(&mut Vec::new()).unwrap();
    eventually(|| service.group.read().requests == 1);
    let waits = service.group.read_waits();
    assert_eq!(counts(&waits), [1, 1, 0]);
    let [latency, body] = [&waits.requests, &waits.bodies].map(|of| Duration::from_nanos(of.max_ns));
    // The clocks may differ by a thousandth.
    assert!(latency <= (head - sent) * 1_001 / 1_000, "{latency:?}");
    assert!(body >= (ends - head) * 999 / 1_000, "{body:?}");
    let objective = service.group.read_objectives()[0];
    let is_met = latency < limit;
    assert_eq!((objective.met, objective.missed), (is_met.into(), (!is_met).into()), "{latency:?}");
}

#[test]
fn a_client_that_goes_leaves_a_latency() {
    let _waiting = Waiting::start().unwrap();
    let service = Service::start("clients that go");
    drop(service.get("/parts"));
    // Its connection is seen to be closed when the next part is written.
    eventually(|| {
        service.step();
        service.group.read().alive == 0
    });
    let read = service.group.read();
    assert_eq!(read.requests, 1);
    let waits = service.group.read_waits();
    assert_eq!((waits.requests.count(), waits.unanswered.requests), (1, 0));
    // The part may have been the last one before the server has seen it.
    assert_eq!(waits.bodies.count(), read.outcomes.completed);
}

/// The answer of a service in that group to one request, read to its end.
fn answer(group: &'static str, response: impl Fn() -> Response<Body> + Clone) {
    let layer = GroupLayer::new(move |_: &Request| group.into());
    let service = layer.layer(service_fn(move |_: Request| ready(Ok::<_, Infallible>(response()))));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let response = service.oneshot(Request::new(Body::empty())).await.unwrap();
        to_bytes(Body::new(response.into_body()), usize::MAX).await.unwrap();
    });
}

#[test]
fn a_body_that_nobody_reads_leaves_a_latency() {
    let _waiting = Waiting::start().unwrap();
    let layer = GroupLayer::new(|_: &Request| "unread".into());
    let service = layer
        .layer(service_fn(|_: Request| ready(Ok::<_, Infallible>(of_type(200, "text/plain", &[b"tea"])))));
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        drop(service.oneshot(Request::new(Body::empty())).await.unwrap());
    });
    let (read, waits) = (Group::new("unread").read(), Group::new("unread").read_waits());
    assert_eq!((read.outcomes.completed, counts(&waits), waits.unanswered.requests), (1, [1, 0, 0], 0));
}

#[test]
fn a_client_that_has_gone_sees_no_head() {
    let _waiting = Waiting::start().unwrap();
    answer("gone before", || {
        let mut response = Response::new(Body::from("nobody reads this"));
        *response.status_mut() = StatusCode::from_u16(499).unwrap();
        response
    });
    let (read, waits) = (Group::new("gone before").read(), Group::new("gone before").read_waits());
    assert_eq!((read.outcomes.cancelled, counts(&waits), waits.unanswered.requests), (1, [0, 0, 0], 1));
}

/// A response of unknown length, with gRPC's status in its trailers.
fn of_type(status: u16, content_type: &str, parts: &[&'static [u8]]) -> Response<Body> {
    let frames = parts.iter().map(|part| data(part)).chain([trailers("0")]);
    let mut response = Response::new(Body::new(framed(frames)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert(CONTENT_TYPE, content_type.parse().unwrap());
    response
}

#[test]
fn a_second_message_makes_a_stream() {
    const TWO: &[u8] = b"\0\0\0\0\x02hi\0\0\0\0\x02ho";
    let _waiting = Waiting::start().unwrap();
    let one = &TWO[..7];
    let cases: [(&'static str, Vec<&'static [u8]>, bool); 7] = [
        ("no message", vec![], false),
        ("a message", vec![one], false),
        ("an empty message", vec![b"\0\0\0\0\0"], false),
        ("a message in parts", vec![&one[..5], &one[5..]], false),
        ("two messages", vec![one, one], true),
        ("two in a frame", vec![TWO], true),
        ("two in other parts", vec![&TWO[..6], &TWO[6..9], &TWO[9..]], true),
    ];
    for (name, parts, is_stream) in cases {
        let sent = parts.len() as u64;
        answer(name, move || of_type(200, "application/grpc", &parts));
        let (read, waits) = (Group::new(name).read(), Group::new(name).read_waits());
        assert_eq!(
            (read.requests, waits.requests.count()),
            (u64::from(!is_stream), u64::from(!is_stream)),
            "{name}"
        );
        assert_eq!((read.finished, read.alive), (1, 0), "{name}");
        assert_eq!(waits.streams.frames, if is_stream { sent } else { 0 }, "{name}");
    }
}

/// A body of one message, which has nothing to send behind it until `goes_on` is set.
struct Paused {
    goes_on: Arc<AtomicBool>,
    sent: usize,
}

impl HttpBody for Paused {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.sent += 1;
        match self.sent {
            1 => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x02hi"))))),
            _ if self.goes_on.load(Ordering::Relaxed) => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }
}

#[test]
fn a_silent_body_makes_a_stream() {
    let _waiting = Waiting::start().unwrap();
    let goes_on = Arc::new(AtomicBool::new(false));
    let begin = |group: &'static str| {
        let paused = Paused { goes_on: goes_on.clone(), sent: 0 };
        let mut response = Response::new(Body::new(paused));
        response.headers_mut().insert(CONTENT_TYPE, "application/grpc".parse().unwrap());
        let layer = GroupLayer::new(move |_: &Request| group.into());
        let mut response = Some(response);
        let answer = move |_: Request| ready(Ok::<_, Infallible>(response.take().expect("one request")));
        let service = layer.layer(service_fn(answer));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let response = runtime.block_on(service.oneshot(Request::new(Body::empty()))).unwrap();
        let mut body = Box::pin(response.into_body());
        let mut context = Context::from_waker(Waker::noop());
        assert!(body.as_mut().poll_frame(&mut context).is_ready());
        assert!(body.as_mut().poll_frame(&mut context).is_pending());
        body
    };
    drop(begin("a client that goes"));
    let (left, mut ended) = (begin("a silent stream that is left"), begin("a silent stream that ends"));
    // The silence itself is what is tested.
    std::thread::sleep(Duration::from_secs(2));
    drop(left);
    goes_on.store(true, Ordering::Relaxed);
    let end = ended.as_mut().poll_frame(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(end, Poll::Ready(None)));
    for name in ["a silent stream that is left", "a silent stream that ends"] {
        let (read, waits) = (Group::new(name).read(), Group::new(name).read_waits());
        assert_eq!((read.requests, read.finished, read.long_lived), (0, 1, 0), "{name}");
        assert_eq!((counts(&waits), waits.streams.frames, waits.streams.bytes), ([0; 3], 1, 7), "{name}");
    }
    let group = Group::new("a client that goes");
    let (read, waits) = (group.read(), group.read_waits());
    assert_eq!((read.outcomes.cancelled, counts(&waits), waits.streams.frames), (1, [1, 0, 0], 0));
}

#[test]
fn only_successful_streams_of_known_types_live_long() {
    let _waiting = Waiting::start().unwrap();
    let cases = [
        ("events", 200, "text/event-stream", true),
        ("events in capitals", 200, "Text/Event-Stream; charset=utf-8", true),
        ("pictures", 200, "multipart/x-mixed-replace;boundary=b", true),
        ("upgrade", 101, "text/plain", true),
        ("refused events", 503, "text/event-stream", false),
        ("other events", 200, "text/event-stream-of-ours", false),
        ("text", 200, "text/plain", false),
        ("grpc-web", 200, "application/grpc-web", false),
    ];
    for (name, status, content_type, is_stream) in cases {
        answer(name, move || of_type(status, content_type, &[b"some bytes", b"and more"]));
        let read = Group::new(name).read();
        assert_eq!((read.requests, read.finished), (u64::from(!is_stream), 1), "{name}");
        assert_eq!(Group::new(name).read_waits().requests.count(), u64::from(!is_stream), "{name}");
    }
    let known = "a length";
    answer(known, || {
        let mut response = Response::new(Body::from("data: all at once\n\n"));
        response.headers_mut().insert(CONTENT_TYPE, "text/event-stream".parse().unwrap());
        response
    });
    assert_eq!(Group::new(known).read().requests, 1, "it has a length");
}

#[test]
fn a_service_says_which_groups_live_long() {
    let _waiting = Waiting::start().unwrap();
    let events = || of_type(200, "text/event-stream", &[b"data: tea\n\n"]);
    Group::new("completions").long_lived(false);
    answer("completions", events);
    let (read, waits) = (Group::new("completions").read(), Group::new("completions").read_waits());
    assert_eq!((read.requests, counts(&waits)), (1, [1, 1, 0]));
    let group = Group::new("uploads");
    group.long_lived(true);
    let task = group.task();
    assert_eq!((group.read().long_lived, group.read().alive), (1, 1));
    drop(task);
    answer("uploads", || Response::new(Body::from("thanks")));
    let (read, waits) = (group.read(), group.read_waits());
    assert_eq!((read.requests, read.finished, read.long_lived), (0, 2, 0));
    assert_eq!(counts(&waits)[..2], [0, 0]);
}

#[test]
fn words_of_streams_are_no_outcomes() {
    let stream = || {
        assert!(dormouse::outcome("subscribed"));
        of_type(200, "text/event-stream", &[b"data: tea\n\n"])
    };
    answer("words of streams", stream);
    let read = Group::new("words of streams").read();
    assert_eq!((read.requests, read.outcomes, read.finished), (0, OutcomesRow::default(), 1));
}

#[test]
fn connections_live_long() {
    let group = Group::new("long connections");
    let connection = group.connection();
    let [first, second] = [group.read(), Group::new("no connections").read()];
    assert_eq!((first.long_lived, first.alive, second.long_lived), (1, 1, 0));
    drop(connection);
    assert_eq!((group.read().long_lived, group.read().finished, group.read().requests), (0, 1, 0));
}

#[test]
fn bodies_and_streams_are_no_reason_to_fire() {
    in_child(|| {
        let directory = tempfile::tempdir().unwrap();
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DIR", directory.path()) };
        let number = dormouse::triggers::add("request>500ms in answered").unwrap()[0];
        let row = || {
            let all = dormouse::triggers::list().unwrap().triggers;
            all.into_iter().find(|row| row.number == number).unwrap()
        };
        let service = Service::start("answered");
        let open = [service.get("/events"), service.get("/parts")];
        std::thread::sleep(Duration::from_millis(700));
        service.step();
        drop(open);
        eventually(|| service.group.read().alive == 0);
        let quiet = row();
        assert!(quiet.fired == 0 && !quiet.is_writing, "{quiet:?}");
        service.whole("/slow");
        eventually(|| row().file.is_some());
        assert_eq!((row().fired, row().passed_over), (1, 0), "one request was slow: {:?}", row());
    });
}
