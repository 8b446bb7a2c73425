//! Outgoing calls, by the group that calls and by peer: counts and errors are exact, values stay
//! away, and nothing is taken while nobody looks. Each test is a child: times are taken in the
//! whole process.
#![cfg(all(feature = "tower", feature = "tokio"))]

use std::convert::Infallible;
use std::future::{pending, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::http::{Request, Response};
use dormouse::metrics::{Metrics, MetricsSpec};
use dormouse::waits::{PEERS, Waiting};
use dormouse::{Call, CallKind, Group};
use dormouse_testkit::{Answer, Filter, fork, in_child};
use http_body::Body as _;
use tower::{Layer, Service, service_fn};

use crate::framed::{FrameResult, Framed, framed, trailers};

/// Kind, peer, answered calls, errors and cancelled calls of each peer, in order.
pub(crate) fn of(group: Group) -> Vec<(&'static str, String, u64, Option<u64>, u64)> {
    let rows = group.read_calls().into_iter().map(|row| {
        let peer = row.peer.map_or_else(|| "(others)".into(), |peer| peer.as_str().to_owned());
        let kind = row.peer.map_or("other", |peer| peer.kind().name());
        (kind, peer, row.times.count(), row.errors, row.cancelled)
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort();
    rows
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Calls a client that answers so, and reads the body to its end.
fn call<E>(request: Request<()>, answer: Result<Response<Framed>, E>) {
    let mut answer = Some(answer);
    let client = service_fn(|_: Request<()>| ready(answer.take().expect("one call")));
    let mut client = dormouse::tower::calls().layer(client);
    if let Ok(response) = block_on(client.call(request)) {
        let mut body = pin!(response.into_body());
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some(_)) = body.as_mut().poll_frame(&mut context) {}
    }
}

fn get(uri: &str) -> Request<()> {
    Request::get(uri).body(()).unwrap()
}

fn grpc(path: &str) -> Request<()> {
    Request::post(path).header("content-type", "application/grpc+proto").body(()).unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "what a client's service resolves to")]
fn answer(status: u16, frames: Vec<FrameResult>) -> Result<Response<Framed>, Infallible> {
    Ok(Response::builder().status(status).body(framed(frames)).unwrap())
}

#[test]
fn clients_are_counted_by_peer() {
    in_child(|| {
        let (route, other) = (Group::new("GET /route"), Group::new("GET /other"));
        route.scope(|| call(get("http://asleep.test/"), answer(200, vec![])));
        let _waiting = Waiting::start().unwrap();
        route.scope(|| {
            for status in [200, 204, 404, 503] {
                call(get("http://me:word@stock.test:8080/tea?id=7"), answer(status, vec![trailers("0")]));
            }
            call(get("http://stock.test/"), answer(200, vec![Err("cut off")]));
            call(get("http://stock.test/"), Err("refused"));
            // An error of the status, and one of the body: one error.
            call(get("http://stock.test/"), answer(500, vec![Err("cut off")]));
            call(Request::get("/").header("host", "by.header").body(()).unwrap(), answer(200, vec![]));
            call(get("/"), answer(200, vec![]));
            for status in ["0", "14"] {
                call(grpc("/tea.Kitchen/Brew"), answer(200, vec![trailers(status)]));
            }
            let mut refused = answer(200, vec![]).unwrap();
            refused.headers_mut().insert("grpc-status", "7".parse().unwrap());
            call(grpc("/tea.Kitchen/Brew"), Ok::<_, Infallible>(refused));
        });
        other.scope(|| call(get("http://stock.test:8080/"), answer(200, vec![])));
        let row = |kind, peer: &str, n, errors| (kind, peer.to_owned(), n, Some(errors), 0);
        assert_eq!(
            of(route),
            [
                row("grpc", "tea.Kitchen/Brew", 3, 2),
                row("http", "?", 1, 0),
                row("http", "by.header", 1, 0),
                row("http", "stock.test", 3, 3),
                row("http", "stock.test:8080", 4, 2),
            ]
        );
        assert_eq!(of(other), [row("http", "stock.test:8080", 1, 0)]);
    });
}

#[test]
fn dropped_calls_are_cancelled() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let route = Group::new("GET /route");
        route.scope(|| {
            let mut client = dormouse::tower::calls()
                .layer(service_fn(|_: Request<()>| pending::<Result<Response<Framed>, Infallible>>()));
            let mut waiting = Box::pin(client.call(get("http://slow.test/")));
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            drop(waiting);
            drop(Call::begin(CallKind::Sql, "SELECT 1").instrument(pending::<Result<(), ()>>()));
            let unwound = std::panic::catch_unwind(|| {
                Call::begin(CallKind::Redis, "GET").run(|| -> Result<(), ()> { panic!("in a call") })
            });
            assert!(unwound.is_err());
            block_on(Call::begin(CallKind::Redis, "get x").instrument(ready(Ok::<_, ()>(())))).unwrap();
        });
        assert_eq!(
            of(route),
            [
                ("http", "slow.test".into(), 0, Some(0), 1),
                ("redis", "GET".into(), 1, Some(0), 1),
                ("sql", "SELECT ?".into(), 0, Some(0), 1),
            ]
        );
    });
}

#[test]
fn times_are_those_of_the_calls() {
    const LONG: Duration = Duration::from_millis(30);
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let route = Group::new("GET /route");
        let measured = route.scope(|| {
            let begun = std::time::Instant::now();
            let nap = || {
                std::thread::sleep(LONG);
                Ok::<_, ()>(())
            };
            Call::begin(CallKind::Other, "nap").run(nap).unwrap();
            begun.elapsed()
        });
        let [row] = &route.read_calls()[..] else { panic!("one peer") };
        let (least, most) = (LONG.as_nanos() as u64, measured.as_nanos() as u64);
        // The counter is calibrated to parts of a million.
        assert!((least - least / 1000..=most + most / 1000).contains(&row.times.sum_ns), "{row:?}");
        assert_eq!(row.times.sum_ns, row.times.max_ns);
        assert!(row.times.quantile_ns(0.99).unwrap() <= row.times.max_ns);
    });
}

#[test]
fn metrics_have_each_peer_once() {
    in_child(|| {
        let metrics = Metrics::start(&MetricsSpec::new().waits()).unwrap();
        for n in 0..3 * PEERS {
            Group::new("GET /route")
                .scope(|| Call::begin(CallKind::Http, &format!("host-{n}")).end(n % 2 == 0));
        }
        Call::begin(CallKind::Sql, "SELECT \"x\" FROM t -- \u{202e}").end(false);
        let text = String::from_utf8(metrics.answer(None).body).unwrap();
        let lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(lines("dormouse_call_duration_seconds_count{"), PEERS + 2, "{text}");
        assert_eq!(lines("dormouse_calls_failed_total{"), PEERS + 2);
        let others = "{group=\"GET /route\",kind=\"other\",peer=\"(others)\"}";
        assert!(
            text.contains(&format!("dormouse_call_duration_seconds_count{others} {}", 2 * PEERS)),
            "{text}"
        );
        assert!(
            text.contains("dormouse_calls_failed_total{kind=\"sql\",peer=\"SELECT ? FROM t\"} 0"),
            "{text}"
        );
    });
}

#[test]
fn names_never_grow_memory() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let groups: Vec<Group> = (0..100).map(|n| Group::new(&format!("GET /{n}"))).collect();
        let fill = |from: usize| {
            for group in &groups {
                group.scope(|| {
                    for n in 0..100 {
                        Call::begin(CallKind::Other, &format!("{}", from + n)).end(false);
                    }
                });
            }
            dormouse_waits::mapped_bytes()
        };
        let full = fill(0);
        assert_eq!(fill(1_000), full, "no further name takes memory");
        let calls = |group: &Group| group.read_calls().iter().map(|row| row.times.count()).sum::<u64>();
        assert!(groups.iter().all(|group| calls(group) == 200), "none is lost");
    });
}

#[test]
fn a_forked_child_begins_with_none() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let route = Group::new("GET /route");
        let open = route.scope(|| {
            Call::begin(CallKind::Redis, "GET").end(true);
            Call::begin(CallKind::Redis, "GET")
        });
        let ended = fork(|| {
            open.end(false);
            assert_eq!(of(route), []);
            let _waiting = Waiting::start().unwrap();
            route.scope(|| Call::begin(CallKind::Redis, "SET").end(false));
            assert_eq!(of(route), [("redis", "SET".into(), 1, Some(0), 0)]);
        });
        assert!(ended.success());
        let own = [("redis", "GET".into(), 1, Some(1), 1)];
        assert_eq!(of(route), own, "the parent has dropped its call, and knows nothing of the child's");
    });
}

#[test]
fn without_memory_calls_go_on() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let route = Group::new("GET /route");
        route.scope(|| Call::begin(CallKind::Redis, "GET").end(false));
        Filter::answer(Answer::Errno(libc::ENOMEM), &[libc::SYS_mmap]).install();
        let other = Group::new("GET /other");
        other.scope(|| Call::begin(CallKind::Redis, "GET").end(false));
        route.scope(|| Call::begin(CallKind::Redis, "SET").end(false));
        route.scope(|| Call::begin(CallKind::Redis, "GET").end(true));
        assert_eq!(of(other), []);
        let own = [("other", "(others)".into(), 1, Some(0), 0), ("redis", "GET".into(), 2, Some(1), 0)];
        assert_eq!(of(route), own);
    });
}
