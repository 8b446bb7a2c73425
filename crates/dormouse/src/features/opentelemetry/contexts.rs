//! Spans that become current on threads, from OpenTelemetry's contexts.
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

/// From now on, requests get the traces of the spans that become current in them.
///
/// OpenTelemetry has one observer for a process, and the first stays: it warns if there is one
/// already. A service that has its own calls [`RequestTraces`] from there.
///
/// Spans of `tracing` are seen if `tracing-opentelemetry` activates their contexts.
///
/// ```
/// // Once, before the first request:
/// dormouse::opentelemetry::observe_contexts();
/// ```
///
/// # Cost
///
/// While times are not taken ([`waits`](crate::waits)), attaching and leaving a context take a call
/// and a sleeping instruction; otherwise some ten nanoseconds.
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
