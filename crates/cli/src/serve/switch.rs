//! Requests that change something: keys, traces and watches, asked for by POST with JSON.
//!
//! Everything goes off by itself: keys after the time that the request must name, traces and
//! watches with the stream.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Map, Value};

use super::answers::{bad, refusal};
use super::verb::{Call, OFF, ON, Verb};

/// The longest body.
const LONGEST: usize = 64 * 1024;

/// How long a body may take.
const WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// The longest time for which keys are switched on.
const HOLD_MS: u64 = 3_600_000;

/// The user who serves, and so the one who switches.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Me {
    uid: u32,
    user: String,
    host: String,
    version: &'static str,
}

impl Me {
    pub(super) fn new() -> Me {
        let uid = dormouse_sys::directory::own_uid();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Me { uid, user: name_of(uid), host, version: env!("CARGO_PKG_VERSION") }
    }

    /// The answer of a verb that switches, with who has switched.
    pub(super) fn sign(&self, answer: &[u8]) -> Option<Vec<u8>> {
        let mut answer: Map<String, Value> = serde_json::from_slice(answer).ok()?;
        answer.insert("by".into(), serde_json::json!({ "uid": self.uid, "user": self.user }));
        serde_json::to_vec(&answer).ok()
    }
}

/// The name of a user, as the machine's own file has it.
fn name_of(uid: u32) -> String {
    let file = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_line = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    file.lines().find_map(of_line).unwrap_or_else(|| uid.to_string())
}

/// The object in a body.
pub(super) async fn object(request: Request) -> Result<Map<String, Value>, Response> {
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
    serde_json::from_slice(&bytes).map_err(|error| bad(&format!("the body is no JSON object: {error}")))
}

/// The command line that switches keys.
pub(super) fn keys(target: &str, mut body: Map<String, Value>) -> Result<Call, Response> {
    let on = body.remove("on").and_then(|on| on.as_bool());
    let on = on.ok_or_else(|| bad("`on` is missing: true or false"))?;
    let for_ms = body.remove("for_ms");
    let has_glob = body.get("glob").is_some_and(Value::is_string);
    if !has_glob || body.len() > 1 {
        return Err(bad("the body is {\"glob\", \"on\", \"for_ms\"}, and nothing else"));
    }
    if !on {
        return call(&OFF, target, body);
    }
    match for_ms.as_ref().and_then(Value::as_u64) {
        Some(ms @ 1..=HOLD_MS) => {
            body.insert("for".into(), format!("{ms}ms").into());
            call(&ON, target, body)
        }
        _ => Err(bad(&format!("`for_ms` says when they go off again: from 1 to {HOLD_MS}"))),
    }
}

/// The command line of a verb whose flags are the fields of an object.
pub(super) fn call(verb: &Verb, target: &str, body: Map<String, Value>) -> Result<Call, Response> {
    let mut query = Vec::with_capacity(body.len());
    for (name, value) in body {
        let value = match value {
            Value::String(text) => text,
            Value::Bool(is) => if is { "1" } else { "0" }.to_owned(),
            Value::Number(number) => number.to_string(),
            _ => return Err(bad(&format!("{name:?} is a text, a number, true or false"))),
        };
        query.push((name, value));
    }
    verb.call(target, &query).map_err(|why| bad(&why))
}

#[cfg(test)]
mod tests {
    use super::super::verb::{TRACE, WATCH};
    use super::*;

    fn body(json: &str) -> Map<String, Value> {
        serde_json::from_str(json).unwrap()
    }

    fn line(call: Result<Call, Response>) -> Result<String, u16> {
        call.map(|call| call.line.join(" ")).map_err(|refused| refused.status().as_u16())
    }

    #[test]
    fn keys_are_switched_on_for_a_time() {
        let keys = |json| line(keys("7", body(json)));
        let on = keys(r#"{"glob":"db.*","on":true,"for_ms":30000}"#).unwrap();
        assert_eq!(on, "dormouse on 7 --json --for=30000ms -- db.*");
        assert_eq!(keys(r#"{"glob":"-x","on":false}"#).unwrap(), "dormouse off 7 --json -- -x");
        for wrong in [
            r#"{"glob":"a","on":true}"#,
            r#"{"glob":"a","on":true,"for_ms":0}"#,
            r#"{"glob":"a","on":true,"for_ms":3600001}"#,
            r#"{"glob":"a","on":true,"for_ms":"1"}"#,
            r#"{"glob":"a","on":true,"for_ms":1,"keep":true}"#,
            r#"{"glob":"a","on":false,"force":true}"#,
            r#"{"glob":["a"],"on":false}"#,
            r#"{"on":true,"for_ms":1}"#,
            r#"{"glob":"a"}"#,
        ] {
            assert_eq!(keys(wrong), Err(400), "{wrong}");
        }
    }

    #[test]
    fn streams_take_the_fields_of_their_body() {
        let trace = |json| line(call(&TRACE, "7", body(json)));
        assert_eq!(trace(r#"{"glob":"db.*"}"#).unwrap(), "dormouse trace 7 --json -- db.*");
        assert_eq!(trace(r#"{"glob":"a","output":"/tmp/x.pftrace"}"#), Err(400));
        let watch = |json| line(call(&WATCH, "7", body(json)));
        assert_eq!(
            watch(r#"{"what":"TALLY:8","access":"rw","changed":true,"max":3}"#).unwrap(),
            "dormouse watch 7 --json --access=rw --changed --max=3 --stream -- TALLY:8"
        );
        assert_eq!(watch(r#"{"what":"x","plain":true}"#), Err(400));
    }

    #[test]
    fn an_answer_is_signed() {
        let me = Me { uid: 7, user: "tea".into(), host: "h".into(), version: "1" };
        let signed = me.sign(br#"{"schema":1,"state":"on"}"#).unwrap();
        let signed: Value = serde_json::from_slice(&signed).unwrap();
        assert_eq!((&signed["by"]["user"], &signed["state"]), (&"tea".into(), &"on".into()));
        assert_eq!(name_of(0), "root");
    }
}
