//! The response of a service of ours, made from the answer of a thread of ours.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderValue, Response, StatusCode};

use crate::web::Responding;

/// The response of [`PprofService`](super::PprofService) and of
/// [`MetricsService`](super::MetricsService). Dropping it before its end cancels the work for it.
#[must_use = "a future does nothing unless it is polled"]
pub struct Answered<B> {
    answer: Responding,
    body: PhantomData<fn() -> B>,
}

impl<B> Answered<B> {
    pub(super) fn new(answer: Responding) -> Self {
        Self { answer, body: PhantomData }
    }
}

impl<B> fmt::Debug for Answered<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answered").field("answer", &self.answer).finish()
    }
}

impl<B: From<Vec<u8>>> Future for Answered<B> {
    type Output = Result<Response<B>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answer).poll(cx));
        let mut response = Response::new(B::from(answer.body));
        // Ours are all valid.
        *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or_default();
        for (name, value) in answer.headers {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        Poll::Ready(Ok(response))
    }
}
