//! The `tower` layer: a group for each route, a bound on groups, and a service that is otherwise as
//! it was.
#![cfg(all(feature = "tower", feature = "tokio"))]

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::{Ready, pending, poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::get;
use axum::{Router, extract::Path};
use dormouse::Group;
use dormouse::tower::{GroupBody, GroupLayer};
use dormouse_testkit::{assert_about, spin_for};
use futures_util::StreamExt;
use http_body::{Frame, SizeHint};
use tower::{Layer, Service, ServiceExt, service_fn};

/// The group current now, by name.
fn current() -> &'static str {
    Group::current().map_or("none", Group::name)
}

fn counts(name: &str) -> (u64, u64, u64) {
    let stat = Group::new(name).read();
    (stat.started, stat.alive, stat.finished)
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn route(request: &Request) -> Cow<'_, str> {
    let path = request.extensions().get().map_or("unmatched", MatchedPath::as_str);
    format!("{} {path}", request.method()).into()
}

#[test]
fn requests_of_axum_are_charged_to_routes() {
    async fn offloaded() -> &'static str {
        dormouse::tokio::spawn_blocking(current).await.unwrap()
    }
    counting();
    let router = Router::new()
        .route("/here/{id}", get(async |_: Path<u32>| current()))
        .route("/offloaded", get(offloaded))
        .route_layer(GroupLayer::new(route))
        .fallback(async || current());
    let ask = async |uri: &str| {
        let request = Request::get(uri).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        to_bytes(response.into_body(), 100).await.unwrap()
    };
    block_on(async {
        for (uri, group) in [
            ("/here/1", "GET /here/{id}"),
            ("/here/2", "GET /here/{id}"),
            ("/offloaded", "GET /offloaded"),
            ("/elsewhere", "none"),
        ] {
            assert_eq!(ask(uri).await, group, "{uri}");
        }
    });
    assert_eq!(counts("GET /here/{id}"), (2, 0, 2));
    assert_eq!(counts("GET /offloaded"), (2, 0, 2), "the request and what it had done elsewhere");
}

#[test]
fn requests_without_a_route_are_charged_by_layer() {
    fn groups() -> GroupLayer<fn(&Request) -> Cow<'_, str>> {
        GroupLayer::new(|request| request.extensions().get().map_or("no route", MatchedPath::as_str).into())
    }
    let router = Router::<()>::new().route("/routed/{id}", get(async || current())).layer(groups());
    block_on(async {
        for (uri, status) in [("/routed/1", StatusCode::OK), ("/nowhere", StatusCode::NOT_FOUND)] {
            let request = Request::get(uri).body(Body::empty()).unwrap();
            assert_eq!(router.clone().oneshot(request).await.unwrap().status(), status);
        }
    });
    assert_eq!((counts("/routed/{id}"), counts("no route")), ((1, 0, 1), (1, 0, 1)));
}

#[test]
fn a_handler_in_a_group_charges_its_requests() {
    let id = dormouse::axum::handler(Group::new("one handler"), async |_: Path<u32>| current());
    let request = |uri| Request::get(uri).body(Body::empty()).unwrap();
    // Dropped before its first poll.
    drop(axum::handler::Handler::call(id.clone(), request("/1"), ()));
    let router = Router::<()>::new().route("/{id}", get(id));
    let ask = |uri| router.clone().oneshot(request(uri));
    block_on(async {
        let response = ask("/1").await.unwrap();
        assert_eq!(counts("one handler"), (2, 1, 1), "the request goes on with its body");
        assert_eq!(to_bytes(response.into_body(), 100).await.unwrap(), "one handler");
        assert_eq!(counts("one handler"), (2, 0, 2));
        assert_eq!(ask("/x").await.unwrap().status(), StatusCode::BAD_REQUEST);
    });
    assert_eq!(counts("one handler"), (3, 0, 3), "with the request that its extractors refuse");
}

#[test]
fn a_header_gives_the_trace_if_asked() {
    const HEADER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let _waiting = dormouse::Waiting::start().unwrap();
    let of = |name: &'static str, headers: &[&str]| {
        let mut request = Request::get("/").body(Body::empty()).unwrap();
        for header in headers {
            request.headers_mut().append("traceparent", header.parse().unwrap());
        }
        (name, request)
    };
    let answer = async |_: Request| Ok::<_, Infallible>(Response::new(Body::empty()));
    let trace = |(name, request): (&'static str, Request), believes: bool| {
        let layer = GroupLayer::new(move |_: &Request| name.into());
        let call = async {
            let response = if believes {
                layer.with_trace_context().layer(service_fn(answer)).oneshot(request).await
            } else {
                layer.layer(service_fn(answer)).oneshot(request).await
            };
            drop(response.unwrap());
        };
        block_on(call);
        match Group::new(name).read_exemplars()[..] {
            [only] => only.trace.map(|trace| trace.to_string()),
            ref all => panic!("{all:?}"),
        }
    };
    assert_eq!(trace(of("believed", &[HEADER]), true).as_deref(), Some(HEADER));
    assert_eq!(trace(of("not asked", &[HEADER]), false), None);
    assert_eq!(trace(of("none", &[]), true), None);
    assert_eq!(trace(of("two", &[HEADER, HEADER]), true), None, "the standard has it restarted");
    assert_eq!(trace(of("broken", &["00-4bf9"]), true), None);
}

#[test]
fn handed_on_work_makes_no_further_request() {
    counting();
    let layer = GroupLayer::new(|name: &&'static str| (*name).into()).without_bodies();
    let service = layer.layer(service_fn(async |_| {
        dormouse::tokio::spawn_blocking(current).await.unwrap();
        dormouse::tokio::spawn(tokio::task::yield_now()).await.unwrap();
        let carried = dormouse::carry();
        tokio::task::spawn_blocking(move || carried.run(current)).await.unwrap();
        let within = Group::new("handed on");
        within.instrument(async { within.instrument(tokio::task::yield_now()).await }).await;
        Ok::<_, Infallible>(within.scope(current))
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..2 {
        assert_eq!(runtime.block_on(service.clone().oneshot("handed on")).unwrap(), "handed on");
    }
    let stat = Group::new("handed on").read();
    assert_eq!((stat.requests, stat.finished, stat.alive), (2, 2 * 7, 0));
    let outside = Group::new("seldom current");
    runtime.block_on(outside.instrument(outside.instrument(async {})));
    outside.scope(|| ());
    // Both futures were made where the group was not current.
    assert_eq!(outside.read().requests, 3);
}

#[test]
fn call_and_response_are_one_task() {
    counting();
    let layer = GroupLayer::new(|name: &&'static str| (*name).into()).without_bodies();
    let mut service = layer.layer(service_fn(|_| {
        let called_in = current();
        async move {
            tokio::task::yield_now().await;
            Ok::<_, Infallible>((called_in, current()))
        }
    }));
    let answer = block_on(async { service.ready().await.unwrap().call("called").await.unwrap() });
    assert_eq!(answer, ("called", "called"));
    assert_eq!(current(), "none");
    let stat = Group::new("called").read();
    assert_eq!((counts("called"), stat.entries, stat.polls), ((1, 0, 1), 3, 2), "the call is no poll");
}

/// Is ready at the second question, and says in which group it was asked.
#[derive(Default)]
struct Reluctant(Vec<&'static str>);

impl Service<&'static str> for Reluctant {
    type Response = Vec<&'static str>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.push(current());
        cx.waker().wake_by_ref();
        if self.0.len() < 2 { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn call(&mut self, _: &'static str) -> Self::Future {
        ready(Ok(std::mem::take(&mut self.0)))
    }
}

#[test]
fn readiness_is_charged_to_no_request() {
    counting();
    let mut service =
        GroupLayer::new(|name: &&'static str| (*name).into()).without_bodies().layer(Reluctant::default());
    let asked = block_on(async {
        poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
        service.call("reluctant").await.unwrap()
    });
    assert_eq!(asked, ["none", "none"]);
    assert_eq!(counts("reluctant"), (1, 0, 1));
}

#[test]
fn names_beyond_the_bound_are_charged_to_other() {
    counting();
    let layer = GroupLayer::with_bound(2, |id: &u32| format!("client {id}").into()).without_bodies();
    let service = layer.layer(service_fn(|_: u32| ready(Ok::<_, Infallible>(current()))));
    // Services of one layer share its bound.
    let answers: Vec<_> =
        (1..=4).chain(1..=4).map(|id| block_on(service.clone().oneshot(id)).unwrap()).collect();
    // The future of `ready` was made in the call, so it shows which group was charged.
    assert_eq!(answers[..4], ["client 1", "client 2", "other", "other"]);
    assert_eq!(answers[4..], answers[..4]);
    assert!(!Group::all().iter().any(|group| group.name() == "client 3"));
}

#[test]
fn an_abandoned_request_is_finished() {
    counting();
    let layer = GroupLayer::new(|name: &&'static str| (*name).into()).without_bodies();
    let mut service = layer.layer(service_fn(|_| pending::<Result<(), Infallible>>()));
    {
        let mut response = pin!(service.call("given up"));
        assert!(response.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(counts("given up"), (1, 1, 0));
    }
    assert_eq!(counts("given up"), (1, 0, 1));
    let mut service = layer.layer(service_fn(|_| -> Ready<Result<(), Infallible>> {
        std::panic::resume_unwind(Box::new("of the test"));
    }));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| service.call("panics in call")));
    assert!(caught.is_err());
    assert_eq!((counts("panics in call"), current()), ((1, 0, 1), "none"));
}

#[test]
fn a_streamed_body_is_charged_to_its_route() {
    const FRAME: Duration = Duration::from_millis(10);
    async fn brochure() -> Body {
        Body::from_stream(futures_util::stream::iter(0..3).map(|_| {
            spin_for(FRAME);
            Ok::<_, Infallible>(current())
        }))
    }
    counting();
    let router = Router::new().route("/brochure", get(brochure)).layer(GroupLayer::new(route));
    let (group, connection) = (Group::new("GET /brochure"), Group::new("a connection"));
    let request = Request::get("/brochure").body(Body::empty()).unwrap();
    let response = block_on(router.oneshot(request)).unwrap();
    let before = group.read();
    assert_eq!((before.alive, before.finished), (1, 0), "the request goes on with its body");
    let body = connection.instrument(to_bytes(response.into_body(), 100));
    assert_eq!(block_on(body).unwrap(), "GET /brochure".repeat(3));
    let after = group.read();
    assert_eq!((after.alive, after.finished, after.requests), (0, 1, 1));
    assert_about(after.cpu.abs_diff(before.cpu), 3 * FRAME);
    assert_about(connection.read().cpu, Duration::ZERO);
}

/// A body of one frame and trailers, or of an error; it logs where it is polled and dropped.
struct Reel {
    frames: Vec<Result<Frame<Bytes>, &'static str>>,
    log: Arc<Mutex<Vec<&'static str>>>,
}

impl HttpBody for Reel {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.log.lock().unwrap().push(current());
        Poll::Ready((!self.frames.is_empty()).then(|| self.frames.remove(0)))
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.frames.len() as u64)
    }
}

impl Drop for Reel {
    fn drop(&mut self) {
        self.log.lock().unwrap().push(current());
    }
}

/// A body with these frames in the group `name`, and its log.
fn reel(
    name: &'static str,
    frames: Vec<Result<Frame<Bytes>, &'static str>>,
) -> (GroupBody<Reel>, Arc<Mutex<Vec<&'static str>>>) {
    counting();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (own, mut frames) = (Arc::clone(&log), Some(frames));
    let mut service = GroupLayer::new(move |_: &Request<()>| name.into()).layer(service_fn(move |_| {
        ready(Ok::<_, Infallible>(Response::new(Reel {
            frames: frames.take().unwrap(),
            log: Arc::clone(&own),
        })))
    }));
    let response = block_on(service.call(Request::new(()))).unwrap();
    (response.into_body(), log)
}

fn frame(body: &mut GroupBody<Reel>) -> Option<Result<Frame<Bytes>, &'static str>> {
    match Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(frame) => frame,
        Poll::Pending => panic!("it is never pending"),
    }
}

#[test]
fn a_body_is_as_it_was() {
    let (data, trailers) = (Bytes::from_static(b"tea"), HeaderMap::new());
    let (mut body, log) =
        reel("whole", vec![Ok(Frame::data(data.clone())), Ok(Frame::trailers(trailers.clone()))]);
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(2), false));
    assert_eq!(frame(&mut body).unwrap().unwrap().into_data().unwrap(), data);
    assert_eq!(body.size_hint().exact(), Some(1));
    assert_eq!(frame(&mut body).unwrap().unwrap().into_trailers().unwrap(), trailers);
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
    assert_eq!(counts("whole"), (1, 0, 1), "ended, though the body is still there");
    assert_eq!(*log.lock().unwrap(), ["whole"; 3], "two polls and a drop");
    assert!(frame(&mut body).is_none());
    drop(body);
    assert_eq!((log.lock().unwrap().len(), counts("whole")), (3, (1, 0, 1)));
}

#[test]
fn a_body_ends_by_error_or_drop() {
    let (mut failing, log) = reel("failing", vec![Err("out of tea"), Err("never seen")]);
    assert_eq!(frame(&mut failing).unwrap().err(), Some("out of tea"));
    assert_eq!((counts("failing"), &log.lock().unwrap()[..]), ((1, 0, 1), &["failing"; 2][..]));
    let (mut left, log) = reel("left", vec![Ok(Frame::data(Bytes::new())), Ok(Frame::data(Bytes::new()))]);
    assert!(frame(&mut left).is_some());
    assert_eq!(counts("left"), (1, 1, 0));
    drop(left);
    assert_eq!((counts("left"), &log.lock().unwrap()[..]), ((1, 0, 1), &["left"; 2][..]));
}

/// Has CPU time and entries counted for all groups from now on.
fn counting() {
    static COUNT: std::sync::Once = std::sync::Once::new();
    COUNT.call_once(|| dormouse::start_counting(&[dormouse::Event::TASK_CLOCK]).unwrap().keep());
}
