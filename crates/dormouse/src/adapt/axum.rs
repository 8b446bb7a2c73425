//! `axum::serve` with a group for its connections, and a route that answers with profiles.
//!
//! # Connections
//!
//! `axum::serve` spawns a task for each connection itself, by plain `tokio::spawn`. A program can
//! choose only the stream below the task. So this listener charges to the group what its streams
//! read and write, and their close; `alive` of the group is the number of open connections, which
//! are no requests ([`Group::connection`]).
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

#[cfg(feature = "axum-ws")]
mod ws;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::axum::Router;
use ::axum::http::header::ACCEPT;
use ::axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use ::axum::response::{IntoResponse, Response};
use ::axum::routing::get;
use ::axum::serve::{Listener, ListenerExt, TapIo};
use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::core::group::Group;
use crate::core::task::Task;
use crate::features::metrics::Metrics;
use crate::features::profile::web::respond;
use crate::web::WebAnswer;

#[cfg(feature = "axum-ws")]
pub use self::ws::WebSocketUpgrade;

/// A listener whose connections are in a group; the result of [`listener`]. Through axum's own
/// wrapper around it, handlers get `ConnectInfo` of the address as before.
pub type Connections<L> = TapIo<GroupListener<L>, fn(&mut GroupIo<<L as Listener>::Io>)>;

/// Charges what the connections of `listener` read and write to `group`; see the [module](self).
///
/// ```no_run
/// # async fn serve(app: axum::Router) -> std::io::Result<()> {
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
/// axum::serve(dormouse::axum::listener(listener, dormouse::Group::new("connections")), app).await
/// # }
/// ```
pub fn listener<L: Listener>(listener: L, group: Group) -> Connections<L> {
    GroupListener { listener, group }.tap_io(|_| ())
}

/// A listener whose streams are in a group; see [`listener`].
#[derive(Debug)]
pub struct GroupListener<L> {
    listener: L,
    group: Group,
}

impl<L: Listener> Listener for GroupListener<L> {
    type Io = GroupIo<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, L::Addr) {
        let (io, address) = self.listener.accept().await;
        (GroupIo { io: Some(io), task: self.group.connection() }, address)
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

/// A stream whose reads, writes and close are a task of a group; see [`listener`].
#[derive(Debug)]
pub struct GroupIo<I> {
    // `None` once dropped, which happens inside the group.
    io: Option<I>,
    task: Task,
}

impl<I: Unpin> GroupIo<I> {
    /// The stream keeps a waker of the task's: so a connection that waits for its client is a task
    /// that somebody will wake.
    fn charged<T>(
        &mut self,
        cx: &mut Context<'_>,
        f: impl FnOnce(Pin<&mut I>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Self { io, task } = self;
        match io {
            Some(io) => task.poll_with(cx, |cx| f(Pin::new(io), cx)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl<I> Drop for GroupIo<I> {
    fn drop(&mut self) {
        let Self { io, task } = self;
        task.run_drop(|| *io = None);
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for GroupIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.charged(cx, |io, cx| io.poll_read(cx, buffer))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for GroupIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.charged(cx, |io, cx| io.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.charged(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.charged(cx, AsyncWrite::poll_shutdown)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.charged(cx, |io, cx| io.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.as_ref().is_some_and(AsyncWrite::is_write_vectored)
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
    Router::new()
        .route("/debug/pprof/", get(answer))
        .route("/debug/pprof/symbol", get(answer).post(answer))
        .route("/debug/pprof/{*profile}", get(answer))
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
