//! The formats.

mod otlp;
mod protobuf;
mod text;

use crate::exposition::Exposition;
use crate::format::MetricsFormat;

impl Exposition {
    /// Encodes the exposition in a format for scrapers.
    pub fn encode(&self, format: MetricsFormat) -> Vec<u8> {
        match format {
            MetricsFormat::OpenMetrics => text::openmetrics(self),
            MetricsFormat::Text => text::prometheus(self),
            MetricsFormat::Protobuf => protobuf::encode(self),
        }
    }

    /// Encodes the exposition as OpenTelemetry's `ExportMetricsServiceRequest`: one resource for
    /// each process. These attributes are added to each, and override the process's own.
    pub fn otlp(&self, attributes: &[(String, String)]) -> Vec<u8> {
        otlp::encode(self, attributes)
    }
}
