//! The request in a path and its query.

use std::time::Duration;

use super::answer::bad;
use crate::features::profile::spec::ProfileSpec;
use crate::web::WebAnswer;

/// The length of a profile if nothing else is said, as Go's programs have it; and the longest.
const SECONDS: u64 = 30;
const MAX_SECONDS: u64 = 300;

/// The wish of a request.
#[derive(Debug, Clone)]
pub(super) enum Asked {
    Page,
    /// Go's tool requests names that it has not found, and needs an answer. The answer contains
    /// none: `symbols=1` puts names into the profile.
    Symbol,
    Profile(Taking),
}

/// A profile that is asked for.
#[derive(Debug, Clone)]
pub(super) struct Taking {
    pub(super) spec: ProfileSpec,
    pub(super) length: Duration,
    /// Whether addresses get their names here.
    pub(super) symbols: bool,
}

impl Asked {
    /// Parses a path and, after a question mark, a query. On error returns the answer that
    /// describes it.
    pub(super) fn parse(path_and_query: &str) -> Result<Self, WebAnswer> {
        let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
        let spec = match path.rsplit('/').next().unwrap_or_default() {
            "" | "pprof" => return Ok(Self::Page),
            "symbol" => return Ok(Self::Symbol),
            "profile" => ProfileSpec::cpu(),
            "allocs" => ProfileSpec::alloc(),
            "heap" => ProfileSpec::alloc().live(),
            "faults" => ProfileSpec::faults(),
            "wall" => ProfileSpec::wall(),
            other => {
                let message =
                    format!("there is no profile {other:?}: ask for profile, allocs, heap, faults or wall");
                return Err(WebAnswer::text(404, &message));
            }
        };
        let mut taking = Taking { spec, length: Duration::from_secs(SECONDS), symbols: false };
        let mut groups = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value).map_err(|why| bad(&format!("`{name}`: {why}")))?;
            match name {
                "seconds" => taking.length = Duration::from_secs(seconds(&value)?),
                "hz" => taking.spec = taking.spec.hz(number(name, &value)?),
                "bytes" => taking.spec = taking.spec.bytes(number(name, &value)?),
                "group" => groups.push(value),
                "unwind" if flag(name, &value)? => taking.spec = taking.spec.unwind(),
                "unwind" => {}
                "symbols" => taking.symbols = flag(name, &value)?,
                // Go's: 0 is the format of pprof, others are texts for people.
                "debug" if value == "0" => {}
                "debug" => {
                    let message = "`debug` is 0 here: the answer has the format of pprof";
                    return Err(bad(message));
                }
                other => {
                    let known = "seconds, hz, bytes, group, unwind, symbols";
                    return Err(bad(&format!("`{other}` means nothing here: {known} do")));
                }
            }
        }
        if !groups.is_empty() {
            taking.spec = taking.spec.groups(&groups.join(","));
        }
        if taking.symbols && !cfg!(feature = "symbols") {
            let message = "`symbols`: this program was built without dormouse's feature `symbols`";
            return Err(bad(message));
        }
        Ok(Self::Profile(taking))
    }
}

fn seconds(value: &str) -> Result<u64, WebAnswer> {
    match number("seconds", value)? {
        seconds @ 1..=MAX_SECONDS => Ok(seconds),
        other => {
            let message = format!("`seconds` is {other}, and must be from 1 to {MAX_SECONDS}");
            Err(bad(&message))
        }
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, WebAnswer> {
    value.parse().map_err(|_| bad(&format!("`{name}` is {value:?}, and must be a whole number")))
}

fn flag(name: &str, value: &str) -> Result<bool, WebAnswer> {
    match value {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(bad(&format!("`{name}` is {value:?}, and must be 0 or 1"))),
    }
}

/// Decodes `%20` and `+`.
fn decode(value: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
                let (Some(high), Some(low)) = (digit(), digit()) else {
                    return Err("a % is followed by two hexadecimal digits");
                };
                (high * 16 + low) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8")
}

#[cfg(test)]
mod tests {
    use dormouse_profile::ProfileKind;

    use super::*;

    fn taking(path_and_query: &str) -> Taking {
        match Asked::parse(path_and_query) {
            Ok(Asked::Profile(taking)) => taking,
            other => panic!("{path_and_query}: {other:?}"),
        }
    }

    fn refused(path_and_query: &str) -> (u16, String) {
        let answer = Asked::parse(path_and_query).unwrap_err();
        (answer.status, String::from_utf8(answer.body).unwrap())
    }

    #[test]
    fn a_query_says_what_to_take() {
        let plain = taking("/debug/pprof/profile");
        assert_eq!((plain.spec.kind(), plain.length.as_secs(), plain.symbols), (ProfileKind::Cpu, 30, false));
        let full = taking("/inner/debug/pprof/profile?seconds=5&hz=19&group=GET%20/m*&group=a+b&debug=0");
        assert_eq!((full.length.as_secs(), full.spec.options.hz), (5, 19));
        assert_eq!(full.spec.groups.as_deref(), Some("GET /m*,a b"));
        let unwinds = |query| taking(query).spec.options.unwind;
        assert!(unwinds("profile?unwind=1") && !unwinds("profile?unwind=0") && !unwinds("profile"));
        let heap = taking("heap?bytes=4096");
        assert_eq!(
            (heap.spec.kind(), heap.spec.options.live, heap.spec.options.bytes),
            (ProfileKind::Alloc, true, 4096)
        );
        for page in ["/debug/pprof/", "/debug/pprof", "/", ""] {
            assert!(matches!(Asked::parse(page), Ok(Asked::Page)), "{page}");
        }
    }

    #[test]
    fn a_bad_query_is_told_what_is_wrong() {
        for (query, part) in [
            ("profile?seconds=0", "`seconds` is 0, and must be from 1 to 300"),
            ("profile?seconds=301", "`seconds` is 301"),
            ("profile?seconds=", "`seconds` is \"\", and must be a whole number"),
            ("profile?hz=-1", "`hz` is \"-1\""),
            ("profile?hz=99999999999", "`hz` is \"99999999999\""),
            ("allocs?bytes=x", "`bytes` is \"x\""),
            ("profile?symbols=yes", "`symbols` is \"yes\", and must be 0 or 1"),
            ("profile?unwind=2", "`unwind` is \"2\", and must be 0 or 1"),
            ("profile?debug=1", "`debug` is 0 here"),
            ("profile?grp=a", "`grp` means nothing here: seconds, hz, bytes, group, unwind, symbols do"),
            ("profile?group=%2", "`group`: a % is followed by two hexadecimal digits"),
            ("profile?group=%ff", "`group`: it is not UTF-8"),
        ] {
            let (status, text) = refused(query);
            assert_eq!(status, 400, "{query}");
            assert!(text.contains(part), "{query}: {text}");
        }
        assert_eq!(refused("/debug/pprof/goroutine").0, 404);
    }
}
