//! Handlers in groups, `axum::serve` with a group for its connections, and routes that answer with
//! profiles and metrics.
//!
//! # Handlers
//!
//! [`handler`](handler()) puts one handler in a group.
//! [`GroupLayer`](crate::tower::GroupLayer) does so for a whole router, by the route of each
//! request.
//!
//! # Connections
//!
//! `axum::serve` spawns a task for each connection itself, by plain `tokio::spawn`. A program can
//! choose only the stream below the task. So this listener charges to the group what its streams
//! read and write, and their close, except that a route in a group pays for the writing of its
//! response over HTTP/1; `alive` of the group is the number of open connections, which
//! are no requests ([`Group::connection`]). The latency of a request begins when the kernel
//! received it ([`tokio::connection`](crate::tokio::connection)).
//!
//! With small answers that is two thirds of the cost of a connection's task. The rest, hyper's own
//! work on the bytes, stays in no group, unless the program is built with `--cfg tokio_unstable`
//! and groups tasks by the place of their spawn, or accepts connections itself
//! (`dormouse::hyper::Executor` shows how).
//!
//! ```no_run
//! # async fn serve(app: axum::Router) -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! let connections = dormouse::Group::new("connections");
//! axum::serve(dormouse::axum::listener(listener, connections), app).await
//! # }
//! ```
//!
//! # WebSockets
//!
//! [`WebSocketUpgrade`] takes the place of axum's extractor (feature `axum-ws`).
//!
//! # Profiles
//!
//! ```no_run
//! # let app = axum::Router::<()>::new();
//! let app = app.merge(dormouse::axum::pprof());
//! # let _ = app;
//! ```
//!
//! Then `go tool pprof http://HOST:PORT/debug/pprof/profile?seconds=10` shows which function uses
//! the CPU time of which group; [`profile::web`](crate::profile::web) has the other paths, and the
//! advice on access.
//!
//! # Metrics
//!
//! ```no_run
//! use dormouse::metrics::{Metrics, MetricsSpec};
//! # let app = axum::Router::<()>::new();
//! let app = app.merge(dormouse::axum::metrics(Metrics::start(&MetricsSpec::new().waits())?));
//! # let _ = app;
//! # Ok::<(), dormouse::metrics::MetricsError>(())
//! ```

mod handler;
#[cfg(feature = "axum-ws")]
mod ws;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::axum::Router;
use ::axum::http::header::ACCEPT;
use ::axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use ::axum::response::{IntoResponse, Response};
use ::axum::routing::get;
use ::axum::serve::{IncomingStream, Listener, ListenerExt, TapIo};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::arrived::Arrived;
use super::cloned::ClonedFor;
use super::connection::{ListenerStamps, ServedStream};
use crate::core::arrival::note;
use crate::core::group::Group;
use crate::features::metrics::Metrics;
use crate::features::profile::web::respond;
use crate::web::WebAnswer;

pub use self::handler::{GroupHandler, GroupHandlerFuture, handler};
#[cfg(feature = "axum-ws")]
pub use self::ws::WebSocketUpgrade;

/// A listener whose connections are in a group; the result of [`listener`]. Through axum's own
/// wrapper around it, handlers get `ConnectInfo` of the address as before.
pub type Connections<L> = TapIo<GroupListener<L>, fn(&mut ServedStream<<L as Listener>::Io>)>;

/// Charges what the connections of `listener` read and write to `group`; see the [module](self).
///
/// ```no_run
/// # async fn serve(app: axum::Router) -> std::io::Result<()> {
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// axum::serve(dormouse::axum::listener(listener, dormouse::Group::new("connections")), app).await
/// # }
/// ```
///
/// # Cost
///
/// As of [`tokio::connection`](crate::tokio::connection). While times are taken, the kernel also
/// stamps what comes before a connection is accepted, if `listener` is tokio's `TcpListener`: two
/// system calls in all.
pub fn listener<L: Listener>(listener: L, group: Group) -> Connections<L> {
    GroupListener { listener, group, stamps: ListenerStamps::default() }.tap_io(|_| ())
}

/// A listener whose streams are in a group; see [`listener`].
#[derive(Debug)]
pub struct GroupListener<L> {
    listener: L,
    group: Group,
    stamps: ListenerStamps,
}

impl<L: Listener> Listener for GroupListener<L> {
    type Io = ServedStream<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, L::Addr) {
        self.stamps.follow(&self.listener);
        let (io, address) = self.listener.accept().await;
        (self.stamps.accepted(io, self.group), address)
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

/// Serves `app` with latencies of HTTP/2 that begin when the request came, too: `axum::serve`
/// spawns a task for each of its streams, which has no access to the connection. HTTP/1 does not
/// need it.
///
/// ```no_run
/// # async fn serve(app: axum::Router) -> std::io::Result<()> {
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// let listener = dormouse::axum::listener(listener, dormouse::Group::new("connections"));
/// axum::serve(listener, dormouse::axum::streams(app)).await
/// # }
/// ```
///
/// # Cost
///
/// While times are not taken, a sleeping instruction for each request.
pub fn streams<M>(app: M) -> Streams<M> {
    Streams(app)
}

/// Makes the service of a connection; see [`streams`].
#[derive(Debug, Clone)]
pub struct Streams<M>(M);

impl<'a, M, L> Service<IncomingStream<'a, L>> for Streams<M>
where
    M: Service<IncomingStream<'a, L>>,
    L: Listener,
{
    type Response = StreamService<M::Response>;
    type Error = M::Error;
    type Future = MakeStreams<M::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), M::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, stream: IncomingStream<'a, L>) -> Self::Future {
        MakeStreams { made: self.0.call(stream) }
    }
}

pin_project! {
    /// The future of the service of a connection; see [`streams`].
    #[derive(Debug)]
    pub struct MakeStreams<F> {
        #[pin]
        made: F,
    }
}

impl<F: Future<Output = Result<S, E>>, S, E> Future for MakeStreams<F> {
    type Output = Result<StreamService<S>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().made.poll(cx).map_ok(|inner| StreamService { inner, cloned_for: ClonedFor::default() })
    }
}

/// The service of a connection; see [`streams`].
#[derive(Debug, Clone)]
pub struct StreamService<S> {
    inner: S,
    cloned_for: ClonedFor,
}

impl<S: Service<R>, R> Service<R> for StreamService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Arrived<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let arrival = self.cloned_for.take();
        if arrival.is_some() {
            note(arrival);
        }
        Arrived::new(self.inner.call(request), arrival)
    }
}

/// The routes below `/debug/pprof/`, to be merged into a program's own; see the [module](self).
///
/// ```
/// let app: axum::Router = axum::Router::new().merge(dormouse::axum::pprof());
/// // go tool pprof http://127.0.0.1:8080/debug/pprof/profile?seconds=5
/// # let _ = app;
/// ```
pub fn pprof<S: Clone + Send + Sync + 'static>() -> Router<S> {
    // Without a route of its own, HEAD would be GET: a profile that no client receives.
    let get = || get(answer).head(refuse);
    Router::new()
        .route("/debug/pprof/", get())
        .route("/debug/pprof/symbol", get().post(answer))
        .route("/debug/pprof/{*profile}", get())
}

/// The route `/metrics`, to be merged into a program's own; see the [module](self). Figures are
/// counted as long as the router exists.
///
/// ```
/// use dormouse::metrics::{Metrics, MetricsSpec};
///
/// let metrics = Metrics::start(&MetricsSpec::new())?;
/// let app: axum::Router = axum::Router::new().merge(dormouse::axum::metrics(metrics));
/// # let _ = app;
/// # Ok::<(), dormouse::metrics::MetricsError>(())
/// ```
pub fn metrics<S: Clone + Send + Sync + 'static>(metrics: Metrics) -> Router<S> {
    let metrics = Arc::new(metrics);
    let answer = async move |headers: HeaderMap| {
        let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let accept = accept.collect::<Vec<_>>().join(",");
        Metrics::respond(Arc::clone(&metrics), Some(&accept)).await
    };
    Router::new().route("/metrics", get(answer))
}

/// If the client hangs up, this is dropped, and the profile ends.
async fn answer(uri: Uri) -> WebAnswer {
    respond(uri.path_and_query().map_or(uri.path(), |all| all.as_str())).await
}

async fn refuse() -> WebAnswer {
    WebAnswer::text(405, "profiles are got by GET")
}

impl IntoResponse for WebAnswer {
    fn into_response(self) -> Response {
        // Ours are all valid.
        let status = StatusCode::from_u16(self.status).unwrap_or_default();
        let mut response = (status, self.body).into_response();
        // In place of the type that bytes have.
        for (name, value) in self.headers {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        response
    }
}
