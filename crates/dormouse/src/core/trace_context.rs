//! The distributed trace to which a request belongs.
//!
//! A slow request appears twice: here, with its group and task, and in the backend of a tracer,
//! with its trace. The trace's id connects the two: exemplars of latency histograms, files of
//! triggers, lists of tasks and timelines contain it.
//!
//! The id comes from the service ([`set_trace_context`]), from the header of the request
//! ([`GroupLayer::with_trace_context`](crate::tower)), or from the spans of the service's own
//! OpenTelemetry (`dormouse::opentelemetry`). A span of the request's own replaces its caller's; a
//! trace that the service sets replaces both. A task that begins in a poll of the request has its
//! trace, too.
//!
//! Nothing is kept while times are not taken ([`waits`](crate::waits)).

pub use dormouse_waits::TraceContext;

use dormouse_waits::{SpanSwitch, observe};

use crate::core::own_probes;

/// Sets the trace of the task that this thread polls or runs now. The last call counts. Returns
/// false if it is not kept: the thread is in no task, or times are not taken.
///
/// ```
/// use dormouse::TraceContext;
///
/// # let headers = std::collections::HashMap::from([("traceparent", "")]);
/// // In the handler of a request:
/// if let Some(context) = TraceContext::parse(headers["traceparent"].as_bytes()) {
///     dormouse::set_trace_context(context);
/// }
/// ```
///
/// # Cost
///
/// Two sleeping instructions while neither times nor records of `dormouse.trace_context` are taken,
/// otherwise some nanoseconds.
///
/// # Async-signal-safety
///
/// It is signal-safe on a thread that has entered a group outside of handlers.
#[inline]
pub fn set_trace_context(context: TraceContext) -> bool {
    own_probes::current_traced(context);
    dormouse_waits::set_trace_context(context)
}

/// Called by a tracer when the current span of this thread changes; `switch` is not called while
/// times are not taken.
#[cfg_attr(not(feature = "opentelemetry-context"), expect(dead_code, reason = "for tracers"))]
#[inline]
pub(crate) fn switched(switch: impl FnOnce() -> SpanSwitch) {
    if let Some(context) = observe(switch) {
        own_probes::current_traced(context);
    }
}
