//! Connections: how many there are, and how long each may take.
//!
//! | bound | value | against |
//! |---|---|---|
//! | connections | [`MOST`]; a further one takes the place of the oldest stranger | descriptors and memory without end |
//! | the time for a head, also between two requests | [`HEAD`] | heads that come byte by byte |
//! | the length of a head | [`BUFFER`] | memory without end |
//! | the time for which what was sent is not taken | [`TAKE`] | readers that do not read |
//!
//! A stranger is a connection that has not shown the token. A client that opens connections without
//! end, and asks for nothing, closes its own.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

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
    fn answer(&self, request: Request, guest: &Guest) -> impl Future<Output = Response> + Send;
}

/// The connections that are.
#[derive(Debug)]
struct Places {
    free: Arc<Semaphore>,
    /// Those without the token, the oldest first, and how each is told to leave.
    strangers: Mutex<BTreeMap<u64, oneshot::Sender<()>>>,
}

impl Places {
    /// A place, if need be that of a stranger.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(place);
        }
        let (_, leave) = self.strangers().pop_first()?;
        // One that has just gone has left its place, too.
        let _ = leave.send(());
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    fn strangers(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, oneshot::Sender<()>>> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection as its requests know it: a stranger, until it is known.
#[derive(Debug)]
pub(super) struct Guest {
    places: Arc<Places>,
    number: u64,
}

impl Guest {
    /// One of that number, and the moment when it has to leave.
    fn new(places: &Arc<Places>, number: u64) -> (Guest, oneshot::Receiver<()>) {
        let (leave, left) = oneshot::channel();
        places.strangers().insert(number, leave);
        (Guest { places: Arc::clone(places), number }, left)
    }

    /// Has it keep its place: it has shown the token.
    pub(super) fn keep(&self) {
        self.places.strangers().remove(&self.number);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.keep();
    }
}

/// Accepts connections until the end is told, and then until those that are have ended.
pub(super) async fn accept(listener: TcpListener, answer: impl Answer, mut end: watch::Receiver<bool>) {
    let places = Places { free: Arc::new(Semaphore::new(MOST)), strangers: Mutex::default() };
    let places = Arc::new(places);
    let mut number = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = end.wait_for(|end| *end) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Without a place it is closed here.
                if let Some(place) = places.take().await {
                    number += 1;
                    let guest = Guest::new(&places, number);
                    tokio::spawn(talk(stream, answer.clone(), end.clone(), guest, place));
                }
            }
            // One that broke off is nobody's loss.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    drop(listener);
    let _ = places.free.acquire_many(MOST as u32).await;
}

async fn talk(
    stream: TcpStream,
    answer: impl Answer,
    mut end: watch::Receiver<bool>,
    (guest, left): (Guest, oneshot::Receiver<()>),
    _place: OwnedSemaphorePermit,
) {
    // The kernel ends the connection, and with it all that goes on for it.
    let _ = set_tcp_user_timeout(&stream, TAKE.as_millis() as u32);
    let _ = stream.set_nodelay(true);
    let (answer, guest) = (&answer, &guest);
    let service = service_fn(async |request: hyper::Request<Incoming>| {
        Ok::<_, std::convert::Infallible>(answer.answer(request.map(Body::new), guest).await)
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
        Ok(()) = left => true,
        _ = end.wait_for(|end| *end) => false,
    };
    if !is_over {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}
