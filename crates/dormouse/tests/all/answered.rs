//! Requests over sockets end as their clients see them.
#![cfg(all(feature = "axum", feature = "tower"))]

use std::convert::Infallible;
use std::future::{pending, ready};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Response, StatusCode};
use axum::middleware::map_response;
use axum::response::IntoResponse as _;
use axum::routing::get;
use dormouse::tower::GroupLayer;
use dormouse::{Group, OutcomesRow};
use dormouse_testkit::{HANG, eventually};
use futures_util::{StreamExt as _, stream};
use tokio::runtime::Runtime;

use crate::outcomes::{by_socket, response, route, runtime, streamed, these_are};

/// A layer around the groups, as a header of the response wants it.
async fn around(response: Response<Body>) -> Response<Body> {
    let how = response.headers().get("x-layer").map(|how| how.to_str().unwrap().to_owned());
    match how.as_deref() {
        Some("not-modified") => StatusCode::NOT_MODIFIED.into_response(),
        Some("not-modified-kept") => (StatusCode::NOT_MODIFIED, response.into_body()).into_response(),
        Some("replaces") => "another page".into_response(),
        Some("reads") => to_bytes(response.into_body(), 100).await.unwrap().into_response(),
        Some("wraps") => Body::from_stream(response.into_body().into_data_stream()).into_response(),
        _ => response,
    }
}

/// A service on a socket, with routes whose bodies are named.
fn served(runtime: &Runtime) -> SocketAddr {
    let layered = |how: &'static str| move || ready(response(200, &[("x-layer", how)], "tea".into()));
    let body = |body: fn() -> Body| move || ready(body());
    let app = Router::new()
        .route("/whole", get(async || "tea"))
        .route("/unread", get(body(|| streamed([Ok("t"), Ok("ea")]))))
        .route("/not-modified", get(layered("not-modified")))
        .route("/kept", get(layered("not-modified-kept")))
        .route("/replaced", get(layered("replaces")))
        .route("/missing", get(async || response(404, &[("x-layer", "replaces")], "no".into())))
        .route("/read", get(layered("reads")))
        .route("/wrapped", get(layered("wraps")))
        .route("/streamed", get(body(|| streamed([Ok("t"), Ok("ea")]))))
        .route("/fails", get(body(|| streamed([Ok("t"), Err("no more")]))))
        .route("/short", get(async || response(200, &[("content-length", "10")], streamed([Ok("tea")]))))
        .route("/endless", get(body(endless)))
        .route("/endless-wrapped", get(async || response(200, &[("x-layer", "wraps")], endless())))
        .route("/slow", get(async || pending::<()>().await))
        .layer(GroupLayer::new(route))
        .layer(map_response(around));
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async { axum::serve(listener, app).await });
    address
}

/// A frame, and then none for ever.
fn endless() -> Body {
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"tea"))]);
    Body::from_stream(first.chain(stream::pending()))
}

#[derive(Clone, Copy)]
enum Client {
    /// Reads to the end.
    Reads,
    /// Hangs up once this has come; if it is empty, once the request has begun.
    Leaves(&'static str),
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

fn call(address: SocketAddr, request: &str, client: Client) {
    let mut stream = connect(address);
    write!(stream, "{request} HTTP/1.1\r\nHost: tea\r\nConnection: close\r\n\r\n").unwrap();
    match client {
        // A body that fails breaks the connection.
        Client::Reads => drop(stream.read_to_end(&mut Vec::new())),
        Client::Leaves("") => eventually(|| Group::new(request).read().alive == 1),
        Client::Leaves(after) => {
            let (mut read, mut buffer) = (Vec::new(), [0; 1024]);
            while !read.windows(after.len()).any(|part| part == after.as_bytes()) {
                let n = stream.read(&mut buffer).unwrap();
                assert!(n > 0, "{request}: the server has hung up");
                read.extend_from_slice(&buffer[..n]);
            }
        }
    }
    drop(stream);
    eventually(|| Group::new(request).read().alive == 0);
}

type Call = (&'static str, Client, fn(&mut OutcomesRow) -> &mut u64);

const CALLS: [Call; 14] = [
    ("GET /whole", Client::Reads, |of| &mut of.completed),
    ("HEAD /whole", Client::Reads, |of| &mut of.completed),
    ("GET /not-modified", Client::Reads, |of| &mut of.completed),
    ("GET /kept", Client::Reads, |of| &mut of.completed),
    ("GET /replaced", Client::Reads, |of| &mut of.completed),
    ("GET /missing", Client::Reads, |of| &mut of.client_error),
    ("GET /read", Client::Reads, |of| &mut of.completed),
    ("GET /wrapped", Client::Reads, |of| &mut of.completed),
    ("GET /streamed", Client::Reads, |of| &mut of.completed),
    ("GET /fails", Client::Reads, |of| &mut of.error),
    ("GET /short", Client::Reads, |of| &mut of.error),
    ("GET /endless", Client::Leaves("tea"), |of| &mut of.cancelled),
    ("GET /endless-wrapped", Client::Leaves("tea"), |of| &mut of.cancelled),
    ("GET /slow", Client::Leaves(""), |of| &mut of.cancelled),
];

#[test]
fn requests_end_as_their_clients_see() {
    let runtime = runtime();
    let address = served(&runtime);
    for (request, client, right) in CALLS {
        for _ in 0..by_socket() {
            call(address, request, client);
        }
        these_are(by_socket(), request, right);
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

#[test]
fn a_client_may_leave_before_the_body() {
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    let runtime = runtime();
    let address = served(&runtime);
    // No byte of a body may be sent; `GET http://tea/unread`.
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let request = frame(HEADERS, 5, 1, b"\x82\x86\x04\x07/unread\x01\x03tea");
    for _ in 0..by_socket() {
        let mut stream = connect(address);
        let bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &no_window, &request].concat();
        stream.write_all(&bytes).unwrap();
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head).unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            stream.read_exact(&mut vec![0; length as usize]).unwrap();
            if head[3] == HEADERS {
                break;
            }
        }
        assert_eq!(Group::new("GET /unread").read().alive, 1, "the body waits");
        drop(stream);
        eventually(|| Group::new("GET /unread").read().alive == 0);
    }
    these_are(by_socket(), "GET /unread", |of| &mut of.cancelled);
}
