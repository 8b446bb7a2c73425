//! WebSockets and streams of frameworks.
#![allow(clippy::unused_async, reason = "handlers of poem are async, and await nothing here")]

use std::convert::Infallible;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};

use axum::Router;
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{MatchedPath, Request};
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use dormouse::axum::WebSocketUpgrade;
use dormouse::tower::GroupLayer;
use dormouse::{Group, carry};
use dormouse_testkit::{HANG, eventually};
use futures_util::{SinkExt as _, Stream, StreamExt as _, stream};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use poem::{Endpoint as _, EndpointExt as _};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tower::Layer as _;
use warp::Filter as _;

use super::here;

/// Runs a server as long as the clients, which run on a thread of their own.
fn with_server<F: Future<Output: Send> + Send + 'static>(
    server: impl FnOnce(TcpListener) -> F,
    clients: impl FnOnce(SocketAddr) + Send + 'static,
) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = tokio::spawn(server(listener));
        tokio::task::spawn_blocking(move || clients(address)).await.expect("clients that are content");
        server.abort();
    });
}

/// Sends a few messages, and returns which group has answered.
fn chats(address: SocketAddr) -> String {
    let stream = TcpStream::connect(address).expect("a server");
    stream.set_read_timeout(Some(HANG)).expect("a timeout");
    let (mut socket, _) = tungstenite::client(format!("ws://{address}/chat"), stream).expect("an upgrade");
    let mut ask = || {
        socket.send("who?".into()).expect("a message");
        socket.read().expect("an answer").into_text().expect("a text").to_string()
    };
    let answers = [ask(), ask()];
    assert_eq!(answers[0], answers[1]);
    answers[0].clone()
}

/// A chat is its group's work, and no request. Whether its upgrade is one depends on what sees it.
fn assert_chats(address: SocketAddr, group: &str, upgrades: u64) {
    assert_eq!(chats(address), group);
    let group = Group::new(group);
    eventually(|| group.read().alive == 0);
    assert_eq!((group.read().requests, group.read().long_lived), (upgrades, 0));
}

async fn chat(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(talk)
}

async fn talk(mut socket: WebSocket) {
    while let Some(Ok(Message::Text(_))) = socket.recv().await {
        let _ = socket.send(here().into()).await;
    }
}

async fn tunnel(request: Request) -> impl IntoResponse {
    tokio::spawn(dormouse::hyper::upgraded(hyper::upgrade::on(request), pass));
    (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "tea")])
}

async fn pass(stream: hyper::upgrade::Upgraded) {
    let _ = TokioIo::new(stream).write_all(here().as_bytes()).await;
}

async fn events() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(stream::iter(0..3).map(|_| Ok(Event::default().data(here()))))
}

#[test]
fn axum_charges_sockets_and_events_to_routes() {
    let groups = GroupLayer::new(|request: &Request| {
        request.extensions().get().map_or("unmatched", MatchedPath::as_str).into()
    });
    let app = Router::<()>::new()
        .route("/chat", any(chat))
        .route("/events", get(events))
        .route("/tunnel", get(tunnel))
        .layer(groups);
    with_server(
        |listener| axum::serve(listener, app).into_future(),
        |address| {
            assert_chats(address, "/chat", 0);
            let mut stream = TcpStream::connect(address).expect("a server");
            let head = "GET /events HTTP/1.1\r\nHost: tea\r\nConnection: close\r\n\r\n";
            std::io::Write::write_all(&mut stream, head.as_bytes()).expect("a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            assert_eq!(answer.matches("data: /events\n").count(), 3, "{answer}");
            let mut stream = TcpStream::connect(address).expect("a server");
            let head = "GET /tunnel HTTP/1.1\r\nHost: tea\r\nConnection: upgrade\r\nUpgrade: tea\r\n\r\n";
            std::io::Write::write_all(&mut stream, head.as_bytes()).expect("a request");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            assert!(answer.ends_with("\r\n\r\n/tunnel"), "{answer}");
            assert_eq!(Group::new("/tunnel").read().requests, 0, "an upgrade");
        },
    );
}

#[test]
fn warp_charges_sockets_to_names() {
    let chat = warp::path!("chat").and(warp::ws()).map(|upgrade: warp::ws::Ws| {
        upgrade.on_upgrade(carry().callback(async |mut socket: warp::ws::WebSocket| {
            while let Some(Ok(message)) = socket.next().await {
                if message.is_text() {
                    let _ = socket.send(warp::ws::Message::text(here())).await;
                }
            }
        }))
    });
    let groups = GroupLayer::new(|request: &http::Request<_>| match request.uri().path() {
        "/chat" => "warp /chat".into(),
        _ => "unmatched".into(),
    });
    let service = TowerToHyperService::new(groups.layer(warp::service(chat)));

    with_server(
        async move |listener| {
            let (stream, _) = listener.accept().await.expect("a client");
            let builder = Builder::new(TokioExecutor::new());
            builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await.map_err(drop)
        },
        |address| assert_chats(address, "warp /chat", 0),
    );
}

#[poem::handler]
fn poem_chat(upgrade: poem::web::websocket::WebSocket) -> impl poem::IntoResponse {
    upgrade.on_upgrade(carry().callback(poem_talk))
}

async fn poem_talk(mut socket: poem::web::websocket::WebSocketStream) {
    while let Some(Ok(poem::web::websocket::Message::Text(_))) = socket.next().await {
        let _ = socket.send(poem::web::websocket::Message::Text(here())).await;
    }
}

#[test]
fn poem_charges_sockets_to_names() {
    let group = Group::new("poem /chat");
    let chat = poem::get(poem_chat)
        .around(move |endpoint, request| group.instrument(async move { endpoint.call(request).await }));
    let app = poem::Route::new().at("/chat", chat);

    with_server(
        |listener| {
            let acceptor = poem::listener::TcpAcceptor::from_tokio(listener).expect("an acceptor");
            poem::Server::new_with_acceptor(acceptor).run(app)
        },
        |address| assert_chats(address, "poem /chat", 1),
    );
}
