//! Outgoing calls from what clients write for `tracing`: names without values, errors and calls
//! that were given up, in the group that calls. Each test is a child: times are taken in the whole
//! process.
#![cfg(all(feature = "tower", feature = "tracing-calls", feature = "tokio"))]

use std::time::Duration;

use dormouse::Group;
use dormouse::tracing::{calls, carry};
use dormouse::waits::Waiting;
use dormouse_testkit::in_child;
use tracing::field::Empty;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::calls::of;

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
fn names_recorded_late_have_no_values() {
    in_child(|| {
        let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(calls()));
        let _waiting = Waiting::start().unwrap();
        let route = Group::new("GET /route");
        route.scope(|| {
            let command = tracing::info_span!(
                "c",
                otel.kind = "client",
                db.system.name = "redis",
                server.address = "cache.test",
                db.query.text = Empty
            );
            command.record("db.query.text", "SET cup:7 secret");
            drop(command);
            // Whether it is Redis is not known yet.
            let command =
                tracing::info_span!("c", otel.kind = "client", db.system = Empty, db.statement = "GET cup:7");
            command.record("db.system", "redis");
            drop(command);
            let statement = tracing::info_span!(
                "c",
                otel.kind = "client",
                db.system.name = "postgresql",
                server.address = "pg.test",
                db.query.text = Empty
            );
            statement.record("db.query.text", "SELECT name FROM tea WHERE id = 7");
            drop(statement);
            drop(tracing::info_span!(
                "c",
                otel.kind = "client",
                db.system.name = "postgresql",
                server.address = "pg.test"
            ));
            let method = tracing::info_span!(
                "c",
                otel.kind = "client",
                server.address = "kitchen.test",
                rpc.method = Empty
            );
            method.record("rpc.method", "tea.Kitchen/Brew");
        });
        assert_eq!(
            of(route),
            [
                ("grpc", "tea.Kitchen/Brew".into(), 1, None, 0),
                ("other", "GET".into(), 1, None, 0),
                ("other", "pg.test".into(), 1, None, 0),
                ("redis", "SET".into(), 1, None, 0),
                ("sql", "SELECT name FROM tea WHERE id = ?".into(), 1, None, 0),
            ]
        );
    });
}

#[test]
fn spans_without_their_status_were_given_up() {
    in_child(|| {
        let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(calls()));
        let _waiting = Waiting::start().unwrap();
        let route = Group::new("GET /route");
        let http = || {
            tracing::info_span!(
                "c",
                otel.kind = "client",
                server.address = "stock.test",
                http.response.status_code = Empty,
                otel.status_code = Empty
            )
        };
        route.scope(|| {
            for status in [200, 503] {
                http().record("http.response.status_code", status);
            }
            // It could not connect.
            http().record("otel.status_code", "ERROR");
            drop(http());
            for status in ["0", "OK", "Ok", "14", "DEADLINE_EXCEEDED"] {
                drop(tracing::info_span!(
                    "c",
                    otel.kind = "client",
                    rpc.method = "tea.Kitchen/Brew",
                    rpc.response.status_code = status
                ));
            }
            // By the conventions it is not set on success.
            drop(tracing::info_span!(
                "c",
                otel.kind = "client",
                server.address = "unset.test",
                otel.status_code = Empty
            ));
        });
        assert_eq!(
            of(route),
            [
                ("grpc", "tea.Kitchen/Brew".into(), 5, Some(2), 0),
                ("http", "stock.test".into(), 3, Some(2), 1),
                ("http", "unset.test".into(), 1, None, 0),
            ]
        );
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
