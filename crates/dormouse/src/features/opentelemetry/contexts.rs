//! Spans that become current on threads, as OpenTelemetry's contexts tell.
//!
//! # References
//!
//! `opentelemetry::context::ContextObserver`, an experimental feature of version 0.33: it is called
//! with the thread's contexts borrowed, so it must neither attach one nor ask for the current one.

use std::sync::Arc;

use ::opentelemetry::Context;
use ::opentelemetry::context::{ContextObserver, GlobalContextObserver};
use ::opentelemetry::trace::TraceContextExt;
use dormouse_waits::{ActiveSpan, Nesting, SpanSwitch, TraceContext};

use crate::core::trace_context::switched;

/// From now on, the traces of requests are those of the spans that become current in them.
///
/// OpenTelemetry has one observer for a process, and the first stays: it warns if there is one. A
/// service that has its own calls [`RequestTraces`] from there.
///
/// Spans of `tracing` are seen where `tracing-opentelemetry` activates their contexts.
///
/// ```
/// // Once, before the first request:
/// dormouse::opentelemetry::observe_contexts();
/// ```
///
/// # Cost
///
/// A context that is attached, and one that is left, take a call and a sleeping instruction while
/// nobody takes times ([`waits`](crate::waits)), and some ten nanoseconds while somebody does.
pub fn observe_contexts() {
    GlobalContextObserver::set(Arc::new(RequestTraces));
}

/// The observer of [`observe_contexts`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestTraces;

impl ContextObserver for RequestTraces {
    fn on_context_enter(&self, from: &Context, to: &Context) {
        switched(|| {
            let is_nested = active(from).is_some_and(|span| !span.is_remote);
            let nesting = if is_nested { Nesting::Nested } else { Nesting::Outermost };
            SpanSwitch { to: active(to), entered: Some(nesting) }
        });
    }

    fn on_context_exit(&self, _from: &Context, to: &Context) {
        switched(|| SpanSwitch { to: active(to), entered: None });
    }
}

/// The span of a context, if it has one.
fn active(context: &Context) -> Option<ActiveSpan> {
    if !context.has_active_span() {
        return None;
    }
    let span = context.span();
    let of = span.span_context();
    let known = TraceContext::new(of.trace_id().to_bytes(), of.span_id().to_bytes())?;
    Some(ActiveSpan { context: known.sampled(of.is_sampled()), is_remote: of.is_remote() })
}
