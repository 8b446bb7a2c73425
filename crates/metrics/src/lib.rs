//! Metrics of services, and the formats that scrapers and collectors read.
//!
//! An [`Exposition`] has families of points, of one process or of several. It does not depend on
//! the services: `dormouse::metrics` fills it.
//!
//! | encoder | writes |
//! |---|---|
//! | [`MetricsFormat::Text`] | Prometheus's text, 0.0.4 |
//! | [`MetricsFormat::OpenMetrics`] | `OpenMetrics` 1.0, with exemplars |
//! | [`MetricsFormat::Protobuf`] | Prometheus's protocol buffers, with native histograms |
//! | [`Exposition::otlp`] | OpenTelemetry's `ExportMetricsServiceRequest` |
//!
//! # Names
//!
//! A family has one name, with dots, as OpenTelemetry requires. Prometheus's name consists of the
//! same words with underscores, then the unit, then `total` if the family counts. So a collector
//! that converts between the two gets the same names.
//!
//! # Histograms
//!
//! In all formats with exponential histograms the bounds are powers of 2 in the unit of the family,
//! as here: no value moves from one bucket to another. The text formats have no such histograms.
//! Their buckets end at whole powers of two, which are bounds of exponential buckets at any scale
//! that is not negative: these counts are exact, too. Other ends can be chosen ([`ClassicBounds`]).

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

mod bounds;
mod encode;
mod exposition;
mod family;
mod format;
mod histogram;
mod labels;
mod value;

pub use bounds::{BoundsError, ClassicBounds, MOST_BOUNDS};
pub use exposition::{ExposedProcess, Exposition, ProcessPart};
pub use family::{MetricFamily, MetricKind, MetricUnit};
pub use format::MetricsFormat;
pub use histogram::{ExponentialHistogram, MetricExemplar};
pub use labels::LabelSet;
pub use value::MetricValue;
