//! Where to push, and how: OpenTelemetry's standard variables.
//!
//! An empty variable counts as unset. A variable for metrics overrides the one for all signals. An
//! invalid value is reported and its default used, so that a typing error does not end monitoring.
//! The exceptions are values that this program understands but does not support, such as `grpc`: a
//! push in another protocol would never arrive, so there is none, and a message reports that.
//!
//! | variable | default |
//! |---|---|
//! | `OTEL_SDK_DISABLED` | `false` |
//! | `OTEL_METRICS_EXPORTER` | `otlp`; anything else, and nothing is pushed |
//! | `OTEL_EXPORTER_OTLP_[METRICS_]ENDPOINT` | nothing is pushed |
//! | `OTEL_EXPORTER_OTLP_[METRICS_]PROTOCOL` | `http/protobuf`, which is all there is |
//! | `OTEL_EXPORTER_OTLP_[METRICS_]HEADERS` | |
//! | `OTEL_EXPORTER_OTLP_[METRICS_]TIMEOUT` | 10000 ms |
//! | `OTEL_EXPORTER_OTLP_[METRICS_]COMPRESSION` | `none` |
//! | `OTEL_EXPORTER_OTLP_[METRICS_]CERTIFICATE` | Mozilla's roots |
//! | `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE` | `cumulative`; `delta` and `lowmemory` are the same |
//! | `OTEL_METRIC_EXPORT_INTERVAL` | 60000 ms |
//! | `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME` | |
//!
//! # References
//!
//! OpenTelemetry's specification 1.50: "Environment Variable Specification", "OTLP Exporter".

use std::path::PathBuf;
use std::time::Duration;

use dormouse_sys::otel::pairs;
use ureq::http::{HeaderName, HeaderValue, Uri};

const SERVICE_NAME: &str = "service.name";
/// Attributes that identify one process. The environment of this process does not describe the
/// others, and two processes with one identity would overwrite each other's points.
const IDENTITY: [&str; 2] = ["service.instance.id", "process.pid"];

/// A collector and the manner of pushing to it. Headers hold secrets, so this is never printed.
#[derive(Clone)]
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(super) struct PushSettings {
    /// The whole address that is posted to.
    pub(super) url: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// For one push with all its attempts.
    pub(super) timeout: Duration,
    pub(super) gzip: bool,
    /// A file with the certificates that are trusted instead of Mozilla's.
    pub(super) certificate: Option<PathBuf>,
    pub(super) interval: Duration,
    /// Whether differences are pushed, not totals.
    pub(super) delta: bool,
    /// Whether pushes go through the proxy that the environment names.
    pub(super) proxy: bool,
    /// Attributes that all resources get, whatever they have of their own, but their identity.
    pub(super) attributes: Vec<(String, String)>,
}

/// The settings that the variables ask for, and the faults of these.
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(super) struct Asked {
    /// `None` when nothing shall be pushed.
    pub(super) settings: Option<PushSettings>,
    /// One line each.
    pub(super) warnings: Vec<String>,
}

/// Reads the variables of this process.
pub(super) fn from_environment() -> Asked {
    from(|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// Reads variables from anywhere.
fn from(variable: impl Fn(&str) -> Option<String>) -> Asked {
    let mut reader = Reader { variable, warnings: Vec::new() };
    let settings = reader.settings();
    Asked { settings, warnings: reader.warnings }
}

struct Reader<V> {
    variable: V,
    warnings: Vec<String>,
}

impl<V: Fn(&str) -> Option<String>> Reader<V> {
    fn settings(&mut self) -> Option<PushSettings> {
        let endpoint = self.url()?;
        let disabled = self.one("OTEL_SDK_DISABLED", |value| match value {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        });
        if disabled == Some(true) || !self.is_asked_of_us() || !self.speaks_our_protocol() {
            return None;
        }
        Some(PushSettings {
            url: endpoint,
            headers: self.headers(),
            timeout: self.milliseconds("TIMEOUT").unwrap_or(Duration::from_secs(10)),
            gzip: self.signal("COMPRESSION", compression).unwrap_or(false),
            certificate: self.value_of_signal("CERTIFICATE").map(|(_, path)| path.into()),
            interval: self
                .one("OTEL_METRIC_EXPORT_INTERVAL", milliseconds)
                .unwrap_or(Duration::from_secs(60)),
            delta: self.one("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", is_delta).unwrap_or(false),
            proxy: false,
            attributes: self.attributes(),
        })
    }

    /// The address that metrics are posted to: one that is given for them is taken as it is.
    fn url(&mut self) -> Option<String> {
        let (name, endpoint) = self.value_of_signal("ENDPOINT")?;
        let url = if name.contains("METRICS") {
            endpoint
        } else {
            format!("{}/v1/metrics", endpoint.trim_end_matches('/'))
        };
        let is_good = url
            .parse::<Uri>()
            .is_ok_and(|uri| uri.authority().is_some() && matches!(uri.scheme_str(), Some("http" | "https")));
        if !is_good {
            self.warn(&name, "is no http:// or https:// address; nothing is pushed");
        }
        is_good.then_some(url)
    }

    /// Whether `otlp` is among the exporters of metrics.
    fn is_asked_of_us(&mut self) -> bool {
        let name = "OTEL_METRICS_EXPORTER";
        self.value(name).is_none_or(|list| list.split(',').any(|exporter| exporter.trim() == "otlp"))
    }

    fn speaks_our_protocol(&mut self) -> bool {
        let Some((name, protocol)) = self.value_of_signal("PROTOCOL") else { return true };
        match &*protocol {
            "http/protobuf" => true,
            "grpc" | "http/json" => {
                let problem = "nothing is pushed: dormouse speaks http/protobuf, which collectors take at \
                               port 4318";
                self.warn(&name, &format!("is {protocol}; {problem}"));
                false
            }
            _ => {
                self.warn(&name, "is no protocol of OTLP; http/protobuf is taken");
                true
            }
        }
    }

    fn headers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        let Some((name, list)) = self.value_of_signal("HEADERS") else { return Vec::new() };
        // The values are secrets, so no member is printed.
        let headers = pairs(&list).ok().and_then(|pairs| {
            let header = |(key, value): (String, String)| {
                Some((key.parse().ok()?, HeaderValue::try_from(value).ok()?))
            };
            pairs.into_iter().map(header).collect()
        });
        headers.unwrap_or_else(|| {
            self.warn(&name, "is no list of key=value; no header is sent");
            Vec::new()
        })
    }

    fn attributes(&mut self) -> Vec<(String, String)> {
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        let list = self.value(name).unwrap_or_default();
        let mut attributes = pairs(&list).unwrap_or_else(|bad| {
            self.warn(name, &format!("has {bad:?}, which is no key=value; all of it is left out"));
            Vec::new()
        });
        attributes.retain(|(key, _)| !IDENTITY.contains(&&**key));
        if let Some(service) = self.value("OTEL_SERVICE_NAME") {
            attributes.retain(|(key, _)| key != SERVICE_NAME);
            attributes.push((SERVICE_NAME.to_owned(), service));
        }
        attributes
    }

    fn milliseconds(&mut self, what: &str) -> Option<Duration> {
        self.signal(what, milliseconds)
    }

    /// The value of a variable, read.
    fn one<T>(&mut self, name: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = self.value(name)?;
        self.read(name, &value, read)
    }

    /// Reads a variable that exists both for metrics and for all signals.
    fn signal<T>(&mut self, what: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (name, value) = self.value_of_signal(what)?;
        self.read(&name, &value, read)
    }

    fn read<T>(&mut self, name: &str, value: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let read = read(&value.to_ascii_lowercase());
        if read.is_none() {
            self.warn(name, &format!("is {value:?}, which is invalid; the default is used"));
        }
        read
    }

    fn value_of_signal(&mut self, what: &str) -> Option<(String, String)> {
        let names = [format!("OTEL_EXPORTER_OTLP_METRICS_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")];
        names.into_iter().find_map(|name| self.value(&name).map(|value| (name, value)))
    }

    fn value(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn warn(&mut self, name: &str, problem: &str) {
        self.warnings.push(format!("{name} {problem}"));
    }
}

fn compression(name: &str) -> Option<bool> {
    match name {
        "gzip" => Some(true),
        "none" => Some(false),
        _ => None,
    }
}

/// The SDKs' `lowmemory` has totals where those cost no memory, which is nowhere here.
fn is_delta(temporality: &str) -> Option<bool> {
    match temporality {
        "cumulative" => Some(false),
        "delta" | "lowmemory" => Some(true),
        _ => None,
    }
}

/// A time that is not nothing.
fn milliseconds(number: &str) -> Option<Duration> {
    number.parse().ok().filter(|&number| number > 0).map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x:4318");

    /// The answer to these variables and an endpoint.
    fn asked(variables: &[(&str, &str)]) -> Asked {
        let all: Vec<_> = variables.iter().chain([&ENDPOINT]).collect();
        from(|name| all.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
    }

    /// The settings of variables that have nothing wrong.
    #[track_caller]
    fn settings(variables: &[(&str, &str)]) -> PushSettings {
        let asked = asked(variables);
        assert_eq!(asked.warnings, Vec::<String>::new());
        asked.settings.expect("an endpoint")
    }

    #[test]
    fn nothing_is_pushed_without_an_endpoint() {
        let other = |name: &str| (name == "OTEL_SERVICE_NAME").then(|| "tea".to_owned());
        assert_eq!(from(other), Asked { settings: None, warnings: Vec::new() });
        assert_eq!(from(|_| Some("  ".to_owned())), Asked { settings: None, warnings: Vec::new() });
    }

    #[test]
    fn metrics_go_below_the_endpoint_of_all_signals() {
        for (endpoint, url) in [
            ("http://x:4318", "http://x:4318/v1/metrics"),
            ("https://x/a/", "https://x/a/v1/metrics"),
            ("http://[::1]:1", "http://[::1]:1/v1/metrics"),
        ] {
            assert_eq!(settings(&[(ENDPOINT.0, endpoint)]).url, url);
        }
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://y:1/opentelemetry/api/v1/push");
        assert_eq!(settings(&[own]).url, own.1);
    }

    #[test]
    fn defaults_are_the_standard_ones() {
        let wanted = PushSettings {
            url: "http://x:4318/v1/metrics".to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
            gzip: false,
            certificate: None,
            interval: Duration::from_secs(60),
            delta: false,
            proxy: false,
            attributes: Vec::new(),
        };
        assert_eq!(settings(&[]), wanted);
    }

    #[test]
    fn each_variable_is_heard() {
        let found = settings(&[
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20eA%3D%3D,x-tenant=t"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "500"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "GZIP"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/etc/ca.pem"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "service.name=a,service.instance.id=1,deployment.environment.name=a%2Cb",
            ),
            ("OTEL_SERVICE_NAME", "tea"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
            ("OTEL_METRICS_EXPORTER", "console,otlp"),
            ("OTEL_SDK_DISABLED", "False"),
        ]);
        let headers: Vec<_> = found.headers.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let [basic, tenant] = ["Basic eA==", "t"].map(HeaderValue::from_static);
        assert_eq!(headers, [("authorization", &basic), ("x-tenant", &tenant)]);
        assert_eq!((found.timeout, found.interval), (Duration::from_millis(500), Duration::from_secs(1)));
        assert!(found.gzip && found.delta);
        assert_eq!(found.certificate, Some("/etc/ca.pem".into()));
        let own = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(found.attributes, [own("deployment.environment.name", "a,b"), own("service.name", "tea")]);
    }

    #[test]
    fn pushing_is_declined_by_three_variables() {
        for (name, value, is_told) in [
            ("OTEL_SDK_DISABLED", "TRUE", false),
            ("OTEL_METRICS_EXPORTER", "none", false),
            ("OTEL_METRICS_EXPORTER", "prometheus", false),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", true),
            ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "http/json", true),
        ] {
            let asked = asked(&[(name, value)]);
            assert_eq!(asked.settings, None, "{name}={value}");
            assert_eq!(asked.warnings.len(), usize::from(is_told), "{name}={value}");
        }
    }

    #[test]
    fn bad_values_are_told_and_defaults_taken() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "0"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "1s"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "99999999999999999999"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier pigeon"),
            ("OTEL_SDK_DISABLED", "perhaps"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=b%0d%0ac: d"),
            ("OTEL_RESOURCE_ATTRIBUTES", "a=%"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "both"),
        ] {
            let asked = asked(&[(name, value)]);
            assert_eq!(asked.settings, Some(settings(&[])), "{name}={value}");
            let [warning] = &asked.warnings[..] else { panic!("{name}={value}: {:?}", asked.warnings) };
            assert!(warning.starts_with(name), "{warning}");
        }
    }

    #[test]
    fn no_warning_has_a_header_in_it() {
        let asked = asked(&[("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hush,hush")]);
        assert!(!asked.warnings[0].contains("hush"), "{:?}", asked.warnings);
    }

    #[test]
    fn an_endpoint_that_is_none_is_told() {
        for bad in ["x:4318", "grpc://x:4317", "unix:///run/otel", "http://", "http://a b"] {
            let asked = asked(&[(ENDPOINT.0, bad)]);
            assert_eq!((asked.settings, asked.warnings.len()), (None, 1), "{bad}");
        }
    }
}
