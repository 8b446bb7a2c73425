//! A collector's answer to a push: the points that it has rejected, and why; or why it has refused
//! all of them.
//!
//! `ExportMetricsServiceResponse` is one message in one message, so this reads only that. A
//! collector that sends something else has still accepted the push, according to the status. The
//! body of a refusal is a `Status` in protocol buffers, or text of a proxy. Its words reach a
//! terminal and a log, so they are cleaned and cut.
//!
//! # References
//!
//! opentelemetry-proto, `collector/metrics/v1/metrics_service.proto`; `google/rpc/status.proto`;
//! the protobuf encoding guide.

use dormouse_encode::protobuf::{FieldValue, Fields};

use crate::text::clean;

/// The most characters of a collector that a message has.
const LONGEST: usize = 200;

/// A push that was taken in part, or with a warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartialSuccess {
    /// Points that were refused.
    pub(super) rejected: u64,
    /// The reason, or the warning.
    pub(super) message: String,
}

impl PartialSuccess {
    /// The remarks about two requests as one.
    pub(super) fn of_both(first: Option<Self>, second: Option<Self>) -> Option<Self> {
        let (Some(first), Some(second)) = (&first, &second) else { return first.or(second) };
        let rejected = first.rejected.saturating_add(second.rejected);
        Some(Self { rejected, message: first.message.clone() })
    }
}

/// The remark in an answer that takes a push; none as a rule.
pub(super) fn partial_success(answer: &[u8]) -> Option<PartialSuccess> {
    let partial = fields(answer)?.into_iter().rev().find_map(|(number, value)| match value {
        FieldValue::Bytes(bytes) if number == 1 => Some(bytes),
        _ => None,
    })?;
    let mut found = PartialSuccess { rejected: 0, message: String::new() };
    for (number, value) in fields(partial)? {
        match (number, value) {
            // A signed number; no collector sends a negative one.
            (1, FieldValue::Number(rejected)) => {
                found.rejected = u64::try_from(rejected as i64).unwrap_or(0);
            }
            (2, FieldValue::Bytes(text)) => found.message = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    (found.rejected > 0 || !found.message.is_empty()).then_some(found)
}

/// The reason in the body of a refusal, as the end of a sentence.
pub(super) fn reason(kind: Option<&str>, body: &[u8]) -> String {
    let is_protobuf = kind.is_some_and(|kind| kind.contains("protobuf"));
    let text = if is_protobuf {
        fields(body).into_iter().flatten().find_map(|field| match field {
            (2, FieldValue::Bytes(text)) => Some(text),
            _ => None,
        })
    } else {
        Some(body)
    };
    let text = excerpt(&String::from_utf8_lossy(text.unwrap_or_default()));
    if text.is_empty() { text } else { format!(": {text}") }
}

/// The beginning of a collector's words, on one line.
pub(super) fn excerpt(text: &str) -> String {
    let mut words = String::new();
    for word in text.split_whitespace() {
        if words.chars().nth(LONGEST).is_some() {
            break;
        }
        words.extend((!words.is_empty()).then_some(' '));
        words.push_str(word);
    }
    if let Some((end, _)) = words.char_indices().nth(LONGEST) {
        words.replace_range(end.., "…");
    }
    clean(&words)
}

/// The fields of a message, if it is one.
fn fields(message: &[u8]) -> Option<Vec<(u32, FieldValue<'_>)>> {
    Fields::of(message).collect::<Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
    };
    use prost::Message as _;

    use super::{LONGEST, PartialSuccess, excerpt, partial_success, reason};

    fn answer(partial_success: Option<ExportMetricsPartialSuccess>) -> Vec<u8> {
        ExportMetricsServiceResponse { partial_success }.encode_to_vec()
    }

    #[test]
    fn refused_points_and_warnings_are_found() {
        for (rejected, message) in [(3, "too old"), (0, "use less"), (300, "")] {
            let sent = ExportMetricsPartialSuccess {
                rejected_data_points: rejected as i64,
                error_message: message.to_owned(),
            };
            let wanted = PartialSuccess { rejected, message: message.to_owned() };
            assert_eq!(partial_success(&answer(Some(sent))), Some(wanted));
        }
    }

    #[test]
    fn a_full_success_says_nothing() {
        let negative = ExportMetricsPartialSuccess { rejected_data_points: -1, error_message: String::new() };
        assert_eq!(partial_success(&answer(Some(negative))), None);
        assert_eq!(partial_success(&answer(None)), None);
        assert_eq!(partial_success(&answer(Some(ExportMetricsPartialSuccess::default()))), None);
    }

    #[test]
    fn reasons_are_found_in_text_and_status() {
        let status = b"\x08\x03\x12\x0aonly delta";
        assert_eq!(reason(Some("application/x-protobuf"), status), ": only delta");
        assert_eq!(reason(Some("text/plain"), b" only\r\n delta\x1b[2J"), r": only delta\u{1b}[2J");
        for (kind, body) in [(Some("application/x-protobuf"), &b"only delta"[..]), (None, b" \n")] {
            assert_eq!(reason(kind, body), "", "{kind:?}");
        }
    }

    #[test]
    fn long_reasons_are_cut() {
        for text in ["ä".repeat(70_000), "ä ".repeat(70_000)] {
            let cut = excerpt(&text);
            assert_eq!((cut.chars().count(), cut.chars().last()), (LONGEST + 1, Some('…')));
        }
        assert_eq!(excerpt(&"x".repeat(LONGEST)), "x".repeat(LONGEST));
    }

    #[test]
    fn any_bytes_are_an_answer() {
        let sent = ExportMetricsPartialSuccess { rejected_data_points: 3, error_message: "too old".into() };
        let whole = answer(Some(sent));
        for length in 1..whole.len() {
            assert_eq!(partial_success(&whole[..length]), None, "{length} bytes");
        }
        for junk in [&b"{}"[..], b"<html>", &[0xff; 40], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f], &[0x0f]] {
            assert_eq!(partial_success(junk), None, "{junk:?}");
        }
    }
}
