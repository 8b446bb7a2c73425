//! A middleware of actix-web: each request is charged to the group of its route, with the body of
//! its response.
//!
//! The services inside, the future of the response and the chunks of its body are one task, which
//! ends when the body does. So server-sent events that a handler streams for hours are charged to
//! their route, though the connection's dispatcher polls them.
//!
//! ```
//! use actix_web::{App, dev::ServiceRequest, web};
//! use dormouse::actix::GroupMiddleware;
//!
//! async fn menu() -> &'static str {
//!     "tea"
//! }
//!
//! // Within the closure of `HttpServer::new`:
//! let groups = GroupMiddleware::new(|request: &ServiceRequest| {
//!     request.match_pattern().unwrap_or_else(|| "unmatched".into()).into()
//! });
//! let app = App::new().wrap(groups).route("/menu", web::get().to(menu));
//! # let _ = app;
//! ```
//!
//! # Things it does not do
//!
//! actix accepts and serves connections itself, on current-thread runtimes of its own, and takes
//! neither a stream nor a way to spawn. So the work on connections (parsing requests, writing
//! responses) is in no group.

use std::borrow::Cow;
use std::fmt;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::actix_web::body::{BodySize, MessageBody};
use ::actix_web::dev::{Service, ServiceRequest, ServiceResponse, Transform};
use ::actix_web::error::Error;
use ::actix_web::http::header::{CONTENT_TYPE, HeaderValue};
use ::actix_web::http::{Method, Version};
use ::actix_web::web::Bytes;

use super::body::{NO_BODY, Sending, Sent, ServerResponse, UNKNOWN_LENGTH, ending_of, has_no_body, head_of};
use super::groups::Groups;
use crate::core::task::Task;

pub use super::body::{GroupBody, GroupResponse};
pub use super::groups::DEFAULT_BOUND;

/// Charges each request to the group that a function names, including the body of its response; see
/// the [module](self). A client could use up the groups if its bytes became names, so it makes at
/// most 64, and the rest is charged to `other`.
///
/// ```
/// use dormouse::actix::GroupMiddleware;
///
/// let one = GroupMiddleware::new(|_| "all requests".into());
/// let app = actix_web::App::new().wrap(one);
/// # let _ = app;
/// ```
#[derive(Clone)]
pub struct GroupMiddleware<N> {
    name: N,
    groups: Arc<Groups>,
}

impl<N> GroupMiddleware<N>
where
    N: Fn(&ServiceRequest) -> Cow<'_, str>,
{
    /// A middleware that names the group of a request by its route. Use a few names, never one for
    /// each request.
    pub fn new(name: N) -> Self {
        Self::with_bound(DEFAULT_BOUND, name)
    }

    /// A middleware that makes at most `bound` groups, beside `other`.
    pub fn with_bound(bound: usize, name: N) -> Self {
        Self { name, groups: Arc::new(Groups::new(bound)) }
    }
}

impl<N> fmt::Debug for GroupMiddleware<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupMiddleware").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl<S, N, B> Transform<S, ServiceRequest> for GroupMiddleware<N>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    N: Fn(&ServiceRequest) -> Cow<'_, str> + Clone,
    B: MessageBody,
{
    type Response = ServiceResponse<GroupBody<B>>;
    type Error = S::Error;
    type Transform = MiddlewareService<S, N>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(MiddlewareService { inner, middleware: self.clone() }))
    }
}

/// The service that [`GroupMiddleware`] makes.
#[derive(Debug)]
pub struct MiddlewareService<S, N> {
    inner: S,
    middleware: GroupMiddleware<N>,
}

impl<S, N, B> Service<ServiceRequest> for MiddlewareService<S, N>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    N: Fn(&ServiceRequest) -> Cow<'_, str>,
    B: MessageBody,
{
    type Response = ServiceResponse<GroupBody<B>>;
    type Error = S::Error;
    type Future = GroupResponse<S::Future>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let GroupMiddleware { name, groups } = &self.middleware;
        let mut task = groups.named(&name(&request)).task();
        task.call(|| None);
        let sending = Sending::new(request.method() == Method::HEAD, request.version() >= Version::HTTP_2);
        let future = task.run(|| self.inner.call(request));
        GroupResponse::new(task, future, sending)
    }
}

impl<B: MessageBody> ServerResponse<Error> for ServiceResponse<B> {
    type Grouped = ServiceResponse<GroupBody<B>>;

    fn charged(
        answer: Result<Self, Error>,
        mut task: Option<Task>,
        sending: Sending,
    ) -> Result<Self::Grouped, Error> {
        let status = match &answer {
            Ok(response) => response.status(),
            Err(error) => error.as_response_error().status_code(),
        };
        let status = status.as_u16();
        if let Some(task) = &mut task {
            task.ends(ending_of(status));
        }
        answer.map(|response| {
            let left = match response.response().body().size() {
                _ if sending == Sending::Nothing || has_no_body(status) => NO_BODY,
                BodySize::None => NO_BODY,
                BodySize::Sized(length) => length,
                BodySize::Stream => UNKNOWN_LENGTH,
            };
            let content_type = || response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
            let head = head_of(status, left, content_type);
            response.map_body(|_, body| GroupBody::new(body, task, left, sending, head))
        })
    }
}

impl<B: MessageBody> MessageBody for GroupBody<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        let size = self.inner().map_or(BodySize::None, B::size);
        if !size.is_eof() {
            self.is_asked_for();
        }
        size
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, B::Error>>> {
        self.poll_charged(
            cx,
            B::poll_next,
            |_| false,
            |bytes| Sent::Bytes(bytes.len(), bytes.first_chunk().copied()),
        )
    }

    fn try_into_bytes(self) -> Result<Bytes, Self> {
        self.try_take(B::try_into_bytes).unwrap_or_else(|| Ok(Bytes::new()))
    }
}
