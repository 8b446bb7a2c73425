//! An answer, for any framework.

use crate::profile::run::ProfileError;

const TEXT: (&str, &str) = ("content-type", "text/plain; charset=utf-8");
const NO_GUESSING: (&str, &str) = ("x-content-type-options", "nosniff");
const NO_STORE: (&str, &str) = ("cache-control", "no-store");

/// An answer to a request for a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WebAnswer {
    /// The status: 200, or 400, 404, 429, 500, 501 or 503 with a text that says why.
    pub status: u16,
    /// The headers, by names in small letters.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body.
    pub body: Vec<u8>,
}

impl WebAnswer {
    pub(super) fn profile(body: Vec<u8>) -> Self {
        let headers = vec![
            ("content-type", "application/octet-stream"),
            ("content-disposition", "attachment; filename=\"profile.pb.gz\""),
            NO_GUESSING,
            NO_STORE,
        ];
        Self { status: 200, headers, body }
    }

    pub(super) fn page(html: String) -> Self {
        let headers = vec![("content-type", "text/html; charset=utf-8"), NO_GUESSING, NO_STORE];
        Self { status: 200, headers, body: html.into_bytes() }
    }

    pub(crate) fn text(status: u16, message: &str) -> Self {
        let mut headers = vec![TEXT, NO_GUESSING, NO_STORE];
        if status == 429 {
            headers.push(("retry-after", "10"));
        }
        Self { status, headers, body: format!("{message}\n").into_bytes() }
    }

    pub(super) fn bad(message: &str) -> Self {
        Self::text(400, message)
    }

    pub(super) fn no_memory() -> Self {
        Self::text(503, "the process has no memory for a profile")
    }

    pub(super) fn refusal(why: &ProfileError) -> Self {
        match why {
            ProfileError::NoGroup { groups, .. } => {
                let names: Vec<_> = groups.iter().map(|name| format!("{name:?}")).collect();
                Self::text(404, &format!("{why}; groups: {}", names.join(", ")))
            }
            ProfileError::Unavailable(_) => Self::text(501, &why.to_string()),
            _ => Self::bad(&why.to_string()),
        }
    }
}
