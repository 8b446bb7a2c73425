//! Connections: how many there are, and how long each may take.
//!
//! | bound | value | against |
//! |---|---|---|
//! | connections | [`MOST`]; a further one takes the place of the oldest stranger | descriptors and memory without end |
//! | the time for a head, also between two requests | [`HEAD`] | heads that come byte by byte |
//! | the length of a head | [`BUFFER`] | memory without end |
//! | the time for which what was sent is not taken | [`TAKE`] | readers that do not read |
//!
//! A stranger is a connection that has not shown the token, and of which no request is answered. So
//! who opens connections without end closes others that wait to ask, and nobody's answer.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

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
    /// The oldest first, and how each is told to leave.
    strangers: Mutex<BTreeMap<u64, Arc<Notify>>>,
}

impl Places {
    /// A place, if need be that of a stranger.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(place);
        }
        let (_, leave) = self.strangers().pop_first()?;
        leave.notify_one();
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    fn strangers(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Notify>>> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection as its requests know it: a stranger, but for requests, and until it is known.
#[derive(Debug)]
pub(super) struct Guest {
    places: Arc<Places>,
    number: u64,
    is_known: AtomicBool,
    leave: Arc<Notify>,
}

impl Guest {
    fn new(places: &Arc<Places>, number: u64) -> Arc<Guest> {
        let (places, leave) = (Arc::clone(places), Arc::new(Notify::new()));
        let guest = Guest { places, number, is_known: AtomicBool::new(false), leave };
        guest.wait();
        Arc::new(guest)
    }

    /// Has it keep its place: it has shown the token.
    pub(super) fn keep(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Begins to answer a request. Without a place any more there is no answer, and so nothing is
    /// done that nobody hears of.
    fn begin(self: &Arc<Self>) -> Option<Answering> {
        let waited = self.places.strangers().remove(&self.number).is_some();
        (waited || self.is_known.load(Ordering::Relaxed)).then(|| Answering(Arc::clone(self)))
    }

    /// It waits for the next request.
    fn wait(&self) {
        if !self.is_known.load(Ordering::Relaxed) {
            self.places.strangers().insert(self.number, Arc::clone(&self.leave));
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.places.strangers().remove(&self.number);
    }
}

/// A request, until its answer is sent.
struct Answering(Arc<Guest>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// The body of an answer.
struct Sent {
    body: Body,
    _until_then: Answering,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
    guest: Arc<Guest>,
    _place: OwnedSemaphorePermit,
) {
    // The kernel ends the connection, and with it all that goes on for it.
    let _ = set_tcp_user_timeout(&stream, TAKE.as_millis() as u32);
    let _ = stream.set_nodelay(true);
    let (answer, guest) = (&answer, &guest);
    let service = service_fn(async |request: hyper::Request<Incoming>| {
        let answering = guest.begin().ok_or(io::ErrorKind::ConnectionAborted)?;
        let response = answer.answer(request.map(Body::new), guest).await;
        Ok::<_, io::Error>(response.map(|body| Sent { body, _until_then: answering }))
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
        () = guest.leave.notified() => true,
        _ = end.wait_for(|end| *end) => false,
    };
    if !is_over {
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}
