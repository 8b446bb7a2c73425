//! Connections: how many there are, and how long each may take.
//!
//! | bound | value | against |
//! |---|---|---|
//! | connections | [`MOST`]; a further one is closed | descriptors and memory without end |
//! | the time for a head, also between two requests | [`HEAD`] | heads that come byte by byte |
//! | the length of a head | [`BUFFER`] | memory without end |
//! | the time for which what was sent is not taken | [`TAKE`] | readers that do not read |

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Connections at once.
const MOST: usize = 256;

/// How long a head may take.
const HEAD: Duration = Duration::from_secs(15);

/// The most bytes of a head, and of an answer that wait in the server.
const BUFFER: usize = 32 * 1024;

/// The most fields of a head.
const FIELDS: usize = 64;

/// How long a peer may take nothing of what was sent.
const TAKE: Duration = Duration::from_secs(30);

/// How long to wait when the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers a request.
pub(super) trait Answer: Clone + Send + Sync + 'static {
    fn answer(&self, request: Request) -> impl Future<Output = Response> + Send;
}

/// Accepts connections until the end is told, and then until those that are have ended.
pub(super) async fn accept(listener: TcpListener, answer: impl Answer, mut end: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = end.wait_for(|end| *end) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Without a place it is closed here.
                if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    tokio::spawn(talk(stream, answer.clone(), end.clone(), place));
                }
            }
            // One that broke off is nobody's loss.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    drop(listener);
    let _ = places.acquire_many(MOST as u32).await;
}

async fn talk(
    stream: TcpStream,
    answer: impl Answer,
    mut end: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    // The kernel ends the connection, and with it all that goes on for it.
    let _ = set_tcp_user_timeout(&stream, TAKE.as_millis() as u32);
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answer = answer.clone();
        async move { Ok::<_, std::convert::Infallible>(answer.answer(request.map(Body::new)).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .max_headers(FIELDS)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let is_over = tokio::select! {
        _ = connection.as_mut() => true,
        _ = end.wait_for(|end| *end) => false,
    };
    if !is_over {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}
