//! Texts that come over a network, or tell about it: headers of requests, a collector's answer,
//! lists in OpenTelemetry's variables.

use dormouse::TraceContext;
use dormouse::metrics::MetricsFormat;
use dormouse_sys::otel::pairs;

/// The command is a program, not a library; this file of it needs no more than `text`.
#[allow(dead_code, reason = "a part of the command")]
#[path = "../../crates/cli/src/serve/push/answer.rs"]
mod answer;

/// Bytes are such a text.
///
/// # Panics
///
/// When a header is taken for another one than it is.
pub fn check(bytes: &[u8]) {
    if let Some(context) = TraceContext::parse(bytes) {
        // Digits in lower case: a reader of the header could not tell the traces apart else.
        assert!(bytes.len() >= 55 && !bytes[..55].iter().any(u8::is_ascii_uppercase), "{context:?}");
    }
    if let Some(partial) = answer::partial_success(bytes) {
        assert!(partial.rejected > 0 || !partial.message.is_empty());
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    assert!(!MetricsFormat::accepted(Some(text)).content_type().is_empty());
    match pairs(text) {
        Ok(pairs) => assert!(pairs.len() <= 1 + text.matches(',').count()),
        Err(bad) => assert!(!bad.is_empty()),
    }
}
