//! The `tower` layer: a group for each route, a bound on groups, and a service that is otherwise as
//! it was.
#![cfg(all(feature = "tower", feature = "tokio"))]

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::{Ready, pending, poll_fn, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Router, extract::Path};
use dormouse::Group;
use dormouse::tower::GroupLayer;
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
        axum::body::to_bytes(response.into_body(), 100).await.unwrap()
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
fn handed_on_work_makes_no_further_request() {
    counting();
    let layer = GroupLayer::new(|name: &&'static str| (*name).into());
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
    let layer = GroupLayer::new(|name: &&'static str| (*name).into());
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
    let mut service = GroupLayer::new(|name: &&'static str| (*name).into()).layer(Reluctant::default());
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
    let layer = GroupLayer::with_bound(2, |id: &u32| format!("client {id}").into());
    let service = layer.layer(service_fn(|_: u32| ready(Ok::<_, Infallible>(current()))));
    // Services of one layer share its bound.
    let answers: Vec<_> =
        (1..=4).chain(1..=4).map(|id| block_on(service.clone().oneshot(id)).unwrap()).collect();
    // The future of `ready` was made in the call, so it says who was charged.
    assert_eq!(answers[..4], ["client 1", "client 2", "other", "other"]);
    assert_eq!(answers[4..], answers[..4]);
    assert!(!Group::all().iter().any(|group| group.name() == "client 3"));
}

#[test]
fn an_abandoned_request_is_finished() {
    counting();
    let layer = GroupLayer::new(|name: &&'static str| (*name).into());
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

/// Has CPU time and entries counted for all groups from now on.
fn counting() {
    static COUNT: std::sync::Once = std::sync::Once::new();
    COUNT.call_once(|| dormouse::start_counting(&[dormouse::Event::TASK_CLOCK]).unwrap().keep());
}
