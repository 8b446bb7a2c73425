//! The keys and the times that a request names, and the errors for both.

use std::time::Duration;

use dormouse_keys::{KeyUse, Selector};
use dormouse_protocol::{Code, LONGEST_MS, WireError};

use crate::core::trace::TraceError;

// A client may ask for as long as a key may be held.
const _: () = assert!(LONGEST_MS as u128 == dormouse_keys::LONGEST_HOLD.as_millis());

/// How many near names an error names.
const NEAR: usize = 5;

pub(crate) fn bad(message: impl Into<String>) -> WireError {
    WireError::new(Code::BadRequest, message)
}

/// A time in a request.
pub(crate) fn time(field: &str, ms: Option<u64>) -> Result<Option<Duration>, WireError> {
    match ms {
        None | Some(1..=LONGEST_MS) => Ok(ms.map(Duration::from_millis)),
        Some(ms) => Err(bad(format!("`{field}` is {ms}, and must be from 1 to {LONGEST_MS}"))),
    }
}

/// Keys that are to be switched. Their objects stay loaded meanwhile.
pub(crate) fn chosen(selector: &Selector) -> Result<Vec<KeyUse>, WireError> {
    let keys = selector.try_keys().map_err(wire_error)?;
    if keys.is_empty() { Err(no_match(selector.as_str())) } else { Ok(keys) }
}

pub(crate) fn parse(glob: &str) -> Result<Selector, WireError> {
    Selector::parse(glob).map_err(|why| WireError::new(Code::BadGlob, why.to_string()))
}

pub(crate) fn no_match(glob: &str) -> WireError {
    let near = dormouse_keys::near(glob, NEAR);
    WireError { code: Code::NoMatch, message: format!("no key matches `{glob}`"), near }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn wire_error(why: dormouse_keys::Error) -> WireError {
    let message = match &why {
        // The message counts sites that are not as they were.
        dormouse_keys::Error::HalfWritten { .. } => why.to_string(),
        _ => format!("{why}; the keys are as they were"),
    };
    WireError::new(Code::Keys, message)
}

pub(crate) fn names<'a>(keys: impl IntoIterator<Item = &'a KeyUse>) -> Vec<String> {
    let mut names: Vec<String> = keys.into_iter().map(|k| k.key.name().to_owned()).collect();
    names.dedup();
    names
}

pub(crate) fn trace_error(why: TraceError) -> WireError {
    match why {
        TraceError::Keys(why) => wire_error(why),
        TraceError::Elsewhere { .. } | TraceError::Leaving(_) => WireError::new(Code::Keys, why.to_string()),
        TraceError::NoProbe { .. } => WireError::new(Code::NoMatch, why.to_string()),
        other => WireError::new(Code::BadGlob, other.to_string()),
    }
}
