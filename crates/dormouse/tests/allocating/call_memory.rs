//! The memory of outgoing calls.
#![cfg(all(feature = "tower", feature = "tracing-calls"))]

use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::http::{Request, Response};
use dormouse::waits::Waiting;
use dormouse::{Call, CallKind, Event, Group};
use tower::{Layer, Service, service_fn};
use tracing_subscriber::layer::SubscriberExt as _;

/// How often this thread has allocated.
fn allocated() -> u64 {
    let mut value = [0];
    let event = Event::ALLOC_COUNT;
    event.pmu().read(&[event.number()], &mut value);
    value[0]
}

#[test]
fn calls_to_known_peers_allocate_nothing() {
    let _counting = dormouse::start_counting(&[Event::ALLOC_COUNT]).unwrap();
    let _waiting = Waiting::start().unwrap();
    let subscriber = tracing_subscriber::registry().with(dormouse::tracing::calls());
    let _default = tracing::subscriber::set_default(subscriber);
    let answer = |_: Request<()>| ready(Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut client = dormouse::tower::calls().layer(service_fn(answer));
    let mut call = |request| {
        let mut response = pin!(client.call(request));
        let Poll::Ready(answer) = response.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it is ready");
        };
        drop(answer);
        let statement = "SELECT name FROM tea WHERE id IN (1, 2, 3) AND name = 'Assam'";
        Call::begin(CallKind::Sql, statement).end(false);
        tracing::event!(
            target: "sqlx::query",
            tracing::Level::DEBUG,
            summary = "SELECT name FROM tea",
            db.statement = statement,
            elapsed_secs = 0.5,
        );
    };
    let request = || Request::get("http://stock.test:8080/tea").body(()).unwrap();
    Group::new("GET /route").scope(|| {
        call(request());
        let requests: Vec<_> = (0..100).map(|_| request()).collect();
        let before = allocated();
        requests.into_iter().for_each(&mut call);
        assert_eq!(allocated() - before, 0);
    });
}
