//! The request in a path and its query.

use std::time::Duration;

use dormouse_protocol::ProfileQuery;

use super::answer::bad;
use crate::features::profile::spec::ProfileSpec;
use crate::web::WebAnswer;

/// The subject of an HTTP request.
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
        let asked = match path.rsplit('/').next().unwrap_or_default() {
            "" | "pprof" => return Ok(Self::Page),
            "symbol" => return Ok(Self::Symbol),
            name => ProfileQuery::at(name).map_err(|message| WebAnswer::text(404, &message))?,
        };
        let mut words = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            words.push((name, decode(value).map_err(|why| bad(&format!("`{name}`: {why}")))?));
        }
        let asked = asked.read(words, &["symbols"]).map_err(|why| bad(&why))?;
        let symbols = asked.own_flag("symbols").map_err(|why| bad(&why))?;
        if symbols && !cfg!(feature = "symbols") {
            let message = "`symbols`: this program was built without dormouse's feature `symbols`";
            return Err(bad(message));
        }
        let (spec, length) = (ProfileSpec::of(&asked.request), asked.length);
        Ok(Self::Profile(Taking { spec, length, symbols }))
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
            ("profile?seconds=0", "`seconds` is \"0\", and must be a whole number from 1 to 300"),
            ("profile?hz=99999999999", "`hz` is \"99999999999\""),
            ("profile?symbols=yes", "`symbols` is \"yes\", and must be 0 or 1"),
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
