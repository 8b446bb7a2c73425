//! Requests with known ends are counted by their outcomes, and latencies are those of answered
//! ones.
#![cfg(all(feature = "tower", feature = "tokio"))]

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::{pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::{Response, StatusCode, Version, header::CONTENT_LENGTH};
use axum::routing::get;
use dormouse::tower::GroupLayer;
use dormouse::{Group, OutcomesRow, Waiting};
use dormouse_testkit::{eventually, short_or_long};
use futures_util::future::{join, select};
use futures_util::{StreamExt as _, stream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tower::{Layer as _, ServiceExt as _, service_fn};

use crate::framed::{data, framed, trailers};

/// Requests of each kind: with those over sockets (`others`, `cancelled`) some 10,000.
fn each() -> u64 {
    short_or_long(250, 2_000)
}

/// Requests of each kind that come by a connection of their own.
pub(crate) fn by_socket() -> u64 {
    each() / 5
}

/// Requests of each kind that takes its time: each panic prints its stack.
fn few() -> u64 {
    each() / 10
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn panics() {
    panic!("on purpose");
}

/// The output of a future, unless it panics.
async fn catch<F: Future>(future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}

/// The outcomes of a group whose requests are over.
fn outcomes(name: &str) -> OutcomesRow {
    let group = Group::new(name);
    eventually(|| group.read().alive == 0);
    let read = group.read();
    let OutcomesRow { completed, client_error, error, cancelled, panicked, own } = &read.outcomes;
    let own: u64 = own.iter().map(|(_, n)| n).sum();
    assert_eq!(completed + client_error + error + cancelled + panicked + own, read.requests);
    read.outcomes
}

const NONE: OutcomesRow =
    OutcomesRow { completed: 0, client_error: 0, error: 0, cancelled: 0, panicked: 0, own: Vec::new() };

#[track_caller]
fn all_are(name: &str, of: fn(&mut OutcomesRow) -> &mut u64) {
    these_are(each(), name, of);
}

#[track_caller]
pub(crate) fn these_are(requests: u64, name: &str, of: fn(&mut OutcomesRow) -> &mut u64) {
    let mut right = NONE;
    *of(&mut right) = requests;
    assert_eq!(outcomes(name), right, "{name}");
}

/// Spawns a task of a group for each request, and returns once all have ended.
fn spawn_each<F: Future<Output: Send> + Send + 'static>(name: &str, task: impl Fn(Group) -> F) {
    spawn(each(), name, task);
}

fn spawn<F: Future<Output: Send> + Send + 'static>(requests: u64, name: &str, task: impl Fn(Group) -> F) {
    let group = Group::new(name);
    runtime().block_on(async {
        let tasks: Vec<_> = (0..requests).map(|_| tokio::spawn(task(group))).collect();
        for task in tasks {
            let _panicked = task.await;
        }
    });
}

#[test]
fn tasks_end_as_their_guards_see() {
    spawn_each("runs to its end", |group| group.instrument(yield_now()));
    all_are("runs to its end", |of| &mut of.completed);
    spawn(few(), "panics", |group| {
        group.instrument(async {
            yield_now().await;
            panics();
        })
    });
    these_are(few(), "panics", |of| &mut of.panicked);
    spawn(few(), "caught inside", |group| {
        group.instrument(async { assert_eq!(catch(async { panics() }).await, None) })
    });
    these_are(few(), "caught inside", |of| &mut of.completed);
    spawn(few(), "caught outside", |group| catch(group.instrument(async { panics() })));
    these_are(few(), "caught outside", |of| &mut of.panicked);
    let millisecond = Duration::from_millis(1);
    spawn_each("timeout inside", move |group| {
        group.instrument(tokio::time::timeout(millisecond, pending::<()>()))
    });
    all_are("timeout inside", |of| &mut of.completed);
    spawn_each("timeout outside", move |group| {
        tokio::time::timeout(millisecond, group.instrument(pending::<()>()))
    });
    all_are("timeout outside", |of| &mut of.cancelled);
    spawn_each("lost select", |group| async move {
        drop(select(Box::pin(group.instrument(pending::<()>())), Box::pin(yield_now())).await);
    });
    all_are("lost select", |of| &mut of.cancelled);
    let neighbour = Group::new("unwinds");
    spawn(few(), "neighbour unwinds", |group| async move {
        let unwinds = neighbour.instrument(async {
            yield_now().await;
            panics();
        });
        join(group.instrument(pending::<()>()), unwinds).await
    });
    these_are(few(), "neighbour unwinds", |of| &mut of.cancelled);
    these_are(few(), "unwinds", |of| &mut of.panicked);
}

#[test]
fn tasks_of_a_runtime_that_ends_are_cancelled() {
    let [shut_down, aborted, unpolled] = ["shut down", "aborted", "unpolled"].map(Group::new);
    let runtime = runtime();
    for _ in 0..each() {
        runtime.spawn(shut_down.instrument(pending::<()>()));
        let task = runtime.spawn(aborted.instrument(pending::<()>()));
        task.abort();
        runtime.block_on(task).unwrap_err();
        drop(unpolled.instrument(pending::<()>()));
    }
    drop(runtime);
    for name in ["shut down", "aborted", "unpolled"] {
        all_are(name, |of| &mut of.cancelled);
    }
}

#[test]
fn scopes_and_threads_are_completed_or_panicked() {
    let [scope, unwound, entered, thread] = ["scope", "unwound", "entered", "thread"].map(Group::new);
    (0..each()).for_each(|_| scope.scope(|| ()));
    for _ in 0..few() {
        catch_unwind(|| unwound.scope(panics)).unwrap_err();
        catch_unwind(|| {
            let _entered = entered.enter();
            panics();
        })
        .unwrap_err();
        thread.spawn_thread(panics).unwrap().join().unwrap_err();
    }
    all_are("scope", |of| &mut of.completed);
    for name in ["unwound", "entered", "thread"] {
        these_are(few(), name, |of| &mut of.panicked);
    }
}

#[test]
fn results_and_words_are_outcomes() {
    spawn_each("result", |group| {
        group.instrument_result(async {
            yield_now().await;
            Err::<(), _>("of the test")
        })
    });
    all_are("result", |of| &mut of.error);
    spawn_each("fine", |group| group.instrument_result(async { Ok::<_, Infallible>(()) }));
    all_are("fine", |of| &mut of.completed);
    spawn_each("word", |group| {
        group.instrument_result(async {
            assert!(dormouse::outcome("queued") && dormouse::outcome("sold_out"));
            Err::<(), _>("of the test")
        })
    });
    let own = vec![("sold_out".into(), each())];
    assert_eq!(outcomes("word"), OutcomesRow { own, ..NONE });
    spawn_each("known", |group| {
        group.instrument(async {
            dormouse::outcome("client_error");
        })
    });
    all_are("known", |of| &mut of.client_error);
    assert!(!dormouse::outcome("sold_out"), "no task is current");
}

/// A body of these frames, of which nobody knows how long it is.
pub(crate) fn streamed<const N: usize>(frames: [Result<&'static str, &'static str>; N]) -> Body {
    Body::from_stream(stream::iter(frames.map(|frame| frame.map(Bytes::from))))
}

fn grpc(code: &'static str) -> Body {
    Body::new(framed([data(b"tea"), trailers(code)]))
}

pub(crate) fn response(status: u16, headers: &[(&'static str, &'static str)], body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    for (name, value) in headers {
        response.headers_mut().insert(*name, value.parse().unwrap());
    }
    response
}

/// A server's treatment of a response's body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    All,
    /// A frame, and then the client is gone.
    One,
    /// The client of HTTP/2 is gone before the first frame.
    Begun,
    /// By HTTP/1 the server asks how much there is, and sends no body: a layer has set a status.
    Kept,
    /// Another layer drops it.
    Nothing,
}

type Case = (&'static str, fn() -> Response<Body>, Read, fn(&mut OutcomesRow) -> &mut u64);

const CASES: [Case; 21] = [
    ("200", || response(200, &[], "tea".into()), Read::All, |of| &mut of.completed),
    ("200, empty", || response(200, &[], Body::empty()), Read::Nothing, |of| &mut of.completed),
    (
        "200, streamed",
        || response(200, &[], streamed([Ok("t"), Ok("ea")])),
        Read::All,
        |of| &mut of.completed,
    ),
    ("204", || response(204, &[], streamed([])), Read::Nothing, |of| &mut of.completed),
    ("304", || response(304, &[], "tea".into()), Read::Nothing, |of| &mut of.completed),
    ("404", || response(404, &[], "no".into()), Read::All, |of| &mut of.client_error),
    ("499", || response(499, &[], Body::empty()), Read::All, |of| &mut of.cancelled),
    ("500", || response(500, &[], "no".into()), Read::All, |of| &mut of.error),
    ("cut off", || response(200, &[], streamed([Ok("t"), Ok("ea")])), Read::One, |of| &mut of.cancelled),
    ("unsent", || response(200, &[], "tea".into()), Read::Begun, |of| &mut of.cancelled),
    ("kept", || response(200, &[], "tea".into()), Read::Kept, |of| &mut of.completed),
    ("replaced", || response(200, &[], "tea".into()), Read::Nothing, |of| &mut of.completed),
    ("404, replaced", || response(404, &[], streamed([Ok("no")])), Read::Nothing, |of| &mut of.client_error),
    (
        "cut off, known",
        || response(200, &[("content-length", "3")], streamed([Ok("t"), Ok("ea")])),
        Read::One,
        |of| &mut of.cancelled,
    ),
    (
        "all sent, known",
        || response(200, &[("content-length", "3")], streamed([Ok("tea"), Ok("")])),
        Read::One,
        |of| &mut of.completed,
    ),
    ("body fails", || response(200, &[], streamed([Ok("t"), Err("no more")])), Read::All, |of| &mut of.error),
    ("grpc 0", || response(200, &[], grpc("0")), Read::All, |of| &mut of.completed),
    ("grpc 14", || response(200, &[], grpc("14")), Read::All, |of| &mut of.error),
    ("grpc 5", || response(200, &[], grpc("5")), Read::All, |of| &mut of.client_error),
    (
        "grpc 14, no body",
        || response(200, &[("grpc-status", "14")], Body::empty()),
        Read::Nothing,
        |of| &mut of.error,
    ),
    (
        "grpc 1, no body",
        || response(200, &[("grpc-status", "1")], Body::empty()),
        Read::Nothing,
        |of| &mut of.cancelled,
    ),
];

#[test]
fn responses_end_as_status_and_body_say() {
    let runtime = runtime();
    for (name, answer, read, right) in CASES {
        let service = service_fn(move |_: Request| ready(Ok::<_, Infallible>(answer())));
        let service = GroupLayer::new(move |_: &Request| name.into()).layer(service);
        for _ in 0..each() {
            let mut request = Request::new(Body::empty());
            *request.version_mut() = if read == Read::Begun { Version::HTTP_2 } else { Version::HTTP_11 };
            let served = service.clone().oneshot(request);
            runtime.block_on(async {
                let body = Body::new(served.await.unwrap().into_body());
                match read {
                    Read::All => drop(to_bytes(body, 100).await),
                    Read::One => drop(body.into_data_stream().next().await),
                    Read::Begun | Read::Kept => assert!(!body.is_end_stream()),
                    Read::Nothing => {}
                }
            });
        }
        all_are(name, right);
    }
}

pub(crate) fn route(request: &Request) -> Cow<'_, str> {
    format!("{} {}", request.method(), request.extensions().get::<MatchedPath>().unwrap().as_str()).into()
}

#[test]
fn a_head_request_is_completed_without_its_body() {
    let app = Router::new().route("/head", get(async || "tea")).layer(GroupLayer::new(route));
    let runtime = runtime();
    for _ in 0..each() {
        let request = Request::head("/head").body(Body::empty()).unwrap();
        let response = runtime.block_on(app.clone().oneshot(request)).unwrap();
        assert_eq!(response.headers()[CONTENT_LENGTH], "3");
        drop(response);
    }
    all_are("HEAD /head", |of| &mut of.completed);
}

/// Turns panics into responses, as `CatchPanic` does.
async fn caught(request: Request, next: axum::middleware::Next) -> axum::response::Response {
    catch(next.run(request)).await.unwrap_or_else(|| response(500, &[], Body::empty()))
}

#[test]
fn a_caught_panic_is_one_on_either_side() {
    dormouse_testkit::in_child(|| {
        // Its hook sees panics that are caught inside.
        let _agent = dormouse::init().unwrap();
        let catch = axum::middleware::from_fn(caught);
        let inside = Router::new().route("/inside", get(async || panics())).layer(catch.clone());
        let outside = Router::new().route("/outside", get(async || panics()));
        let app = inside.merge(outside).layer(GroupLayer::new(route)).layer(catch);
        let (waiting, runtime) = (Waiting::start().unwrap(), runtime());
        for _ in 0..few() {
            for uri in ["/inside", "/outside"] {
                let request = Request::get(uri).body(Body::empty()).unwrap();
                let response = runtime.block_on(app.clone().oneshot(request)).unwrap();
                assert_eq!(response.status(), 500);
            }
        }
        drop(waiting);
        these_are(few(), "GET /inside", |of| &mut of.panicked);
        these_are(few(), "GET /outside", |of| &mut of.panicked);
        let times = ["GET /inside", "GET /outside"].map(|name| Group::new(name).read_waits());
        let latencies = times.each_ref().map(|of| (of.requests.count(), of.unanswered.requests));
        assert_eq!(latencies, [(few(), 0), (0, few())], "one was answered");
    });
}

#[test]
fn latencies_are_of_answered_requests() {
    const PATIENCE: Duration = Duration::from_millis(20);
    let waiting = Waiting::start().unwrap();
    let (group, mut longest) = (Group::new("impatient"), Duration::ZERO);
    runtime().block_on(async {
        for _ in 0..few() {
            let begun = Instant::now();
            group.instrument(async {}).await;
            longest = longest.max(begun.elapsed());
            tokio::time::timeout(PATIENCE, group.instrument(pending::<()>())).await.unwrap_err();
        }
    });
    drop(waiting);
    let times = group.read_waits();
    assert_eq!((times.requests.count(), times.unanswered.requests), (few(), few()));
    assert!(times.unanswered.age_ns >= few() * PATIENCE.as_nanos() as u64, "{:?}", times.unanswered);
    // Of two clocks.
    let most = longest.as_nanos() as u64 * 1_001 / 1_000 + 1_000;
    assert!(times.requests.max_ns <= most, "{:?}, {longest:?}", times.requests.max_ns);
    assert!(group.read_exemplars().iter().all(|it| it.duration_ns <= most));
}

#[test]
fn exemplars_have_the_outcome() {
    let parts = || Body::from_stream(stream::iter([1, 2].map(|_| Ok::<_, Infallible>("tea"))));
    let app = Router::new()
        .route("/exemplars/served", get(async move || parts()))
        .route("/exemplars/cut", get(async move || parts()))
        .route("/exemplars/failed", get(async || StatusCode::BAD_GATEWAY))
        .route("/exemplars/word", get(async || _ = dormouse::outcome("sold_out")));
    let app = app.layer(GroupLayer::new(route));
    let outcome = |path: &str| {
        let all = Group::new(&format!("GET {path}")).read_exemplars();
        assert_eq!(all.len(), 1, "{path}: {all:?}");
        all[0].outcome.and_then(dormouse::waits::outcome_word)
    };
    let _waiting = Waiting::start().unwrap();
    runtime().block_on(async {
        for (path, right) in [
            ("/exemplars/served", "completed"),
            ("/exemplars/cut", "cancelled"),
            ("/exemplars/failed", "error"),
            ("/exemplars/word", "sold_out"),
        ] {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let mut body = app.clone().oneshot(request).await.unwrap().into_body().into_data_stream();
            if path == "/exemplars/served" {
                assert_eq!(outcome(path), None, "its body is still being sent");
            }
            let has_begun = body.next().await.is_some();
            assert_eq!(has_begun, ["/exemplars/served", "/exemplars/cut"].contains(&path), "{path}");
            while path != "/exemplars/cut" && body.next().await.is_some() {}
            drop(body);
            assert_eq!(outcome(path), Some(right), "{path}");
        }
    });
}
