//! Groups of connections: of `axum::serve`, and of what hyper spawns.
#![cfg(all(feature = "axum", feature = "hyper"))]

use std::net::SocketAddr;
use std::sync::mpsc::channel;

use axum::{Router, extract::ConnectInfo, http::StatusCode, routing::get};
use dormouse::waits::{TaskState, living};
use dormouse::{Group, hyper::Executor, tower::GroupLayer};
use dormouse_testkit::eventually;
use hyper_util::rt::TokioIo;
use hyper_util::{server::conn::auto::Builder, service::TowerToHyperService};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// The name of the group current now.
fn current() -> &'static str {
    Group::current().map_or("none", Group::name)
}

/// Sends a request and reads the body of its answer.
async fn ask(guest: &mut TcpStream) -> String {
    guest.write_all(b"GET / HTTP/1.1\r\nHost: tea\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    while !answer.ends_with('.') {
        let mut bytes = [0; 1000];
        let n = guest.read(&mut bytes).await.unwrap();
        assert!(n > 0, "closed after {answer:?}");
        answer.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
    }
    answer.rsplit_once("\r\n").unwrap().1.to_owned()
}

#[test]
fn axums_connections_have_a_group() {
    let _counting = dormouse::start_counting(&[dormouse::Event::TASK_CLOCK]).unwrap();
    block_on(async {
        let group = Group::new("connections of axum");
        let app = Router::new().route(
            "/",
            get(async |ConnectInfo(peer): ConnectInfo<SocketAddr>| format!("{peer} in {}.", current())),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(axum::serve(dormouse::axum::listener(listener, group), app).into_future());
        let mut guests = Vec::new();
        for alive in 1..=2 {
            let mut guest = TcpStream::connect(address).await.unwrap();
            let peer = guest.local_addr().unwrap();
            assert_eq!(ask(&mut guest).await, format!("{peer} in none."), "a handler is not the stream");
            guests.push(guest);
            assert_eq!(group.read().alive, alive);
        }
        let busy = group.read();
        assert!(busy.entries >= 4 && !busy.cpu.is_zero(), "{busy:?}");
        drop(guests);
        eventually(|| group.read().alive == 0);
        let ended = group.read();
        assert_eq!((ended.finished, ended.requests), (2, 0), "a connection is no request");
    });
}

#[test]
fn a_connections_own_group_counts_requests() {
    let group = Group::new("connections and commands");
    let mut connection = group.connection();
    for _ in 0..3 {
        connection.run(|| group.request().run(|| ()));
    }
    drop(connection);
    let read = group.read();
    assert_eq!((read.finished, read.requests), (4, 3), "{read:?}");
}

#[test]
fn wakes_of_an_axum_connection_are_seen() {
    let _waiting = dormouse::Waiting::start().unwrap();
    block_on(async {
        let group = Group::new("woken connections");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", get(async || "tea."));
        tokio::spawn(axum::serve(dormouse::axum::listener(listener, group), app).into_future());
        let mut guest = TcpStream::connect(address).await.unwrap();
        // An idle connection waits for its client, whose next request wakes it.
        let idle = || living().find(|task| task.group == group.id() && task.state == TaskState::Awaiting);
        for _ in 0..2 {
            assert_eq!(ask(&mut guest).await, "tea.");
            eventually(|| idle().is_some_and(|task| task.has_waker));
        }
        assert!(idle().is_some_and(|task| task.wakes > 0), "{:?}", idle());
    });
}

#[test]
fn a_connection_of_hypers_has_a_group() {
    block_on(async {
        let group = Group::new("connections of hyper");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", get(async || format!("{}.", current())));
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(app);
            tokio::spawn(group.instrument(async move {
                Builder::new(Executor::server())
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .unwrap();
            }));
        });
        let mut guest = TcpStream::connect(address).await.unwrap();
        assert_eq!(ask(&mut guest).await, "connections of hyper.");
    });
}

async fn greet(upgraded: hyper::upgrade::Upgraded) {
    let group = current();
    let _ = TokioIo::new(upgraded).write_all(group.as_bytes()).await;
}

#[test]
fn what_hyper_has_upgraded_is_its_routes() {
    block_on(async {
        let group = Group::new("GET /upgrade");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let route = async |request: axum::extract::Request| {
            tokio::spawn(dormouse::hyper::upgraded(hyper::upgrade::on(request), greet));
            (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "tea")])
        };
        let app = Router::<()>::new().route("/upgrade", get(route));
        let app = app.layer(GroupLayer::new(|_: &axum::extract::Request| "GET /upgrade".into()));
        tokio::spawn(axum::serve(listener, app).into_future());
        let mut guest = TcpStream::connect(address).await.unwrap();
        let head = b"GET /upgrade HTTP/1.1\r\nHost: tea\r\nConnection: upgrade\r\nUpgrade: tea\r\n\r\n";
        guest.write_all(head).await.unwrap();
        let mut answer = String::new();
        guest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("\r\n\r\nGET /upgrade"), "{answer}");
        dormouse_testkit::eventually(|| group.read().alive == 0);
        let stat = group.read();
        // Neither the upgrade nor what it has become is a request.
        assert_eq!((stat.requests, stat.started), (0, 2), "{stat:?}");
    });
}

#[test]
fn what_hyper_spawns_goes_on_in_its_group() {
    let (told, said) = channel();
    block_on(async {
        Group::new("streams").scope(|| {
            hyper::rt::Executor::execute(&Executor::server(), async move { told.send(current()).unwrap() });
        });
        assert_eq!(said.recv().unwrap(), "streams");
    });
}
