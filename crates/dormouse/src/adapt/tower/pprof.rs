//! Profiles as a service: any server of `http` requests mounts it at `/debug/pprof/`.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use tower_service::Service;

use super::answered::Answered;
use crate::features::profile::web::respond;
use crate::web::WebAnswer;

/// Answers with profiles, ignoring the body of the request; `B` is the body of the response. See
/// [`profile::web`](crate::profile::web) for paths and queries.
///
/// ```
/// use dormouse::tower::PprofService;
///
/// let service: PprofService<Vec<u8>> = PprofService::new();
/// # let _ = service;
/// ```
pub struct PprofService<B>(PhantomData<fn() -> B>);

impl<B> PprofService<B> {
    /// A service that answers with profiles.
    pub fn new() -> Self {
        Self(PhantomData)
    }
}

impl<B> Default for PprofService<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Clone for PprofService<B> {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl<B> fmt::Debug for PprofService<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PprofService")
    }
}

impl<R, B: From<Vec<u8>>> Service<Request<R>> for PprofService<B> {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Answered<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<R>) -> Answered<B> {
        let uri = request.uri();
        let is_got = request.method() == Method::GET
            || request.method() == Method::POST && uri.path().ends_with("/symbol");
        let answer = if is_got {
            respond(uri.path_and_query().map_or(uri.path(), http::uri::PathAndQuery::as_str))
        } else {
            // Otherwise it would take a profile that no client receives.
            WebAnswer::text(405, "profiles are got by GET").into()
        };
        Answered::new(answer)
    }
}
