//! Connections: how many there are, and how long each may take.
//!
//! | bound | value | against |
//! |---|---|---|
//! | connections | [`MOST`]; a further one takes the place of the oldest stranger | descriptors and memory without end |
//! | the time for a head, also between two requests | [`HEAD`] | heads that come byte by byte |
//! | the length of a head | [`BUFFER`] | memory without end |
//! | the time for which what was sent is not taken | [`TAKE`] | readers that do not read |
//!
//! A stranger is a connection that has not shown the token. A stranger that waits for a request may
//! be closed to make room: so a client that opens connections without end only closes others that
//! wait, and no answer is cut off, but for what is in the server's buffer. At most [`ANSWERED`]
//! strangers are answered at once, so that a client with the token finds a place.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
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

/// Strangers that are answered at once; the connection of a further one is closed.
const ANSWERED: usize = 192;

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

/// Answers requests.
pub(super) trait Answer: Clone + Send + Sync + 'static {
    /// Whether a request has the token.
    fn knows(&self, request: &Request) -> bool;

    fn answer(&self, request: Request) -> impl Future<Output = Response> + Send;
}

/// The connections that are.
#[derive(Debug)]
struct Places {
    free: Arc<Semaphore>,
    strangers: Mutex<Strangers>,
}

#[derive(Debug, Default)]
struct Strangers {
    /// Those that wait for a request, by the number of their wait, and how each is told to leave.
    waiting: BTreeMap<u64, Arc<Notify>>,
    waits: u64,
    answered: usize,
}

impl Strangers {
    fn wait(&mut self, leave: &Arc<Notify>) -> Phase {
        self.waits += 1;
        self.waiting.insert(self.waits, Arc::clone(leave));
        Phase::Waits(self.waits)
    }
}

impl Places {
    /// A place, if need be that of the stranger that has waited longest.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(place);
        }
        let (_, leave) = self.strangers().waiting.pop_first()?;
        leave.notify_one();
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    fn strangers(&self) -> MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection.
#[derive(Debug)]
struct Guest {
    places: Arc<Places>,
    phase: Mutex<Phase>,
    leave: Arc<Notify>,
}

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has shown the token.
    Known,
    /// A stranger that waits for a request, under this number.
    Waits(u64),
    /// A stranger whose request is answered.
    Answered,
}

impl Guest {
    fn new(places: &Arc<Places>) -> Arc<Guest> {
        let (places, leave) = (Arc::clone(places), Arc::new(Notify::new()));
        let phase = places.strangers().wait(&leave);
        Arc::new(Guest { places, phase: Mutex::new(phase), leave })
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to answer a request, which has the token or not. A connection that has to leave gets
    /// no answer, and so nothing is done that nobody hears of.
    fn begin(self: &Arc<Self>, has_token: bool) -> Option<Answering> {
        let mut phase = self.phase();
        if let Phase::Waits(number) = *phase {
            let mut strangers = self.places.strangers();
            strangers.waiting.remove(&number)?;
            *phase = if has_token {
                Phase::Known
            } else if strangers.answered < ANSWERED {
                strangers.answered += 1;
                Phase::Answered
            } else {
                return None;
            };
        }
        Some(Answering(Arc::clone(self)))
    }

    /// It waits for the next request.
    fn wait(&self) {
        let mut phase = self.phase();
        if *phase == Phase::Answered {
            let mut strangers = self.places.strangers();
            strangers.answered -= 1;
            *phase = strangers.wait(&self.leave);
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Phase::Waits(number) = *self.phase() {
            self.places.strangers().waiting.remove(&number);
        }
    }
}

/// A request, until its answer is sent.
struct Answering(Arc<Guest>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// The body of an answer, in pieces: the server takes the next one when those before are sent, but
/// for [`BUFFER`].
struct Sent {
    body: Body,
    rest: Bytes,
    _until_then: Answering,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let most = self.rest.len().min(BUFFER);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(most)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(of.lower() + rest);
        if let Some(upper) = of.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

/// Accepts connections until the end is told, and then until those that are have ended.
pub(super) async fn accept(listener: TcpListener, answer: impl Answer, mut end: watch::Receiver<bool>) {
    let places = Places { free: Arc::new(Semaphore::new(MOST)), strangers: Mutex::default() };
    let places = Arc::new(places);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = end.wait_for(|end| *end) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                // Without a place it is closed here.
                if let Some(place) = places.take().await {
                    let guest = Guest::new(&places);
                    tokio::spawn(talk(stream, answer.clone(), end.clone(), guest, place));
                }
            }
            // A connection that was aborted needs no handling.
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
        let request = request.map(Body::new);
        let answering = guest.begin(answer.knows(&request)).ok_or(io::ErrorKind::ConnectionAborted)?;
        let response = answer.answer(request).await;
        Ok::<_, io::Error>(response.map(|body| Sent { body, rest: Bytes::new(), _until_then: answering }))
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

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn places() -> Arc<Places> {
        Arc::new(Places { free: Arc::new(Semaphore::new(MOST)), strangers: Mutex::default() })
    }

    #[test]
    fn strangers_leave_while_they_wait() {
        let places = places();
        let [asks, waits, knows] = [(); 3].map(|()| Guest::new(&places));
        let answering = asks.begin(false).unwrap();
        drop(knows.begin(true).unwrap());
        let waiting = || places.strangers().waiting.len();
        assert_eq!(waiting(), 1, "neither one that is answered, nor one that is known");
        drop(answering);
        assert_eq!(waiting(), 2);
        let (_, leave) = places.strangers().waiting.pop_first().unwrap();
        assert!(Arc::ptr_eq(&leave, &waits.leave), "the other one has asked since");
        assert!(waits.begin(true).is_none(), "it has to leave");
        assert!(knows.begin(false).is_some(), "it has shown the token before");
        drop(asks.begin(true).unwrap());
        drop((asks, waits, knows));
        assert_eq!((waiting(), places.strangers().answered), (0, 0));
    }

    #[test]
    fn strangers_leave_room_for_the_token() {
        let places = places();
        let guests: Vec<_> = (0..ANSWERED).map(|_| Guest::new(&places)).collect();
        let answered: Vec<_> = guests.iter().map(|guest| guest.begin(false).unwrap()).collect();
        assert!(Guest::new(&places).begin(false).is_none());
        assert!(Guest::new(&places).begin(true).is_some());
        drop(answered);
        assert!(Guest::new(&places).begin(false).is_some());
    }

    #[test]
    fn answers_are_sent_in_pieces() {
        let places = places();
        let guest = Guest::new(&places);
        let whole = vec![7; 2 * BUFFER + 1];
        let mut sent = Sent {
            body: Body::from(whole.clone()),
            rest: Bytes::new(),
            _until_then: guest.begin(false).unwrap(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut got = Vec::new();
        while !sent.is_end_stream() {
            assert_eq!(sent.size_hint().exact(), Some((whole.len() - got.len()) as u64));
            let piece = runtime.block_on(sent.frame()).unwrap().unwrap().into_data().unwrap();
            assert!(piece.len() <= BUFFER, "{}", piece.len());
            assert_eq!(places.strangers().waiting.len(), 0);
            got.extend(piece);
        }
        assert_eq!(got, whole);
        drop(sent);
        assert_eq!(places.strangers().waiting.len(), 1);
    }
}
