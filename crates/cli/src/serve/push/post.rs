//! One push: a `POST`, which is retried as long as that can help.
//!
//! | the collector | then |
//! |---|---|
//! | answers 2xx | the push is done, perhaps with a remark |
//! | answers 429, 502, 503 or 504 | another attempt, after a pause: the collector may lengthen it |
//! | cannot be reached, or hangs up | another attempt, after a pause |
//! | answers anything else | the push has failed: the same bytes would fail again |
//!
//! Pauses double, and each is shortened at random, so that not all hosts reach a collector that
//! comes back at the same time. A `Retry-After` lengthens a pause, up to [`LONGEST_QUIET`], and
//! never shortens it: a proxy that answers with 0 would otherwise be flooded. An attempt that could
//! not begin before the deadline is not waited for: the next push contains everything that this one
//! did.
//!
//! # References
//!
//! OTLP specification 1.7, §OTLP/HTTP Response, §OTLP/HTTP Throttling. RFC 9110, §10.2.3.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use ureq::Agent;
use ureq::http::{HeaderMap, StatusCode, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::answer::{PartialSuccess, excerpt, partial_success, reason};
use super::settings::PushSettings;

/// Most of an answer that is read.
const ANSWER: u64 = 64 << 10;

/// The statuses after which the same request may succeed.
const RETRYABLE: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// The longest time for which a collector is left alone because it asks for that.
const LONGEST_QUIET: Duration = Duration::from_secs(300);

/// Sends pushes to one collector.
pub(super) struct Post {
    agent: Agent,
    settings: PushSettings,
    pauses: Pauses,
}

/// The first pause between attempts, and the longest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pauses {
    pub(super) first: Duration,
    pub(super) most: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), most: Duration::from_secs(5) }
    }
}

/// A push that has not arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotTaken {
    pub(super) reason: String,
    /// For how long the collector is left alone, because it asks for that.
    pub(super) quiet: Option<Duration>,
    /// Whether the same bytes would fail again. Others may be taken.
    pub(super) is_final: bool,
}

impl NotTaken {
    fn finally(reason: String) -> Self {
        Self { reason, quiet: None, is_final: true }
    }
}

/// One attempt that has failed.
struct Miss {
    reason: String,
    /// Whether another attempt may succeed, and the pause before it that the collector asks for:
    /// zero if it does not name any.
    again: Option<Duration>,
}

impl Post {
    /// Fails when the file with certificates is of no use.
    pub(super) fn new(settings: PushSettings, pauses: Pauses) -> Result<Self, String> {
        let roots = match &settings.certificate {
            Some(path) => {
                let pem = std::fs::read(path).map_err(|error| {
                    format!("cannot read the certificates in {}: {error}", path.display())
                })?;
                trusted(&pem).ok_or_else(|| format!("{} has no certificate", path.display()))?
            }
            None => RootCerts::WebPki,
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("dormouse/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build());
        // The library's default is the proxy of the environment.
        let config = if settings.proxy { config } else { config.proxy(None) };
        Ok(Self { agent: config.build().new_agent(), settings, pauses })
    }

    /// Delivers a request until `deadline`. `wait` waits for a pause, and returns whether to go on.
    pub(super) fn deliver(
        &self,
        request: &[u8],
        deadline: Instant,
        mut wait: impl FnMut(Duration) -> bool,
    ) -> Result<Option<PartialSuccess>, NotTaken> {
        let zipped;
        let body = if self.settings.gzip {
            let failed = |error: std::io::Error| NotTaken::finally(error.to_string());
            zipped = gzip(request).map_err(failed)?;
            &zipped
        } else {
            request
        };
        let mut pause = self.pauses.first;
        loop {
            let Miss { reason, again } = match self.attempt(body, deadline) {
                Ok(taken) => return Ok(taken),
                Err(miss) => miss,
            };
            let Some(named) = again else { return Err(NotTaken::finally(reason)) };
            let after = named.min(LONGEST_QUIET).max(cut_by_chance(pause));
            let quiet = (!named.is_zero()).then_some(after);
            if after >= deadline.saturating_duration_since(Instant::now()) || !wait(after) {
                return Err(NotTaken { reason, quiet, is_final: false });
            }
            pause = (pause * 2).min(self.pauses.most);
        }
    }

    fn attempt(&self, body: &[u8], deadline: Instant) -> Result<Option<PartialSuccess>, Miss> {
        // Zero means no timeout to the library, so at least a little time is given.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut request = self.agent.post(&self.settings.url);
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        request = request.header(header::CONTENT_TYPE, "application/x-protobuf");
        if self.settings.gzip {
            request = request.header(header::CONTENT_ENCODING, "gzip");
        }
        let answer = request.config().timeout_global(Some(left)).build().send(body);
        let mut answer = answer.map_err(|error| Miss {
            again: is_passing(&error).then_some(Duration::ZERO),
            reason: error.to_string(),
        })?;
        let status = answer.status();
        // A push whose answer breaks off is not sent twice: the collector has it.
        let body = answer.body_mut().with_config().limit(ANSWER).read_to_vec().unwrap_or_default();
        if status.is_success() {
            return Ok(partial_success(&body));
        }
        let headers = answer.headers();
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let mut reason =
            format!("the collector answers {status}{}", reason(header(header::CONTENT_TYPE), &body));
        let again = RETRYABLE.contains(&status).then(|| named_pause(headers));
        if let Some(named) = header(header::RETRY_AFTER).filter(|_| again.is_some()) {
            reason = format!("{reason} (Retry-After: {})", excerpt(named));
        }
        Err(Miss { reason, again })
    }
}

/// Whether a connection that could not be made, or broke off, may be there the next time.
fn is_passing(error: &ureq::Error) -> bool {
    use ureq::Error::{ConnectionFailed, HostNotFound, Io, Protocol, Timeout};
    matches!(error, ConnectionFailed | HostNotFound | Io(_) | Protocol(_) | Timeout(_))
}

/// The pause that `Retry-After` asks for, in seconds or up to a date; zero if it names none.
fn named_pause(headers: &HeaderMap) -> Duration {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let Some(named) = text(header::RETRY_AFTER).filter(|named| !named.is_empty()) else {
        return Duration::ZERO;
    };
    if named.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than there is in 64 bits is as much as can be.
        return Duration::from_secs(named.parse().unwrap_or(u64::MAX));
    }
    let date = |text| httpdate::parse_http_date(text).ok();
    // By the collector's own clock if it names the time.
    let now = text(header::DATE).and_then(date).unwrap_or_else(SystemTime::now);
    date(named).and_then(|until| until.duration_since(now).ok()).unwrap_or_default()
}

/// Between a half and all of a pause.
fn cut_by_chance(pause: Duration) -> Duration {
    let chance = RandomState::new().hash_one(0) as u32;
    pause / 2 + pause.mul_f64(f64::from(chance) / f64::from(u32::MAX) / 2.0)
}

fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// The certificates of a file, which has at least one.
fn trusted(pem: &[u8]) -> Option<RootCerts> {
    let found = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = found.collect();
    (!certificates.is_empty()).then(|| RootCerts::new_with_certs(&certificates))
}
