//! Connections to the service's own OpenTelemetry.
//!
//! | from | to | by |
//! |---|---|---|
//! | the spans of its tracer | the traces of requests: exemplars, files of triggers, timelines | `observe_contexts` |
//! | [`Metrics`](crate::metrics::Metrics) | its meter, and so whatever it exports to | [`instruments`] |
//!
//! Histograms do not go to the meter: OpenTelemetry has no instrument that observes one, and
//! recording each poll would cost ten times more than here. They are in
//! [`metrics`](mod@crate::metrics), with exemplars, for a scrape or a push by `dormouse serve`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use dormouse::metrics::{Metrics, MetricsError, MetricsSpec};
//! use opentelemetry::metrics::Meter;
//!
//! fn export(meter: &Meter) -> Result<Arc<Metrics>, MetricsError> {
//!     let metrics = Arc::new(Metrics::start(&MetricsSpec::new())?);
//!     dormouse::opentelemetry::instruments(meter, &metrics);
//!     Ok(metrics) // The meter sees the figures as long as somebody keeps them.
//! }
//! ```

#[cfg(feature = "opentelemetry-context")]
mod contexts;
mod instruments;
mod sums;

#[cfg(feature = "opentelemetry-context")]
pub use contexts::{RequestTraces, observe_contexts};
pub use instruments::instruments;
