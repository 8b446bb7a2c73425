//! Outgoing calls, by the group that calls and by peer: counts and errors are exact, values stay
//! away, and nothing is taken while nobody looks. Each test is a child: times are taken in the
//! whole process.
#![cfg(all(feature = "tower", feature = "tracing-calls", feature = "tokio"))]

use std::convert::Infallible;
use std::future::{pending, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::http::{Request, Response};
use dormouse::metrics::{Metrics, MetricsSpec};
use dormouse::tracing::{calls, carry};
use dormouse::waits::{PEERS, Waiting};
use dormouse::{Call, CallKind, Group};
use dormouse_testkit::{Answer, Filter, fork, in_child};
use http_body::Body as _;
use tower::{Layer, Service, service_fn};
use tracing::field::Empty;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::framed::{FrameResult, Framed, framed, trailers};

/// Kind, peer, answered calls, errors and cancelled calls of each peer, in order.
fn of(group: Group) -> Vec<(&'static str, String, u64, Option<u64>, u64)> {
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

/// The event that sqlx 0.8 writes at the end of a statement. A short statement is the summary.
fn sqlx_event(summary: &str, statement: &str, seconds: f64) {
    let elapsed = Duration::from_secs_f64(seconds);
    tracing::event!(
        target: "sqlx::query",
        tracing::Level::DEBUG,
        summary,
        db.statement = statement,
        rows_affected = 0_u64,
        rows_returned = 1_u64,
        ?elapsed,
        elapsed_secs = seconds,
    );
}

#[test]
fn spans_of_clients_are_calls() {
    in_child(|| {
        let subscriber = tracing_subscriber::registry().with(calls());
        let _default = tracing::subscriber::set_default(subscriber);
        let route = Group::new("GET /route");
        route.scope(|| sqlx_event("SELECT 1", "", 0.1));
        let _waiting = Waiting::start().unwrap();
        route.scope(|| {
            sqlx_event("SELECT 7", "", 0.002);
            sqlx_event("SELECT name FROM tea …", "\n\nSELECT name FROM tea\nWHERE id = 7\n", 0.004);
            // sqlx after 0.9: the event is a part of the span.
            let query = tracing::info_span!(
                target: "sqlx::query",
                "db.query",
                "db.system.name" = Empty,
                "db.operation.name" = "INSERT",
                "db.query.summary" = "INSERT INTO tea VALUES",
                "db.query.text" = "INSERT INTO tea VALUES (1, 'Assam')",
                "otel.kind" = "client",
            );
            query.record("db.system.name", "postgresql");
            query.in_scope(|| {
                sqlx_event("INSERT INTO tea VALUES …", "\n\nINSERT INTO tea VALUES (1, 'Assam')\n", 0.1);
            });
            drop(query);
            // fred 10.
            let command =
                tracing::debug_span!("fred.command", module = "fred", "cmd.name" = Empty, "cmd.req" = Empty);
            command.record("cmd.name", "HGET");
            drop(command);
            // reqwest-tracing 0.7.
            for status in ["OK", "ERROR"] {
                let span = tracing::info_span!(
                    "HTTP request",
                    http.request.method = "GET",
                    url.scheme = "http",
                    server.address = %"stock.test",
                    server.port = 8080_i64,
                    user_agent.original = "tea",
                    otel.kind = "client",
                    otel.name = "GET /tea/7",
                    otel.status_code = Empty,
                );
                span.record("otel.status_code", status);
            }
            // OpenTelemetry's conventions, as tonic's users write them, and for Redis.
            drop(tracing::info_span!(
                "c",
                otel.kind = "CLIENT",
                rpc.service = "tea.Kitchen",
                rpc.method = "Brew"
            ));
            drop(tracing::info_span!(
                "c",
                otel.kind = "client",
                db.system = "redis",
                db.statement = "SET cup:7 x"
            ));
            // No calls: a server's span, and a span that names nobody.
            drop(tracing::info_span!("s", otel.kind = "server", server.address = "me", http.route = "/"));
            drop(tracing::info_span!("c", otel.kind = "client"));
        });
        assert_eq!(
            of(route),
            [
                ("grpc", "tea.Kitchen/Brew".into(), 1, None, 0),
                ("http", "stock.test:8080".into(), 2, Some(1), 0),
                ("redis", "HGET".into(), 1, None, 0),
                ("redis", "SET".into(), 1, None, 0),
                ("sql", "INSERT INTO tea VALUES (?)".into(), 1, None, 0),
                ("sql", "SELECT ?".into(), 1, None, 0),
                ("sql", "SELECT name FROM tea WHERE id = ?".into(), 1, None, 0),
            ]
        );
        let statement = route.read_calls().into_iter().find(|row| row.peer.unwrap().as_str() == "SELECT ?");
        assert_eq!(statement.unwrap().times.sum_ns, 2_000_000, "the time that sqlx has measured");
    });
}

#[test]
fn a_span_carries_its_group_to_other_threads() {
    in_child(|| {
        // One layer of the service sees all spans.
        let all = tracing_subscriber::fmt::layer().with_writer(std::io::sink);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(calls()).with(all))
            .unwrap();
        let _waiting = Waiting::start().unwrap();
        // As sqlx does for SQLite.
        let on_its_thread = || {
            let span = tracing::Span::current();
            let work = move || {
                let _inside = span.enter();
                sqlx_event("SELECT 7", "", 0.002);
                // sqlx after 0.9.
                drop(
                    tracing::info_span!(target: "sqlx::query", "db.query", db.query.text = "BEGIN", otel.kind = "client"),
                );
            };
            std::thread::spawn(work).join().unwrap();
        };
        let [route, other] = ["GET /route", "GET /other"].map(Group::new);
        route.scope(|| tracing::info_span!("handler").in_scope(on_its_thread));
        assert_eq!(of(route), [], "nothing carries the group");
        route.scope(|| carry().in_scope(on_its_thread));
        route.scope(|| carry().in_scope(|| tracing::info_span!("handler").in_scope(on_its_thread)));
        // The current group counts, and the innermost span.
        route.scope(|| {
            carry().in_scope(|| {
                other.scope(|| sqlx_event("SELECT 7", "", 0.002));
                other.scope(|| carry().in_scope(on_its_thread));
            });
        });
        let row = |statement: &str, n| ("sql", statement.to_owned(), n, None, 0);
        assert_eq!(of(route), [row("BEGIN", 2), row("SELECT ?", 2)]);
        assert_eq!(of(other), [row("BEGIN", 1), row("SELECT ?", 2)]);
    });
}

#[test]
fn spans_of_others_stay_disabled() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(calls()));
        assert!(tracing::info_span!("work").is_disabled());
        assert!(!tracing::enabled!(tracing::Level::ERROR));
        assert!(!tracing::info_span!("call", otel.kind = "client").is_disabled());
    });
}

#[test]
fn more_open_spans_than_places_are_counted() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(calls()));
        let route = Group::new("GET /route");
        let open = |n: usize| {
            let span = |_| tracing::info_span!("c", otel.kind = "client", server.address = "stock.test");
            (0..n).map(span).collect::<Vec<_>>()
        };
        route.scope(|| drop(open(10_000)));
        let [row] = &route.read_calls()[..] else { panic!("one peer") };
        let first = row.times.count();
        assert!((500..=1024).contains(&first), "{first}");
        route.scope(|| (0..10_000).for_each(|_| drop(open(1))));
        assert_eq!(route.read_calls()[0].times.count(), first + 10_000, "places are given again");
    });
}
