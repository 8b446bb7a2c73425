//! Requests that change something, asked for by POST with JSON.
//!
//! Everything goes off by itself: keys after the time that the request must name, traces and
//! watches with the stream.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde_json::{Map, Value};

use super::answers::{bad, refusal};

/// The longest body.
const LONGEST: usize = 64 * 1024;

/// How long a body may take.
const WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// The fields of the object in a body, as the words of a query.
pub(super) async fn words(request: Request) -> Result<Vec<(String, String)>, Response> {
    let kind = request.headers().get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    if !kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        let message = "the body must be application/json";
        return Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "usage", message));
    }
    let body: Body = request.into_body();
    let bytes = match tokio::time::timeout(WITHIN, to_bytes(body, LONGEST)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => {
            let message = format!("the body is longer than {LONGEST} bytes, or broke off");
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, "usage", &message));
        }
        Err(_) => return Err(refusal(StatusCode::REQUEST_TIMEOUT, "usage", "the body did not come")),
    };
    let object: Map<String, Value> = serde_json::from_slice(&bytes)
        .map_err(|error| bad(&format!("the body is no JSON object: {error}")))?;
    let text = |(name, value)| {
        let text = match value {
            Value::String(text) => text,
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            _ => return Err(bad(&format!("{name:?} is a text, a number, true or false"))),
        };
        Ok((name, text))
    };
    object.into_iter().map(text).collect()
}
