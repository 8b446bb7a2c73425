//! A `tower` layer: each request is charged to the group of its route, with the body of its
//! response.
//!
//! The service's `call`, the future of its response and the frames of the response's body are one
//! task, on whichever threads they run. It begins when the request came, as far as that is known
//! ([`Group::request`](crate::Group::request)), and ends when the body does, or when the server
//! drops it.
//! Its outcome is that of the response's status, of gRPC's status in headers or trailers, or of the
//! body: `cancelled` if that is dropped before its end while it is sent
//! (`docs/design/outcomes.md`).
//! `poll_ready` is passed through uncharged, because it belongs to no request. Writing the response
//! to the socket is charged to the group, too, if the stream of the connection is dormouse's
//! (`dormouse::tokio::ServedStream`) and the protocol is HTTP/1: where several
//! requests share a connection at a time, the connection's task pays.
//!
//! # Bound
//!
//! A name may come from what a client sends. So a layer makes a limited number of groups (64, or
//! [`GroupLayer::with_bound`]); requests with further names are charged to `other`. (If several
//! names come for the last place at the same moment, each makes a group, and all but one remain
//! unused.) Only the first [`MAX_NAME`](crate::MAX_NAME) bytes of a name count.
//!
//! ```
//! use axum::{Router, extract::{MatchedPath, Request}, routing::get};
//! use dormouse::tower::GroupLayer;
//!
//! let layer = GroupLayer::new(|request: &Request| {
//!     // Not the method as it comes, which a client may invent.
//!     request.extensions().get().map_or("unmatched", MatchedPath::as_str).to_owned().into()
//! });
//! let router: Router = Router::new().route("/menu", get(async || "tea")).layer(layer);
//! # let _ = router;
//! ```

mod answered;
mod body;
mod caller;
mod calls;
mod metrics;
mod pprof;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use self::caller::Caller;
use super::cloned::ClonedFor;
use super::groups::Groups;
use crate::core::results::InstrumentedResult;
use crate::core::task::Task;

#[cfg(feature = "axum")]
pub(super) use self::body::grouped;
pub(super) use self::body::sending;

pub use self::answered::Answered;
pub use self::caller::{Traceparent, Untraced};
pub use self::calls::{PeerBody, PeerLayer, PeerResponse, PeerService, calls};
pub use self::metrics::MetricsService;
pub use self::pprof::PprofService;
pub use super::body::{GroupBody, GroupResponse};
pub use super::groups::DEFAULT_BOUND;

/// Charges each request to the group that a function names, including the body of its response; see
/// the [module](self).
///
/// ```
/// use axum::{Router, extract::{MatchedPath, Request}, routing::get};
/// use dormouse::tower::GroupLayer;
///
/// let groups = GroupLayer::new(|request: &Request| {
///     request.extensions().get().map_or("unmatched", MatchedPath::as_str).to_owned().into()
/// });
/// let app: Router = Router::new().route("/menu", get(async || "tea")).layer(groups);
/// # let _ = app;
/// ```
///
/// The type can be named where the function captures nothing, so that several routers share it:
///
/// ```
/// use std::borrow::Cow;
///
/// use axum::{Router, extract::{MatchedPath, Request}, routing::get};
/// use dormouse::tower::GroupLayer;
///
/// fn groups() -> GroupLayer<fn(&Request) -> Cow<'_, str>> {
///     GroupLayer::new(|request| {
///         request.extensions().get().map_or("unmatched", MatchedPath::as_str).into()
///     })
/// }
///
/// let shop: Router = Router::new().route("/menu", get(async || "tea")).layer(groups());
/// let admin: Router = Router::new().route("/stock", get(async || "cups")).layer(groups());
/// # let _ = (shop, admin);
/// ```
#[derive(Clone)]
pub struct GroupLayer<N, C = Untraced> {
    name: N,
    groups: Arc<Groups>,
    caller: C,
}

impl<N> GroupLayer<N> {
    /// A layer that names the group of a request by its route. Use a few names, never one for each
    /// request.
    pub fn new<R>(name: N) -> Self
    where
        N: Fn(&R) -> Cow<'_, str>,
    {
        Self::with_bound(DEFAULT_BOUND, name)
    }

    /// A layer that makes at most `bound` groups, beside `other`.
    pub fn with_bound<R>(bound: usize, name: N) -> Self
    where
        N: Fn(&R) -> Cow<'_, str>,
    {
        Self { name, groups: Arc::new(Groups::new(bound)), caller: Untraced }
    }

    /// Trusts the `traceparent` header of a request, so that exemplars, files of triggers and
    /// timelines contain its trace. A span of the service's own replaces it
    /// (`dormouse::opentelemetry`). Do not use it where clients may send any header.
    ///
    /// ```
    /// # use axum::{Router, extract::Request};
    /// # use dormouse::tower::GroupLayer;
    /// let layer = GroupLayer::new(|_: &Request| "tea".into()).with_trace_context();
    /// # let _: Router = Router::new().layer(layer);
    /// ```
    ///
    /// # Cost
    ///
    /// A sleeping instruction while times are not taken, otherwise a look-up in the headers.
    pub fn with_trace_context(self) -> GroupLayer<N, Traceparent> {
        GroupLayer { name: self.name, groups: self.groups, caller: Traceparent }
    }
}

impl<N, C> GroupLayer<N, C> {
    /// A layer for services of any protocol: it passes responses on unchanged, and a request ends
    /// with the future of its response.
    ///
    /// ```
    /// use dormouse::tower::GroupLayer;
    /// use tower::{Layer, service_fn};
    ///
    /// let layer = GroupLayer::new(|table: &&str| (*table).into()).without_bodies();
    /// let service = layer.layer(service_fn(async |table: &str| Ok::<_, ()>(table.len())));
    /// # let _ = service;
    /// ```
    pub fn without_bodies(self) -> CallLayer<N, C> {
        CallLayer(self)
    }

    /// The task of a request that a service answers which was cloned for it.
    fn task<R>(&self, request: &R, cloned_for: &mut ClonedFor) -> Task
    where
        N: Fn(&R) -> Cow<'_, str>,
        C: Caller<R>,
    {
        let mut task = self.groups.named(&(self.name)(request)).request_of(cloned_for.take());
        task.call(|| self.caller.context(request));
        task
    }
}

impl<N, C> fmt::Debug for GroupLayer<N, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupLayer").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl<S, N: Clone, C: Clone> Layer<S> for GroupLayer<N, C> {
    type Service = GroupService<S, N, C>;

    fn layer(&self, inner: S) -> Self::Service {
        GroupService { inner, layer: self.clone(), cloned_for: ClonedFor::default() }
    }
}

/// The service that [`GroupLayer`] makes.
#[derive(Debug, Clone)]
pub struct GroupService<S, N, C = Untraced> {
    inner: S,
    layer: GroupLayer<N, C>,
    cloned_for: ClonedFor,
}

impl<S, N, C, R, B> Service<Request<R>> for GroupService<S, N, C>
where
    S: Service<Request<R>, Response = Response<B>>,
    N: Fn(&Request<R>) -> Cow<'_, str>,
    C: Caller<Request<R>>,
    B: Body,
{
    type Response = Response<GroupBody<B>>;
    type Error = S::Error;
    type Future = GroupResponse<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        let mut task = self.layer.task(&request, &mut self.cloned_for);
        let sending = sending(&request);
        let response = task.run(|| self.inner.call(request));
        GroupResponse::new(task, response, sending)
    }
}

/// Charges each request to the group that a function names, up to the response; see
/// [`GroupLayer::without_bodies`].
#[derive(Debug, Clone)]
pub struct CallLayer<N, C = Untraced>(GroupLayer<N, C>);

impl<S, N: Clone, C: Clone> Layer<S> for CallLayer<N, C> {
    type Service = CallService<S, N, C>;

    fn layer(&self, inner: S) -> Self::Service {
        CallService(self.0.layer(inner))
    }
}

/// The service that [`CallLayer`] makes.
#[derive(Debug, Clone)]
pub struct CallService<S, N, C = Untraced>(GroupService<S, N, C>);

impl<S, N, C, R> Service<R> for CallService<S, N, C>
where
    S: Service<R>,
    N: Fn(&R) -> Cow<'_, str>,
    C: Caller<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = InstrumentedResult<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let mut task = self.0.layer.task(&request, &mut self.0.cloned_for);
        let response = task.run(|| self.0.inner.call(request));
        task.instrument_result(response)
    }
}
