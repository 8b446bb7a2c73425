//! One push: a `POST`, which is retried as long as that can help.
//!
//! | the collector | then |
//! |---|---|
//! | answers 2xx | the push is done, perhaps with a remark |
//! | answers 429, 502, 503 or 504 | another attempt, after the time that it names, or else a pause |
//! | cannot be reached, or hangs up | another attempt, after a pause |
//! | answers anything else | the push has failed: the same bytes would fail again |
//!
//! Pauses double, and each is shortened at random, so that not all hosts reach a collector that
//! comes back at the same time. An attempt that could not begin before the deadline is not waited
//! for: totals are pushed, so the next push contains everything that this one did.
//!
//! # References
//!
//! OTLP specification 1.7, §OTLP/HTTP Response, §OTLP/HTTP Throttling.

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use ureq::http::{Response, StatusCode, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::answer::{PartialSuccess, partial_success};
use super::settings::PushSettings;

/// Most of an answer that is read.
const ANSWER: u64 = 64 << 10;

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
    /// For how long the collector wants to hear nothing.
    pub(super) quiet: Option<Duration>,
}

/// One attempt that has failed.
struct Miss {
    reason: String,
    /// Whether another attempt may succeed, and when the collector wants it.
    again: Option<Again>,
}

enum Again {
    WhenPaused,
    After(Duration),
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
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        Ok(Self { agent: config.new_agent(), settings, pauses })
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
            zipped = gzip(request).map_err(|error| NotTaken { reason: error.to_string(), quiet: None })?;
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
            let (after, quiet) = match again {
                None => return Err(NotTaken { reason, quiet: None }),
                Some(Again::After(named)) => (named, Some(named)),
                Some(Again::WhenPaused) => (cut_by_chance(pause), None),
            };
            if after >= deadline.saturating_duration_since(Instant::now()) || !wait(after) {
                return Err(NotTaken { reason, quiet });
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
            again: is_passing(&error).then_some(Again::WhenPaused),
            reason: error.to_string(),
        })?;
        let status = answer.status();
        if status.is_success() {
            // A push whose answer breaks off is not sent twice: the collector has it.
            let said = answer.body_mut().with_config().limit(ANSWER).read_to_vec().unwrap_or_default();
            return Ok(partial_success(&said));
        }
        Err(Miss { reason: format!("the collector answers {status}"), again: again(&answer) })
    }
}

/// Whether a connection that could not be made, or broke off, may be there the next time.
fn is_passing(error: &ureq::Error) -> bool {
    use ureq::Error::{ConnectionFailed, HostNotFound, Io, Protocol, Timeout};
    matches!(error, ConnectionFailed | HostNotFound | Io(_) | Protocol(_) | Timeout(_))
}

fn again(answer: &Response<Body>) -> Option<Again> {
    let passing = [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_GATEWAY,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::GATEWAY_TIMEOUT,
    ];
    if !passing.contains(&answer.status()) {
        return None;
    }
    // The other form of this header, a date, is no better than a pause: clocks differ.
    let named = answer.headers().get(header::RETRY_AFTER).and_then(|after| after.to_str().ok());
    let seconds = named.and_then(|after| after.trim().parse::<u32>().ok());
    Some(seconds.map_or(Again::WhenPaused, |seconds| Again::After(Duration::from_secs(seconds.into()))))
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
