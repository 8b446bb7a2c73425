//! Groups of connections: of `axum::serve`, and of what hyper spawns.
#![cfg(all(feature = "axum", feature = "hyper"))]

use std::net::SocketAddr;
use std::sync::mpsc::channel;

use axum::body::{Body, Bytes, to_bytes};
use axum::routing::{get, post};
use axum::{Router, extract::ConnectInfo, http::StatusCode};
use dormouse::waits::{TaskState, Traffic, living};
use dormouse::{Group, hyper::Executor, tower::GroupLayer};
use dormouse_testkit::eventually;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
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

/// Sends a request and takes as many bytes of the answer as were announced. Returns the bytes of
/// both.
async fn carry(guest: &mut TcpStream, body: usize) -> (u64, u64) {
    let request = format!("POST / HTTP/1.1\r\nHost: tea\r\nContent-Length: {body}\r\n\r\n");
    let request = [request.into_bytes(), vec![b'+'; body]].concat();
    guest.write_all(&request).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(guest.read_u8().await.unwrap());
    }
    let head = String::from_utf8(answer.clone()).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut rest = vec![0; length.parse().unwrap()];
    guest.read_exact(&mut rest).await.unwrap();
    (request.len() as u64, (answer.len() + rest.len()) as u64)
}

async fn bytes_are_counted() {
    let app = || Router::<()>::new().route("/", post(async |body: Bytes| body));
    let traffic = |group: Group| {
        let Traffic { read, written, .. } = group.read_waits().traffic;
        (read, written)
    };
    let [by_axum, by_hyper, plain] =
        ["bytes by axum", "bytes by hyper", "bytes of plain sockets"].map(Group::new);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let axums = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(dormouse::axum::listener(listener, by_axum), app()).into_future());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hypers = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let stream = TokioIo::new(dormouse::tokio::received(stream));
            let service = TowerToHyperService::new(app());
            tokio::spawn(by_hyper.connection().instrument(async move {
                Builder::new(Executor::server()).serve_connection(stream, service).await
            }));
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plains = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(app());
            tokio::spawn(plain.connection().instrument(async move {
                Builder::new(Executor::server()).serve_connection(TokioIo::new(stream), service).await
            }));
        }
    });
    for (address, group, is_seen) in
        [(axums, by_axum, true), (hypers, by_hyper, true), (plains, plain, false)]
    {
        let mut guest = TcpStream::connect(address).await.unwrap();
        carry(&mut guest, 10).await;
        assert_eq!(traffic(group), (0, 0), "times are not taken");
        let _waiting = dormouse::Waiting::start().unwrap();
        let mut other = TcpStream::connect(address).await.unwrap();
        let (mut sent, mut received) = (0, 0);
        // Within one read and write, and within many.
        for body in [0, 100, 300_000] {
            for guest in [&mut guest, &mut other] {
                let (more, answered) = carry(guest, body).await;
                (sent, received) = (sent + more, received + answered);
            }
        }
        let seen = if is_seen { (sent, received) } else { (0, 0) };
        assert_eq!(traffic(group), seen, "{}", group.name());
    }
}

#[test]
fn bytes_of_connections_are_counted() {
    // Alone, on one thread: nobody else has times taken, and what the service did for an answer is
    // done when its client has that.
    dormouse_testkit::in_child(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(bytes_are_counted());
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
fn a_connections_own_group_counts_streams() {
    block_on(async {
        let group = Group::new("connections and requests by HTTP/2");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/", listener.local_addr().unwrap());
        let app = Router::<()>::new().route("/", get(async || "tea."));
        let app = app.layer(GroupLayer::new(move |_: &axum::extract::Request| group.name().into()));
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(app);
            tokio::spawn(group.connection().instrument(async move {
                let _closed =
                    Builder::new(Executor::server()).serve_connection(TokioIo::new(stream), service).await;
            }));
        });
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
        for _ in 0..3 {
            let answer = client.get(uri.parse().unwrap()).await.unwrap();
            assert_eq!(to_bytes(Body::new(answer.into_body()), 100).await.unwrap(), "tea.");
        }
        eventually(|| group.read().alive == 1);
        let read = group.read();
        // A connection, and a stream and a request for each answer.
        assert_eq!((read.started, read.requests, read.long_lived), (7, 3, 1), "{read:?}");
    });
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
