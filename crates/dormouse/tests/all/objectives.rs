//! Requests are counted exactly by the objectives of their groups, whoever has set these.
#![cfg(all(feature = "axum", feature = "tower", feature = "tokio"))]

use std::borrow::Cow;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use axum::routing::get;
use dormouse::metrics::{MetricsFormat, exposition};
use dormouse::tower::GroupLayer;
use dormouse::{Group, triggers};
use dormouse_testkit::{eventually, fork, in_child};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// A time that each request exceeds which takes [`SLOW`], and one that no request exceeds.
const SHORT: &str = "99% < 20ms";
const LONG: &str = "99.9% < 1h";
const SLOW: Duration = Duration::from_millis(21);

/// Requests of each kind.
const EACH: u64 = 20;

fn route(request: &Request) -> Cow<'_, str> {
    let path = request.extensions().get().map_or("unmatched", MatchedPath::as_str);
    format!("{} {path}", request.method()).into()
}

/// Begins a server, and returns a function that waits for its answer.
fn serve() -> impl Fn(&str) + Copy {
    let router = Router::new()
        .route("/quick", get(async || "tea"))
        .route("/slow", get(async || sleep(SLOW).await))
        .route("/failed", get(async || StatusCode::INTERNAL_SERVER_ERROR))
        .route("/wrong", get(async || StatusCode::IM_A_TEAPOT))
        .route("/late", get(async || "tea"))
        .route_layer(GroupLayer::new(route));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || runtime.block_on(async { axum::serve(listener, router).await }));
    move |path| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: tea\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
    }
}

/// The requests of a group by its objectives, once as many have ended: objective, met, missed.
fn counted(name: &str, requests: u64) -> Vec<(String, u64, u64)> {
    let group = Group::new(name);
    eventually(|| group.read().requests == requests && group.read().alive == 0);
    let rows = group.read_objectives();
    rows.iter().map(|row| (row.objective.to_string(), row.met, row.missed)).collect()
}

#[test]
fn requests_are_counted_exactly() {
    in_child(|| {
        let ask = serve();
        let objectives = dormouse::objectives(&format!("GET /*,!GET /late: {SHORT}; GET *: {LONG}")).unwrap();
        assert_eq!(objectives.groups(), 0, "no request has come");
        for path in ["/quick", "/slow", "/failed", "/wrong", "/late"] {
            // The first one makes the group: others beside it may be over before it has objectives.
            ask(path);
            thread::scope(|scope| (1..EACH).for_each(|_| _ = scope.spawn(|| ask(path))));
        }
        let of = |name: &str, counts: &[(&str, u64, u64)]| {
            let own = counted(name, EACH);
            let own: Vec<_> =
                own.iter().map(|(objective, met, missed)| (&**objective, *met, *missed)).collect();
            assert_eq!(own, counts, "{name}");
        };
        of("GET /slow", &[(SHORT, 0, EACH), (LONG, EACH, 0)]);
        of("GET /failed", &[(SHORT, 0, EACH), (LONG, 0, EACH)]);
        of("GET /late", &[(LONG, EACH, 0)]);
        for (name, ended) in [("GET /quick", EACH), ("GET /wrong", EACH)] {
            let [(_, met, missed), long] = &counted(name, ended)[..] else { panic!("two objectives") };
            // A machine may be busy.
            assert_eq!((met + missed, long), (EACH, &(LONG.to_owned(), EACH, 0)), "{name}");
        }
        let text = String::from_utf8(exposition().encode(MetricsFormat::Text)).unwrap();
        for line in [
            r#"dormouse_objective_requests_total{group="GET /slow",objective="99% < 20ms",met="true"} 0"#,
            r#"dormouse_objective_requests_total{group="GET /slow",objective="99% < 20ms",met="false"} 20"#,
            r#"dormouse_objective_target_ratio{group="GET /late",objective="99.9% < 1h"} 0.999"#,
        ] {
            assert!(text.lines().any(|own| own == line), "{line} in {text}");
        }
        drop(objectives);
        assert!(counted("GET /slow", EACH).is_empty());
    });
}

#[test]
fn requests_that_are_given_up_count_late() {
    in_child(|| {
        let group = Group::new("given up");
        let _both = [group.objective("50% < 1us").unwrap(), group.objective(LONG).unwrap()];
        for _ in 0..EACH {
            let mut request = pin!(Some(group.instrument(sleep_for_ever())));
            let cx = &mut Context::from_waker(Waker::noop());
            assert!(request.as_mut().as_pin_mut().unwrap().poll(cx).is_pending());
            dormouse_testkit::spin_for(Duration::from_micros(2));
            request.set(None);
        }
        let own = counted("given up", EACH);
        assert_eq!(own, [("50% < 1us".to_owned(), 0, EACH), (LONG.to_owned(), 0, 0)]);
    });
}

async fn sleep_for_ever() {
    std::future::pending::<()>().await;
}

#[test]
fn wrong_objectives_are_refused_with_their_part() {
    in_child(|| {
        for (list, parts) in [
            ("GET /a: 99% < 250ms; GET /b: 99 < 1s", &["`GET /b: 99 < 1s`", "share `99` has no `%`"][..]),
            ("a,,b: 99% < 1s", &["`a,,b: 99% < 1s`", "empty glob"]),
            ("", &["there is none"]),
        ] {
            let why = dormouse::objectives(list).unwrap_err().to_string();
            assert!(parts.iter().all(|part| why.contains(part)), "{list}: {why}");
        }
        let group = Group::new("full");
        let held: Vec<_> = (1..=8).map(|n| group.objective(&format!("99% < {n}ms")).unwrap()).collect();
        let why = group.objective("99% < 9ms").unwrap_err().to_string();
        assert!(why.contains("the group full has 8 objectives"), "{why}");
        assert!(why.contains("99% < 1ms; 99% < 2ms"), "{why}");
        drop(held);
        group.objective("99% < 9ms").unwrap().keep();
        assert_eq!(group.read_objectives().len(), 1);
    });
}

/// A client of the agent.
struct Client(BufReader<UnixStream>);

impl Client {
    fn new(socket: &Path) -> Self {
        let mut client = Self(BufReader::new(UnixStream::connect(socket).unwrap()));
        client.ask(json!({"op": "hello", "client": "test"}));
        client
    }

    fn ask(&mut self, mut request: Value) -> Value {
        request["v"] = 1.into();
        request["id"] = 1.into();
        writeln!(self.0.get_mut(), "{request}").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn count(&mut self, objectives: &[&str]) -> Value {
        self.ask(json!({"op": "objectives", "objectives": objectives}))
    }

    fn rows(&mut self, name: &str) -> Value {
        let stat = self.ask(json!({"op": "stat"}));
        let rows = stat["ok"]["groups"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()["objectives"].clone()
    }
}

#[test]
fn clients_share_a_count_and_give_it_back() {
    in_child(|| {
        let agent = dormouse::init().unwrap();
        let group = Group::new("GET /shared");
        let end = || group.scope(|| {});
        let [mut one, mut other, mut reader] = [(); 3].map(|()| Client::new(agent.path()));
        assert_eq!(one.count(&["GET *: 99% < 1h"])["ok"]["groups"], 1);
        end();
        assert_eq!(other.count(&["GET /sh*: 99% < 1h", "none: 1% < 1s"])["ok"]["groups"], 1);
        end();
        let row = |met| json!([{"target_ppm": 990_000, "limit_ns": 3_600_000_000_000_u64, "met": met, "missed": 0}]);
        assert_eq!(reader.rows("GET /shared"), row(2), "of both, for anybody");
        drop(one);
        end();
        assert_eq!(reader.rows("GET /shared"), row(3));
        let refused = other.count(&["GET *: 99% < 250"]);
        assert!(refused["error"]["message"].as_str().unwrap().contains("the time `250` has no unit"));
        assert_eq!(reader.rows("GET /shared"), row(3), "what it had stays");
        drop(other);
        eventually(|| group.read_objectives().is_empty());
        assert!(reader.rows("GET /shared").is_null());
    });
}

#[test]
fn a_missed_objective_has_a_file_written() {
    in_child(|| {
        let directory = tempfile::tempdir().unwrap();
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DIR", directory.path()) };
        let group = Group::new("GET /missed");
        let number = triggers::add("objective<99% over 1s in GET *").unwrap()[0];
        let row = || triggers::list().unwrap().triggers.into_iter().find(|row| row.number == number).unwrap();
        assert!(row().why_not.contains("no group has an objective"), "{:?}", row());
        group.objective("99% < 1us").unwrap().keep();
        eventually(|| {
            group.scope(|| dormouse_testkit::spin_for(Duration::from_micros(2)));
            row().fired > 0
        });
    });
}

#[test]
fn a_forked_child_has_none_of_its_parents() {
    in_child(|| {
        let group = Group::new("forked");
        let mut objective = group.objective(LONG).ok();
        group.scope(|| {});
        let child = fork(|| {
            assert!(group.read_objectives().is_empty());
            let _own = group.objective(LONG).unwrap();
            group.scope(|| {});
            assert_eq!(group.read_objectives()[0].met, 1);
            drop(objective.take());
            assert_eq!(group.read_objectives()[0].met, 1, "the parent's is not the child's");
        });
        assert!(child.success(), "{child}");
        assert_eq!(group.read_objectives()[0].met, 1);
    });
}

#[test]
fn an_objective_without_groups_is_told() {
    in_child(|| {
        let directory = tempfile::tempdir().unwrap();
        // SAFETY: nothing else runs in the child.
        unsafe { std::env::set_var("DORMOUSE_RECORD_DIR", directory.path()) };
        let agent = dormouse::init().unwrap();
        let mut client = Client::new(agent.path());
        let numbers = triggers::add("request>1h in GET /ordrs").unwrap();
        dormouse::objectives("GET /ordrs: 99% < 1s; GET *: 99% < 1s").unwrap().keep();
        let _orders = Group::new("GET /orders");
        let told = |client: &mut Client| client.ask(json!({"op": "stat"}))["ok"]["unmatched"].clone();
        assert!(told(&mut client).is_null(), "its group may come with a request");
        eventually(|| told(&mut client) == json!(["GET /ordrs: 99% < 1s"]));
        let checks = |client: &mut Client| {
            let doctor = client.ask(json!({"op": "doctor"}));
            let checks = doctor["ok"]["checks"].as_array().unwrap().iter();
            checks.filter(|check| check["name"] == "groups.unmatched").cloned().collect::<Vec<_>>()
        };
        let checks_now = checks(&mut client);
        let details: Vec<_> = checks_now.iter().filter_map(|check| check["detail"].as_str()).collect();
        let expected = [
            "objective `GET /ordrs: 99% < 1s`: no group matches so far; near: GET /orders",
            "trigger `request>1h in GET /ordrs`: no group matches `GET /ordrs`: there are GET /orders",
        ];
        assert_eq!(details, expected);
        assert!(checks_now.iter().all(|check| check["state"] == "limited"));
        let _ordrs = Group::new("GET /ordrs");
        assert!(told(&mut client).is_null() && checks(&mut client).is_empty());
        for number in numbers {
            triggers::remove(number).unwrap();
        }
    });
}
