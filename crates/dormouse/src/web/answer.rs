//! An HTTP answer, for any framework.

const TEXT: &str = "text/plain; charset=utf-8";
const NO_GUESSING: (&str, &str) = ("x-content-type-options", "nosniff");
const NO_STORE: (&str, &str) = ("cache-control", "no-store");

/// An answer to a request for a profile, or for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebAnswer {
    /// The status: 200, or 400, 404, 405, 429, 500, 501 or 503 with a text that has the reason.
    pub status: u16,
    /// The headers; names are in lower case.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body.
    pub body: Vec<u8>,
}

impl WebAnswer {
    /// The answer that was asked for.
    pub(crate) fn found(content_type: &'static str, body: Vec<u8>) -> Self {
        Self { status: 200, headers: vec![("content-type", content_type), NO_GUESSING, NO_STORE], body }
    }

    pub(crate) fn text(status: u16, message: &str) -> Self {
        let mut answer = Self { status, ..Self::found(TEXT, format!("{message}\n").into_bytes()) };
        if status == 429 {
            answer.headers.push(("retry-after", "10"));
        }
        answer
    }
}
