//! The answers to requests for profiles.

use crate::features::profile::run::ProfileError;
use crate::web::WebAnswer;

pub(super) fn profile(body: Vec<u8>) -> WebAnswer {
    let mut answer = WebAnswer::found("application/octet-stream", body);
    answer.headers.push(("content-disposition", "attachment; filename=\"profile.pb.gz\""));
    answer
}

pub(super) fn page(html: String) -> WebAnswer {
    WebAnswer::found("text/html; charset=utf-8", html.into_bytes())
}

pub(super) fn bad(message: &str) -> WebAnswer {
    WebAnswer::text(400, message)
}

pub(super) fn no_memory() -> WebAnswer {
    WebAnswer::text(503, "the process has no memory for a profile")
}

pub(super) fn refusal(why: &ProfileError) -> WebAnswer {
    match why {
        ProfileError::NoGroup { groups, .. } => {
            let names: Vec<_> = groups.iter().map(|name| format!("{name:?}")).collect();
            WebAnswer::text(404, &format!("{why}; groups: {}", names.join(", ")))
        }
        ProfileError::Unavailable(_) => WebAnswer::text(501, &why.to_string()),
        _ => bad(&why.to_string()),
    }
}
