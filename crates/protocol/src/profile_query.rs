//! A profile as a path and a query ask for it, at the addresses that Go's programs have.

use std::collections::HashSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::ProfileRequest;
use crate::profile::ProfileKind;

/// Seconds that a profile over HTTP takes.
const SECONDS: RangeInclusive<u64> = 1..=300;

/// The profile that the query of a URL requests, and for how long it samples.
///
/// ```
/// use dormouse_protocol::ProfileQuery;
///
/// let heap = ProfileQuery::at("heap").unwrap().read([("seconds", "5")], &[]).unwrap();
/// assert!(heap.request.live && heap.length.as_secs() == 5);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileQuery {
    /// The request.
    pub request: ProfileRequest,
    /// For how long the profile samples.
    pub length: Duration,
    /// The parameters that the server handles itself, with their values.
    pub own: Vec<(String, String)>,
}

impl ProfileRequest {
    /// The allowed number of samples per second of each thread.
    pub const HZ: RangeInclusive<u32> = 1..=1000;
}

impl ProfileQuery {
    /// A profile of that kind for `seconds` seconds.
    pub fn of(kind: ProfileKind, seconds: u64) -> Self {
        let request = ProfileRequest { kind, ..ProfileRequest::default() };
        Self { request, length: Duration::from_secs(seconds), own: Vec::new() }
    }

    /// The profile that the last part of a path names, for 30 seconds as Go's programs have it; the
    /// error says which names there are.
    pub fn at(name: &str) -> Result<Self, String> {
        let kind = match name {
            "profile" => ProfileKind::Cpu,
            "allocs" | "heap" => ProfileKind::Alloc,
            "faults" => ProfileKind::Faults,
            "wall" => ProfileKind::Wall,
            other => {
                return Err(format!(
                    "there is no profile {other:?}: ask for profile, allocs, heap, faults or wall"
                ));
            }
        };
        let mut query = Self::of(kind, 30);
        query.request.live = name == "heap";
        Ok(query)
    }

    /// Reads the parameters of a query; those named in `own` belong to the server. The error names
    /// the wrong parameter and the reason: only `group` may be given more than once.
    pub fn read<N: AsRef<str>, V: AsRef<str>>(
        mut self,
        words: impl IntoIterator<Item = (N, V)>,
        own: &[&str],
    ) -> Result<Self, String> {
        let (mut groups, mut given) = (Vec::new(), HashSet::new());
        for (name, value) in words {
            let (name, value) = (name.as_ref(), value.as_ref());
            if name != "group" && !given.insert(name.to_owned()) {
                return Err(format!("`{name}` is given more than once"));
            }
            match name {
                "seconds" => self.length = Duration::from_secs(number(name, value, SECONDS)?),
                "hz" => self.request.hz = Some(number(name, value, ProfileRequest::HZ)?),
                "bytes" => self.request.bytes = Some(number(name, value, 1..=u64::MAX)?),
                "group" => groups.push(value.to_owned()),
                "unwind" => self.request.unwind = flag(name, value)?,
                // Go's: 0 is the format of pprof, others are texts for people.
                "debug" if value == "0" => {}
                "debug" => return Err("`debug` is 0 here: the answer has the format of pprof".to_owned()),
                _ if own.contains(&name) => self.own.push((name.to_owned(), value.to_owned())),
                other => {
                    let known = ["seconds", "hz", "bytes", "group", "unwind"];
                    let known = [&known[..], own].concat().join(", ");
                    return Err(format!("`{other}` means nothing here: {known} do"));
                }
            }
        }
        self.request.group = (!groups.is_empty()).then(|| groups.join(","));
        Ok(self)
    }

    /// The value of a parameter that belongs to the server, which is 0 or 1.
    pub fn own_flag(&self, name: &str) -> Result<bool, String> {
        let given = self.own.iter().rfind(|(own, _)| own == name);
        given.map_or(Ok(false), |(name, value)| flag(name, value))
    }
}

fn number<N>(name: &str, value: &str, range: RangeInclusive<N>) -> Result<N, String>
where
    N: FromStr + PartialOrd + fmt::Display,
{
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        format!("`{name}` is {value:?}, and must be a whole number from {least} to {most}")
    })
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(format!("`{name}` is {value:?}, and must be 0 or 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_what_to_take() {
        let words = [
            ("seconds", "2"),
            ("hz", "19"),
            ("group", "GET *"),
            ("group", "b"),
            ("unwind", "1"),
            ("pid", "7"),
        ];
        let query = ProfileQuery::at("profile").unwrap().read(words, &["pid"]).unwrap();
        let right = ProfileRequest {
            hz: Some(19),
            group: Some("GET *,b".into()),
            unwind: true,
            ..ProfileRequest::default()
        };
        assert_eq!((query.request, query.length.as_secs()), (right, 2));
        assert_eq!(query.own, [("pid".to_owned(), "7".to_owned())]);
        let plain = ProfileQuery::at("profile").unwrap();
        assert_eq!((plain.request, plain.length.as_secs()), (ProfileRequest::default(), 30));
    }

    #[test]
    fn a_wrong_word_is_told() {
        for (name, value, part) in [
            ("seconds", "0", "`seconds` is \"0\", and must be a whole number from 1 to 300"),
            ("seconds", "301", "`seconds` is \"301\""),
            ("seconds", "", "`seconds` is \"\", and must be a whole number"),
            ("hz", "1001", "`hz` is \"1001\", and must be a whole number from 1 to 1000"),
            ("hz", "-1", "`hz` is \"-1\""),
            ("bytes", "x", "`bytes` is \"x\""),
            ("unwind", "maybe", "`unwind` is \"maybe\", and must be 0 or 1"),
            ("debug", "1", "`debug` is 0 here"),
            ("output", "/tmp/x", "`output` means nothing here: seconds, hz, bytes, group, unwind, pid do"),
        ] {
            let wrong = ProfileQuery::at("profile").unwrap().read([(name, value)], &["pid"]).unwrap_err();
            assert!(wrong.contains(part), "{name}={value}: {wrong}");
        }
        assert!(ProfileQuery::at("goroutine").unwrap_err().contains("ask for profile, allocs"));
    }
}
