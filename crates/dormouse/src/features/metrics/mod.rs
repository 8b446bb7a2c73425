//! Metrics: the cost of groups, for Prometheus, OpenTelemetry and others.
//!
//! A [`Metrics`] counts as long as it exists, and answers scrapes. The library opens no port: the
//! host mounts a route (`dormouse::axum::metrics`, `dormouse::tower::MetricsService`, or any
//! handler that calls [`Metrics::answer`]), or `dormouse serve` serves the metrics of all processes
//! of the machine.
//!
//! ```
//! use dormouse::Group;
//! use dormouse::metrics::{Metrics, MetricsSpec};
//!
//! let metrics = Metrics::start(&MetricsSpec::new().waits())?;
//! Group::new("GET /menu").scope(|| { /* … */ });
//! // In a handler, with the request's header `Accept`:
//! let answer = metrics.answer(Some("application/openmetrics-text; version=1.0.0"));
//! let text = String::from_utf8(answer.body)?;
//! assert!(text.contains("dormouse_cpu_time_seconds_total{group=\"GET /menu\"}"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Names
//!
#![doc = include_str!("names.md")]
//!
//! The three of polls exist if a runtime has hooks around each poll (`poll_hooks` and
//! `group_spawns` of `dormouse::tokio`, in programs built with `--cfg tokio_unstable`), or if an
//! executor of the program's own calls [`poll_begins`](crate::events::poll_begins) and
//! [`poll_ends`](crate::events::poll_ends).
//!
//! CPU per request is a query: `sum by (group) (rate(dormouse_cpu_time_seconds_total[5m])) / sum by
//! (group) (rate(dormouse_requests_total[5m]))`.
//!
//! # Counters never go back
//!
//! They are totals since the start of the process, independent of readers and of how often counting
//! has begun and ended. A forked child begins at zero, with a start of its own. Labels are bounded:
//! a process has at most [`MAX_GROUPS`](crate::MAX_GROUPS) groups.

mod add;
mod origin;
mod service;

pub use crate::web::{Responding, WebAnswer};
pub use add::{add, add_shown};
pub use dormouse_metrics::{BoundsError, ClassicBounds, Exposition, MetricsFormat};
pub use origin::Origin;
pub use service::{Metrics, MetricsError, MetricsSpec, exposition, text};
