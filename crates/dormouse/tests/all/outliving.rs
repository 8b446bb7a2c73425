//! Work that outlives the request which begins it: how it gets a group of its own, and how clients
//! learn of work that has none.
#![cfg(all(target_os = "linux", feature = "hyper"))]

use std::future::{pending, ready};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use axum::body::{Body, to_bytes};
use axum::{Router, routing::get};
use dormouse::{Group, Waiting, hyper::Executor, inherit};
use dormouse_testkit::{eventually, in_child};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::net::TcpListener;

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The agent's answer to an operation.
fn ask(socket: &Path, op: &str) -> serde_json::Value {
    let mut stream = UnixStream::connect(socket).unwrap();
    writeln!(stream, r#"{{"v":1,"id":1,"op":"hello","client":"test"}}"#).unwrap();
    writeln!(stream, r#"{{"v":1,"id":2,"op":"{op}"}}"#).unwrap();
    let answer = BufReader::new(stream).lines().nth(1).unwrap().unwrap();
    serde_json::from_str::<serde_json::Value>(&answer).unwrap()["ok"].take()
}

#[test]
fn spawned_work_is_in_the_named_group() {
    block_on(async {
        let [request, prices] = ["a request", "prices"].map(Group::new);
        let who = async || (Group::current(), dormouse::tokio::spawn(ready(Group::current())).await.unwrap());
        let spawned = request.scope(|| dormouse::tokio::spawn_in(prices, who()));
        assert_eq!(spawned.await.unwrap(), (Some(prices), Some(prices)), "and what it spawns");
        assert_eq!((request.read().alive, prices.read().alive), (0, 0));
    });
}

/// Sends the group in which it is dropped.
struct Seen(Sender<Option<Group>>);

impl Drop for Seen {
    fn drop(&mut self) {
        self.0.send(Group::current()).unwrap();
    }
}

#[test]
fn work_outside_is_no_stall() {
    let _waiting = Waiting::start().unwrap();
    let request = Group::new("a request that blocks outside");
    let (begun, mut outside) = (Instant::now(), Duration::ZERO);
    block_on(request.instrument(dormouse::outside(async {
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        outside = begun.elapsed();
    })));
    let polled = Duration::from_nanos(request.read_waits().poll_ns);
    let lasted = begun.elapsed() + Duration::from_micros(100);
    assert!(polled > Duration::ZERO && polled + outside <= lasted, "{polled:?} {outside:?} {lasted:?}");
}

#[test]
fn work_outside_is_in_no_group() {
    block_on(async {
        let request = Group::new("a request with work outside");
        let who = async || (Group::current(), inherit(async { Group::current() }).await);
        let work = request.scope(|| dormouse::outside(who()));
        assert_eq!(request.instrument(work).await, (None, None), "polled by its request");
        // Destructors, too.
        let (sender, dropped) = channel();
        let seen = Seen(sender);
        let unpolled = dormouse::outside(async move { drop(seen) });
        request.scope(|| drop(unpolled));
        assert_eq!((dropped.recv().unwrap(), request.read().alive), (None, 0));
    });
}

/// Asks a server by a client whose connections `executor` spawns, first in one group and then in
/// another; returns what is alive in the first one in between.
async fn ask_twice(executor: Executor, name: &str) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let app = Router::new().route("/", get(async || "tea"));
    tokio::spawn(axum::serve(listener, app).into_future());
    let client: Client<HttpConnector, Body> = Client::builder(executor).build_http();
    let once = async |group: Group| {
        let answer = group.instrument(client.get(uri.parse().unwrap())).await.unwrap();
        assert_eq!(to_bytes(Body::new(answer.into_body()), 100).await.unwrap(), "tea");
    };
    let [first, second] = ["first", "second"].map(|order| Group::new(&format!("{order} of {name}")));
    once(first).await;
    let alive = first.read().alive;
    once(second).await;
    assert_eq!(second.read().alive, 0, "the connection was there");
    alive
}

#[test]
fn a_pooled_connection_is_its_groups() {
    let _counting = dormouse::start_counting(&[dormouse::Event::TASK_CLOCK]).unwrap();
    block_on(async {
        let upstream = Group::new("upstream");
        assert_eq!(ask_twice(Executor::group(upstream), "a client").await, 0);
        let stat = upstream.read();
        assert!(stat.started > 0 && stat.polls > 0 && stat.requests == 0, "{stat:?}");
        assert_eq!(ask_twice(Executor::outside(), "nobody").await, 0);
        // A server's executor would have the first request's group pay for all later ones.
        assert!(ask_twice(Executor::server(), "a server").await > 0);
    });
}

#[test]
fn stat_shows_parts_without_requests() {
    let socket = dormouse::init().unwrap();
    let group = Group::new("an actor's first request");
    let outliving = || {
        let mut stat = ask(socket.path(), "stat");
        let rows = stat["groups"].as_array_mut().unwrap();
        rows.iter_mut().find(|row| row["name"] == group.name()).unwrap()["outliving"].take()
    };
    let request = group.task();
    let actor = {
        let mut request = request;
        let actor = request.run(|| inherit(pending::<()>()));
        assert!(outliving().is_null(), "its request is there");
        actor
    };
    eventually(|| {
        let now = outliving();
        assert_eq!(now["tasks"], 1);
        now["ns"].as_u64().unwrap() > 0
    });
    drop(actor);
    assert!(outliving().is_null());
}

#[test]
fn doctor_counts_work_without_a_group() {
    in_child(|| {
        let socket = dormouse::init().unwrap();
        let check = || {
            let doctor = ask(socket.path(), "doctor");
            let checks = doctor["checks"].as_array().unwrap().iter();
            checks.clone().find(|check| check["name"] == "groups.inherit").cloned()
        };
        Group::new("a handler").scope(|| drop((inherit(ready(())), dormouse::carry())));
        assert_eq!(check(), None, "all had one");
        for _ in 0..3 {
            drop(inherit(ready(())));
        }
        drop(dormouse::inherit_fn(|| ()));
        let check = check().unwrap();
        let detail = check["detail"].as_str().unwrap();
        let here = format!("3 at {}:{}", file!(), line!() - 5);
        assert!(detail.contains(" 4 times ") && detail.contains(&here), "{detail}");
        assert!(check["fix"].as_str().unwrap().contains("carry"), "{check}");
    });
}
