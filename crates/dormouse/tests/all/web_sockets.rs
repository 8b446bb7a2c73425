//! WebSockets of axum: what a socket does is charged to its route. It is no request, and the
//! messages that it sends are counted.
#![cfg(feature = "axum-ws")]

use crate::happenings;

use axum::Router;
use axum::extract::ws::{Message, WebSocket};
use axum::http::HeaderValue;
use axum::response::Response;
use axum::routing::{any, get};
use dormouse::axum::WebSocketUpgrade;
use dormouse::tower::GroupLayer;
use dormouse::{Group, Waiting};
use dormouse_testkit::eventually;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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

async fn guest(address: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "GET /talk HTTP/1.1\r\nHost: tea\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Sec-WebSocket-Protocol: tea, milk\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
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
    while let Some(Ok(Message::Text(text))) = receive.next().await {
        let _ = send.send(Message::Pong("not a message".into())).await;
        for _ in 0..text.len() {
            let _ = send.feed(Message::Text(text.clone())).await;
        }
        let _ = send.flush().await;
    }
}

/// A service whose route is in that group, below another layer, with streams of dormouse or not.
async fn chat(group: &'static str, is_received: bool) -> std::net::SocketAddr {
    let upgrade = async |upgrade: WebSocketUpgrade| {
        upgrade.accept_unmasked_frames(true).protocols(["tea"]).on_upgrade(many)
    };
    let app = Router::<()>::new().route("/talk", any(upgrade));
    let app = app.layer(GroupLayer::new(move |_: &axum::extract::Request| group.into()));
    let app = app.layer(GroupLayer::new(|_: &axum::extract::Request| "around sockets".into()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    if is_received {
        let listener = dormouse::axum::listener(listener, Group::new("connections of sockets"));
        tokio::spawn(axum::serve(listener, app).into_future());
    } else {
        tokio::spawn(axum::serve(listener, app).into_future());
    }
    address
}

#[test]
fn messages_that_a_socket_sends_are_counted() {
    const LETTERS: [&str; 3] = ["a", "bb", "ccc"];
    let sent = |group: &str| {
        let waits = Group::new(group).read_waits();
        (waits.streams.frames, waits.streams.bytes, waits.gaps.count())
    };
    let talk = async |guest: &mut TcpStream| {
        for letters in LETTERS {
            let n = letters.len();
            guest.write_all(&[&[0x81, n as u8], letters.as_bytes()].concat()).await.unwrap();
            let mut answers = vec![0; 2 + "not a message".len() + n * (2 + n)];
            guest.read_exact(&mut answers).await.unwrap();
            assert!(answers.ends_with(letters.as_bytes()));
        }
    };
    tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap().block_on(async {
        let address = chat("counted messages", true).await;
        let mut early = guest(address).await;
        talk(&mut early).await;
        assert_eq!(sent("counted messages"), (0, 0, 0), "times are not taken");
        let waiting = Waiting::start().unwrap();
        let mut late = guest(address).await;
        talk(&mut early).await;
        talk(&mut late).await;
        // From one write to the next.
        assert_eq!(sent("counted messages"), (2 * 6, 2 * 14, 2 * 2));
        drop(waiting);
        let _waiting = Waiting::start().unwrap();
        talk(&mut early).await;
        assert_eq!(
            sent("counted messages"),
            (3 * 6, 3 * 14, 3 * 2),
            "nothing is known of the gap in between"
        );
        for other in ["around sockets", "connections of sockets"] {
            assert_eq!(sent(other), (0, 0, 0), "{other}");
        }
        let mut unknown = guest(chat("other streams", false).await).await;
        talk(&mut unknown).await;
        assert_eq!(sent("other streams"), (0, 0, 0), "nothing is seen of the stream");
    });
}
