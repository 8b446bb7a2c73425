//! The formats.

mod otlp;
mod protobuf;
mod text;

use crate::exposition::Exposition;
use crate::format::MetricsFormat;

impl Exposition {
    /// Writes it in a format for scrapers.
    pub fn encode(&self, format: MetricsFormat) -> Vec<u8> {
        match format {
            MetricsFormat::OpenMetrics => text::openmetrics(self),
            MetricsFormat::Text => text::prometheus(self),
            MetricsFormat::Protobuf => protobuf::encode(self),
        }
    }

    /// Writes it as OpenTelemetry's `ExportMetricsServiceRequest`: one resource for each process,
    /// with these attributes, too, which have precedence over the process's own.
    pub fn otlp(&self, attributes: &[(String, String)]) -> Vec<u8> {
        otlp::encode(self, attributes)
    }
}
