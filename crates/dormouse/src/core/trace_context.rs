//! The distributed trace to which a request belongs.
//!
//! A slow request is found twice: here, by its group and task, and in the backend of a tracer, by
//! its trace. The trace's id leads from the one to the other: exemplars of latency histograms,
//! files of triggers, lists of tasks and timelines carry it.
//!
//! The id comes from the service ([`set_trace_context`]), from the header of the request
//! ([`GroupLayer::with_trace_context`](crate::tower)), or from the spans of the service's own
//! OpenTelemetry (`dormouse::opentelemetry`). A span of the request's own takes the place of its
//! caller's; what the service sets takes the place of both. A task that begins in a poll of the
//! request has its trace, too.
//!
//! Nothing is kept while nobody takes times ([`waits`](crate::waits)).

pub use dormouse_waits::TraceContext;

use dormouse_waits::{SpanSwitch, observe};

use crate::core::own_probes;

/// Says to which trace the task belongs that this thread polls or runs now. The last call counts.
/// False if it is kept nowhere: the thread is in no task, or nobody takes times.
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
/// Two sleeping instructions while nobody takes times or records of `dormouse.trace_context`; else
/// some nanoseconds.
///
/// # Async-signal-safety
///
/// It is, on a thread that has entered a group outside of handlers.
#[inline]
pub fn set_trace_context(context: TraceContext) -> bool {
    own_probes::current_traced(context);
    dormouse_waits::set_trace_context(context)
}

/// A tracer tells which of its spans is current on this thread from now on; not asked while nobody
/// takes times.
#[cfg_attr(not(feature = "opentelemetry-context"), expect(dead_code, reason = "for tracers"))]
#[inline]
pub(crate) fn switched(switch: impl FnOnce() -> SpanSwitch) {
    if let Some(context) = observe(switch) {
        own_probes::current_traced(context);
    }
}
