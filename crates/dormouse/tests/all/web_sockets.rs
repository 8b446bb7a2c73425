//! WebSockets of axum: what a socket does is charged to its route. It is no request, and the
//! messages of both directions are counted where their bytes can be seen.
#![cfg(all(feature = "axum-ws", feature = "hyper"))]

use crate::happenings;

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use axum::extract::ws::{Message, WebSocket};
use axum::http::HeaderValue;
use axum::http::{Method, Request};
use axum::response::Response;
use axum::routing::{any, get};
use axum::serve::Listener;
use dormouse::axum::WebSocketUpgrade;
use dormouse::tower::GroupLayer;
use dormouse::waits::GroupWaits;
use dormouse::{Group, Waiting};
use dormouse_testkit::{eventually, in_child};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use happenings::{counted, happen, value};

async fn echo(mut socket: WebSocket) {
    while let Some(Ok(Message::Text(text))) = socket.recv().await {
        happen(1);
        let here = Group::current().map_or("none", Group::name);
        let _ = socket.send(format!("{text} {here}").into()).await;
    }
}

async fn talk(upgrade: WebSocketUpgrade) -> Response {
    let mut upgrade = upgrade
        .read_buffer_size(4096)
        .write_buffer_size(0)
        .max_write_buffer_size(1 << 20)
        .max_message_size(100)
        .max_frame_size(100)
        .accept_unmasked_frames(true)
        .protocols(["milk", "tea"]);
    assert_eq!(upgrade.requested_protocols().collect::<Vec<_>>(), ["milk", "tea"]);
    assert_eq!(upgrade.selected_protocol(), Some(&HeaderValue::from_static("milk")));
    upgrade.set_selected_protocol(HeaderValue::from_static("tea"));
    upgrade.on_failed_upgrade(|error| panic!("{error}")).on_upgrade(echo)
}

/// The head of a request for a socket.
const HEAD: &str = "GET /talk HTTP/1.1\r\nHost: tea\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Sec-WebSocket-Protocol: tea, milk\r\n\r\n";

async fn guest(address: SocketAddr) -> TcpStream {
    guest_on(TcpStream::connect(address).await.unwrap(), b"").await
}

/// A guest who sends these bytes before there is a socket.
async fn guest_on<I: AsyncRead + AsyncWrite + Unpin>(mut stream: I, early: &[u8]) -> I {
    stream.write_all(&[HEAD.as_bytes(), early].concat()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    let answer = String::from_utf8(answer).unwrap().to_lowercase();
    assert!(answer.starts_with("http/1.1 101"), "{answer}");
    assert!(answer.contains("sec-websocket-protocol: tea\r\n"), "{answer}");
    stream
}

#[test]
fn a_socket_is_its_routes_and_no_request() {
    let (group, _counting) = counted("a socket");
    let app = Router::<()>::new().route("/talk", any(talk)).route("/", get(async || "tea"));
    let app = app.layer(GroupLayer::new(|_: &axum::extract::Request| "a socket".into()));
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(axum::serve(listener, app).into_future());
        let mut guests = Vec::new();
        for _ in 0..3 {
            guests.push(guest(address).await);
        }
        for guest in &mut guests {
            for _ in 0..10 {
                guest.write_all(b"\x81\x02hi").await.unwrap();
                let mut answer = [0; 13];
                guest.read_exact(&mut answer).await.unwrap();
                assert_eq!(answer, *b"\x81\x0bhi a socket");
            }
        }
        let stat = group.read();
        assert_eq!((value(group), stat.requests, stat.alive, stat.long_lived), (30, 0, 3, 3));
        drop(guests);
        tokio::task::spawn_blocking(move || eventually(|| group.read().alive == 0)).await.unwrap();
        assert_eq!((group.read().requests, group.read().long_lived), (0, 0));
    });
}

/// Answers each message by a part of one message, a pong, and as many messages in one write.
async fn many(socket: WebSocket) {
    let (mut send, mut receive) = socket.split();
    while let Some(Ok(message)) = receive.next().await {
        let Message::Text(text) = message else { continue };
        let _ = send.send(Message::Pong("not a message".into())).await;
        for _ in 0..text.len() {
            let _ = send.feed(Message::Text(text.clone())).await;
        }
        let _ = send.flush().await;
    }
}

/// How a service changes the bytes of its connections, as TLS does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scrambles {
    Nothing,
    /// Above dormouse's stream, which sees only what is scrambled.
    Above,
    /// Below it.
    Below,
    /// Nothing, and there is no stream of dormouse's.
    Unseen,
}

/// A stream whose bytes are not those that its user reads and writes.
struct Scrambled<I>(I);

fn scramble(bytes: &mut [u8]) {
    for byte in bytes {
        *byte ^= 0x55;
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Scrambled<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = to.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(cx, to))?;
        scramble(&mut to.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Scrambled<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, of: &[u8]) -> Poll<std::io::Result<usize>> {
        let mut of = of.to_vec();
        scramble(&mut of);
        Pin::new(&mut self.0).poll_write(cx, &of)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl<L: Listener> Listener for Scrambled<L> {
    type Io = Scrambled<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, L::Addr) {
        let (io, address) = self.0.accept().await;
        (Scrambled(io), address)
    }

    fn local_addr(&self) -> std::io::Result<L::Addr> {
        self.0.local_addr()
    }
}

/// A service whose route is in that group, below another layer.
async fn chat(group: &'static str, scrambles: Scrambles) -> SocketAddr {
    let upgrade = async |upgrade: WebSocketUpgrade| {
        upgrade.accept_unmasked_frames(true).protocols(["tea"]).on_upgrade(many)
    };
    let app = Router::<()>::new().route("/talk", any(upgrade));
    let app = app.layer(GroupLayer::new(move |_: &axum::extract::Request| group.into()));
    let app = app.layer(GroupLayer::new(|_: &axum::extract::Request| "around sockets".into()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Group::new("connections of sockets");
    match scrambles {
        Scrambles::Unseen => drop(tokio::spawn(axum::serve(listener, app).into_future())),
        Scrambles::Nothing => {
            let listener = dormouse::axum::listener(listener, connections);
            tokio::spawn(axum::serve(listener, app).into_future());
        }
        Scrambles::Above => {
            let listener = Scrambled(dormouse::axum::listener(listener, connections));
            tokio::spawn(axum::serve(listener, app).into_future());
        }
        Scrambles::Below => {
            let listener = dormouse::axum::listener(Scrambled(listener), connections);
            tokio::spawn(axum::serve(listener, app).into_future());
        }
    }
    address
}

/// Messages and bytes that a group has sent, the gaps between; the same of those that it has
/// received.
fn counted_of(group: &str) -> [u64; 6] {
    let GroupWaits { streams, gaps, received_gaps, traffic, .. } = Group::new(group).read_waits();
    let (messages, message_bytes) = (traffic.messages, traffic.message_bytes);
    [streams.frames, streams.bytes, gaps.count(), messages, message_bytes, received_gaps.count()]
}

/// Three messages of six bytes, and the answers to them.
async fn talk_to(guest: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    for letters in ["a", "bb", "ccc"] {
        let n = letters.len();
        guest.write_all(&[&[0x81, n as u8], letters.as_bytes()].concat()).await.unwrap();
        answers_to(guest, letters).await;
    }
}

async fn answers_to(guest: &mut (impl AsyncRead + Unpin), letters: &str) {
    let n = letters.len();
    let mut answers = vec![0; 2 + "not a message".len() + n * (2 + n)];
    guest.read_exact(&mut answers).await.unwrap();
    assert!(answers.ends_with(letters.as_bytes()));
}

/// The figures of three messages and their answers, for sockets whose gaps are all known.
const TALK: [u64; 6] = [6, 14, 2, 3, 6, 2];

/// Runs a test alone, on one thread: nobody else has times taken, and what the service did for an
/// answer is done when its client has that.
#[track_caller]
fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    in_child(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(test());
    });
}

#[test]
fn messages_of_both_directions_are_counted() {
    run(async || {
        let name = "counted messages";
        let address = chat(name, Scrambles::Nothing).await;
        let mut early = guest(address).await;
        talk_to(&mut early).await;
        assert_eq!(counted_of(name), [0; 6], "times are not taken");
        let waiting = Waiting::start().unwrap();
        let mut late = guest(address).await;
        talk_to(&mut early).await;
        talk_to(&mut late).await;
        // From one write to the next.
        assert_eq!(counted_of(name), TALK.map(|n| 2 * n));
        drop(waiting);
        let _waiting = Waiting::start().unwrap();
        talk_to(&mut early).await;
        assert_eq!(counted_of(name), TALK.map(|n| 3 * n), "nothing is known of the gap in between");
        for other in ["around sockets", "connections of sockets"] {
            assert_eq!(counted_of(other), [0; 6], "{other}");
        }
        let mut unknown = guest(chat("other streams", Scrambles::Unseen).await).await;
        talk_to(&mut unknown).await;
        assert_eq!(counted_of("other streams"), [0; 6], "nothing is seen of the stream");
    });
}

#[test]
fn parts_and_pings_are_no_messages() {
    run(async || {
        let name = "messages in parts";
        let _waiting = Waiting::start().unwrap();
        let mut guest = guest(chat(name, Scrambles::Nothing).await).await;
        // Masked by zeros: a part, a ping, and the end of the message.
        let frames = [&b"\x01\x81\0\0\0\0t"[..], b"\x89\x84\0\0\0\0ping", b"\x80\x81\0\0\0\0o"];
        for byte in frames.concat() {
            guest.write_all(&[byte]).await.unwrap();
        }
        let mut pong = [0; 6];
        guest.read_exact(&mut pong).await.unwrap();
        assert_eq!(pong, *b"\x8a\x04ping");
        answers_to(&mut guest, "to").await;
        assert_eq!(counted_of(name)[3..], [1, 2, 0]);
    });
}

#[test]
fn a_hasty_client_is_not_followed() {
    run(async || {
        let name = "early messages";
        let _waiting = Waiting::start().unwrap();
        let stream = TcpStream::connect(chat(name, Scrambles::Nothing).await).await.unwrap();
        let mut guest = guest_on(stream, b"\x81\x01a").await;
        answers_to(&mut guest, "a").await;
        talk_to(&mut guest).await;
        assert_eq!(counted_of(name), [1 + 6, 1 + 14, 1 + 2, 0, 0, 0], "what is sent is known");
    });
}

#[test]
fn messages_are_seen_above_tls_and_not_below() {
    run(async || {
        let _waiting = Waiting::start().unwrap();
        for (name, scrambles, counted) in
            [("above tls", Scrambles::Below, TALK), ("below tls", Scrambles::Above, [0; 6])]
        {
            let stream = Scrambled(TcpStream::connect(chat(name, scrambles).await).await.unwrap());
            let mut guest = guest_on(stream, b"").await;
            talk_to(&mut guest).await;
            let stat = Group::new(name).read();
            assert_eq!((stat.requests, stat.long_lived), (0, 1), "{name}");
            assert_eq!(counted_of(name), counted, "{name}");
        }
    });
}

#[test]
fn sockets_over_http_2_are_not_followed() {
    run(async || {
        let name = "sockets of http/2";
        let _waiting = Waiting::start().unwrap();
        let address = chat(name, Scrambles::Nothing).await;
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut send, connection) =
            http2::handshake::<_, _, Body>(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let connect = || {
            let request = Request::builder().method(Method::CONNECT).uri(format!("http://{address}/talk"));
            let request = request.header("sec-websocket-version", "13");
            request.header("sec-websocket-protocol", "tea")
        };
        // A CONNECT that is refused is a request.
        let refused = send.send_request(connect().body(Body::empty()).unwrap()).await.unwrap();
        assert!(refused.status().is_client_error(), "{refused:?}");
        drop(refused);
        let mut sockets = Vec::new();
        for _ in 0..2 {
            let protocol = hyper::ext::Protocol::from_static("websocket");
            let request = connect().extension(protocol).body(Body::empty()).unwrap();
            let response = send.send_request(request).await.unwrap();
            assert_eq!(response.status(), 200);
            sockets.push(TokioIo::new(hyper::upgrade::on(response).await.unwrap()));
        }
        for socket in &mut sockets {
            talk_to(socket).await;
        }
        let stat = Group::new(name).read();
        assert_eq!((stat.requests, stat.outcomes.client_error, stat.long_lived), (1, 1, 2), "{stat:?}");
        assert_eq!(counted_of(name), [0; 6], "several streams share the connection");
        drop((sockets, send));
        while Group::new(name).read().alive > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(Group::new(name).read().requests, 1);
    });
}
