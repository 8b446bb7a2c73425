//! Answers: documents, and refusals in the form that `--json` gives them.

use axum::body::Body;
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use dormouse_protocol::Code;
use serde::Serialize;

use crate::exit::{Exit, Failure, Report};
use crate::output::{as_document, error_document};

/// JSON.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Server-sent events.
pub(super) const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// Text for people.
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

#[derive(Serialize)]
struct RefusalBody<'a> {
    error: RefusalText<'a>,
}

#[derive(Serialize)]
struct RefusalText<'a> {
    kind: &'static str,
    message: &'a str,
}

/// Bytes of some type.
pub(super) fn bytes(kind: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A document, with its schema version in front.
pub(super) fn document<T: Serialize>(body: &T) -> Response {
    bytes(JSON, as_document(body) + "\n")
}

/// A line of text.
pub(super) fn text(line: &'static str) -> Response {
    bytes(TEXT, line)
}

/// Why a request is not answered, where no verb says it.
pub(super) fn refusal(status: StatusCode, kind: &'static str, message: &str) -> Response {
    with_status(document(&RefusalBody { error: RefusalText { kind, message } }), status)
}

/// With the time after which a client that found it busy may ask again.
fn with_status(mut response: Response, status: StatusCode) -> Response {
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&status) {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

/// 400: an unknown parameter or value.
pub(super) fn bad(message: &str) -> Response {
    refusal(StatusCode::BAD_REQUEST, "usage", message)
}

/// 503: the server has reached its limit for such requests. The client can try again.
pub(super) fn busy(what: &str) -> Response {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", what)
}

/// 404: there is nothing at this address.
pub(super) fn nothing() -> Response {
    refusal(StatusCode::NOT_FOUND, "not-found", "nothing is at this address")
}

/// 405: the address does not support this method.
pub(super) fn wrong_method(allowed: &'static str) -> Response {
    let message = format!("this address is for {allowed}");
    let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", &message);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// 401: the token is missing or wrong. If `asks`, a browser asks its user for a password.
pub(super) fn unauthorized(asks: bool) -> Response {
    let message = "the token is missing or wrong: send it as Authorization: Bearer, or as the \
                   password of Basic";
    let mut response = refusal(StatusCode::UNAUTHORIZED, "unauthorized", message);
    let how = if asks { "Basic realm=\"dormouse\", charset=\"UTF-8\"" } else { "Bearer realm=\"dormouse\"" };
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(how));
    response
}

/// The failure of a verb.
pub(super) fn failed(failure: &Failure) -> Response {
    match failure {
        Failure::Said(report) => report_of(report),
        Failure::StdoutClosed => refusal(StatusCode::BAD_GATEWAY, "failed", "it was ended"),
    }
}

/// The report of a verb.
pub(super) fn report_of(report: &Report) -> Response {
    let response = bytes(JSON, error_document(&over_http(report)) + "\n");
    let status = match (report.code, report.exit) {
        (Some(Code::Asleep | Code::Busy | Code::NoSlot), _) => StatusCode::SERVICE_UNAVAILABLE,
        (Some(Code::NoMatch | Code::NoGroup), _) | (_, Exit::NoTarget) => StatusCode::NOT_FOUND,
        (Some(Code::BadRequest | Code::NoEvent), _) | (_, Exit::Usage) => StatusCode::BAD_REQUEST,
        (_, Exit::Denied) => StatusCode::FORBIDDEN,
        (_, Exit::Unsupported) => StatusCode::NOT_IMPLEMENTED,
        _ => StatusCode::BAD_GATEWAY,
    };
    with_status(response, status)
}

/// A report in the words of a client over HTTP, which has neither options nor subcommands.
pub(super) fn over_http(report: &Report) -> Report {
    let hint = match report.code {
        Some(Code::NoMatch) => Some("/api/processes/PID/keys lists the keys"),
        Some(Code::NoGroup) => Some("/api/processes/PID/stat has the groups"),
        Some(Code::NoEvent) => Some("/api/processes/PID/list has the events"),
        Some(Code::NoSlot) => Some("/api/processes/PID/slots lists the holders"),
        Some(Code::Asleep) => Some("POST /api/processes/PID/wake wakes it"),
        Some(Code::Denied) => Some("run dormouse serve as the service's user or as root"),
        _ => report.hint.as_deref().filter(|hint| !hint.contains("dormouse ") && !hint.contains("--")),
    };
    let hint = hint.map(str::to_owned);
    let message = report.message.trim_start_matches("--").replace(" --", " ");
    Report { message, hint, ..report.clone() }
}

/// The refusal of a request by the router, which is text, as a document.
pub(super) async fn rejected(response: Response) -> Response {
    let status = response.status();
    let is_document = response.headers().get(CONTENT_TYPE) == Some(&JSON);
    if !status.is_client_error() || is_document {
        return response;
    }
    let text = axum::body::to_bytes(response.into_body(), 4096).await.unwrap_or_default();
    refusal(status, "usage", &String::from_utf8_lossy(&text))
}

/// Headers of every answer: nobody keeps it, frames it, or takes it for another type than it says.
pub(super) fn seal(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let policy = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.entry("content-security-policy").or_insert(policy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_speak_of_http() {
        let said = |failure: Failure| {
            let Failure::Said(report) = failure else { panic!("{failure:?}") };
            let Report { message, hint, .. } = over_http(&report);
            (message, hint.unwrap_or_default())
        };
        let of_terminal =
            Failure::new(Exit::Usage, "--sort is for lists: add --cpu").hint("--timeout waits longer");
        assert_eq!(said(of_terminal), ("sort is for lists: add cpu".into(), String::new()));
        let of_agent =
            Failure::failed("no key").by_agent(Code::NoMatch).hint("dormouse keys TARGET lists the keys");
        assert_eq!(said(of_agent).1, "/api/processes/PID/keys lists the keys");
    }

    #[test]
    fn each_failure_has_a_status() {
        for (exit, code, status) in [
            (Exit::Failed, None, 502),
            (Exit::Failed, Some(Code::Keys), 502),
            (Exit::Failed, Some(Code::Busy), 503),
            (Exit::Failed, Some(Code::NoSlot), 503),
            (Exit::Failed, Some(Code::Asleep), 503),
            (Exit::Failed, Some(Code::NoMatch), 404),
            (Exit::Failed, Some(Code::NoGroup), 404),
            (Exit::NoTarget, None, 404),
            (Exit::Usage, None, 400),
            (Exit::Failed, Some(Code::BadRequest), 400),
            (Exit::Failed, Some(Code::NoEvent), 400),
            (Exit::Denied, None, 403),
            (Exit::Unsupported, Some(Code::NoWatching), 501),
        ] {
            let failure = Failure::new(exit, "it");
            let response = failed(&match code {
                Some(code) => failure.by_agent(code),
                None => failure,
            });
            assert_eq!(response.status().as_u16(), status, "{exit:?} {code:?}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), status == 503, "{exit:?} {code:?}");
        }
    }
}
