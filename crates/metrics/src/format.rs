//! The formats that a scraper may request.

/// A format for scrapers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus's text, 0.0.4.
    Text,
    /// Prometheus's protocol buffers, the only format with native histograms.
    Protobuf,
}

/// Parameters that a type must have.
type Needs = &'static [(&'static str, &'static str)];

/// The types that a scraper may name.
const TYPES: [(&str, Needs, MetricsFormat); 5] = [
    (
        "application/vnd.google.protobuf",
        &[("proto", "io.prometheus.client.metricfamily"), ("encoding", "delimited")],
        MetricsFormat::Protobuf,
    ),
    ("application/openmetrics-text", &[], MetricsFormat::OpenMetrics),
    ("text/plain", &[], MetricsFormat::Text),
    ("text/*", &[], MetricsFormat::Text),
    ("*/*", &[], MetricsFormat::Text),
];

impl MetricsFormat {
    /// The format that the header `Accept` of a request prefers; the first one in case of a tie.
    /// Plain text if it names no supported format.
    pub fn accepted(accept: Option<&str>) -> Self {
        let mut best: Option<(f64, Self)> = None;
        for range in accept.unwrap_or_default().split(',') {
            if let Some((quality, format)) = Self::of(range)
                && quality > best.map_or(0.0, |(best, _)| best)
            {
                best = Some((quality, format));
            }
        }
        best.map_or(Self::Text, |(_, format)| format)
    }

    /// The quality and the format of one range of the header.
    fn of(range: &str) -> Option<(f64, Self)> {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next()?.to_ascii_lowercase();
        let parameters: Vec<(String, String)> = parts
            .filter_map(|part| part.split_once('='))
            .map(|(name, value)| {
                let value = value.trim().trim_matches('"');
                (name.trim().to_ascii_lowercase(), value.to_ascii_lowercase())
            })
            .collect();
        let parameter = |name: &str| parameters.iter().find(|(of, _)| of == name).map(|(_, value)| &**value);
        let (_, needs, format) = TYPES.iter().find(|(of, ..)| *of == name)?;
        if needs.iter().any(|(name, value)| parameter(name) != Some(value)) {
            return None;
        }
        let is_known = match (format, parameter("version")) {
            (Self::Text, Some(version)) => version == "0.0.4",
            // Scrapers that take 0.0.1 take 1.0.0, and name both.
            (Self::OpenMetrics, Some(version)) => version.starts_with("1.") || version == "0.0.1",
            _ => true,
        };
        let quality = parameter("q").map_or(Some(1.0), |q| q.parse().ok())?;
        (is_known && (0.0..=1.0).contains(&quality)).then_some((quality, *format))
    }

    /// The header `Content-Type` of an answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_what_it_likes_best() {
        use MetricsFormat::{OpenMetrics, Protobuf, Text};
        let cases = [
            // Prometheus 2.42, without and with native histograms.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
                 application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1",
                Protobuf,
            ),
            // Prometheus 3.
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,/;q=0.1",
                OpenMetrics,
            ),
            // VictoriaMetrics.
            ("text/plain;version=0.0.4;q=1,*/*;q=0.1", Text),
            // A browser, curl, and no header.
            ("text/html,application/xhtml+xml,*/*;q=0.8", Text),
            ("*/*", Text),
            ("", Text),
            // Not ours.
            ("application/json", Text),
            ("application/vnd.google.protobuf;proto=other;encoding=delimited", Text),
            ("application/openmetrics-text;version=2.0.0", Text),
            ("application/openmetrics-text;q=0, text/plain;q=0.1", Text),
            ("application/openmetrics-text;q=much", Text),
            ("application/openmetrics-text;q=inf, text/plain;q=0.1", Text),
            ("application/openmetrics-text;q=NaN", Text),
            (" Application/OpenMetrics-Text ; Version=\"1.0.0\" ; q=0.3 , text/plain;q=0.2", OpenMetrics),
        ];
        for (accept, format) in cases {
            assert_eq!(MetricsFormat::accepted(Some(accept)), format, "{accept}");
        }
        assert_eq!(MetricsFormat::accepted(None), Text);
    }
}
