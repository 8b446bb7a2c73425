//! The trace of a request's caller, from its header.

use http::Request;

use crate::core::trace_context::TraceContext;

/// The header, as W3C's Trace Context names it.
const TRACEPARENT: &str = "traceparent";

/// A layer with this reads no header for the trace of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Untraced;

/// A layer with this trusts the `traceparent` header; see
/// [`GroupLayer::with_trace_context`](super::GroupLayer::with_trace_context).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traceparent;

/// How to find the trace of a request's caller.
///
/// ```
/// use dormouse::tower::GroupLayer;
///
/// let layer = GroupLayer::new(|_: &http::Request<()>| "all".into()).with_trace_context();
/// # let _ = layer;
/// ```
pub trait Caller<R> {
    /// The trace, if the request contains it.
    fn context(&self, request: &R) -> Option<TraceContext>;
}

impl<R> Caller<R> for Untraced {
    #[inline]
    fn context(&self, _: &R) -> Option<TraceContext> {
        None
    }
}

impl<B> Caller<Request<B>> for Traceparent {
    fn context(&self, request: &Request<B>) -> Option<TraceContext> {
        let mut all = request.headers().get_all(TRACEPARENT).iter();
        // Two of them are none: the standard wants the trace to be restarted then.
        let only = all.next().filter(|_| all.next().is_none());
        only.and_then(|value| TraceContext::parse(value.as_bytes()))
    }
}
