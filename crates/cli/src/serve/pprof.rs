//! Profiles at the addresses that Go's programs have, and for the page.
//!
//! The service samples itself; the names are found here, where nobody waits for it. The words of
//! the query are those of [`dormouse::profile::web`].

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use dormouse_profile::ProfileKind;
use dormouse_profile::encode;
use dormouse_protocol::ProfileRequest;

use super::TakeProfile;
use super::answers::{bad, refusal, text};
use super::hub::Seat;
use super::served::{PATIENCE, Shape, Stage};
use crate::target::Target;

/// The length of a profile if nothing else is said, as Go's programs have it; for the page; and the
/// longest.
const SECONDS: u64 = 30;
const PAGE_SECONDS: u64 = 5;
const MAX_SECONDS: u64 = 300;

/// A wish.
#[derive(Debug)]
pub(super) struct Taking {
    wish: ProfileRequest,
    length: Duration,
    /// The service by its id or name, where the query says it.
    pub(super) service: Option<String>,
}

/// The thing that an address asks for.
#[derive(Debug)]
pub(super) enum Asked {
    /// Go's tool asks for names that it has not found; all that are known are in the profile.
    Symbol,
    Profile(Box<Taking>),
}

/// Reads the last part of a path, and a query.
pub(super) fn asked(kind: &str, query: &[(String, String)]) -> Result<Asked, Response> {
    let (kind, live) = match kind {
        "symbol" => return Ok(Asked::Symbol),
        "profile" => (ProfileKind::Cpu, false),
        "allocs" => (ProfileKind::Alloc, false),
        "heap" => (ProfileKind::Alloc, true),
        "faults" => (ProfileKind::Faults, false),
        "wall" => (ProfileKind::Wall, false),
        other => {
            let message =
                format!("there is no profile {other:?}: ask for profile, allocs, heap, faults or wall");
            return Err(refusal(StatusCode::NOT_FOUND, "not-found", &message));
        }
    };
    taking(kind, live, SECONDS, query).map(|taking| Asked::Profile(Box::new(taking)))
}

/// Reads the query of a profile for the page.
pub(super) fn for_page(query: &[(String, String)]) -> Result<Taking, Response> {
    let kind = query.iter().find(|(name, _)| name == "kind").map_or("cpu", |(_, kind)| kind);
    let kind = match kind {
        "cpu" => ProfileKind::Cpu,
        "alloc" => ProfileKind::Alloc,
        "faults" => ProfileKind::Faults,
        "wall" => ProfileKind::Wall,
        other => return Err(bad(&format!("`kind` is {other:?}, and must be cpu, alloc, faults or wall"))),
    };
    let rest: Vec<_> = query.iter().filter(|(name, _)| name != "kind").cloned().collect();
    taking(kind, false, PAGE_SECONDS, &rest)
}

fn taking(
    kind: ProfileKind,
    live: bool,
    seconds: u64,
    query: &[(String, String)],
) -> Result<Taking, Response> {
    let mut wish = ProfileRequest { kind, live, ..ProfileRequest::default() };
    let (mut seconds, mut service, mut groups) = (seconds, None, Vec::new());
    for (name, value) in query {
        match name.as_str() {
            "seconds" => seconds = number(name, value, 1..=MAX_SECONDS)?,
            "hz" => wish.hz = Some(number(name, value, 1..=1000)? as u32),
            "bytes" => wish.bytes = Some(number(name, value, 1..=u64::MAX)?),
            "group" => groups.push(value.as_str()),
            "unwind" => wish.unwind = flag(name, value)?,
            "pid" => service = Some(value.clone()),
            // They are always there.
            "symbols" => drop(flag(name, value)?),
            "debug" if value == "0" => {}
            "debug" => return Err(bad("`debug` is 0 here: the answer has the format of pprof")),
            other => {
                let known = "seconds, hz, bytes, group, unwind, pid";
                return Err(bad(&format!("{other:?} means nothing here: {known} do")));
            }
        }
    }
    wish.group = (!groups.is_empty()).then(|| groups.join(","));
    Ok(Taking { wish, length: Duration::from_secs(seconds), service })
}

fn number(name: &str, value: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, Response> {
    value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let (least, most) = range.into_inner();
        bad(&format!("`{name}` is {value:?}, and must be a whole number from {least} to {most}"))
    })
}

fn flag(name: &str, value: &str) -> Result<bool, Response> {
    match value {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(bad(&format!("`{name}` is {value:?}, and must be 0 or 1"))),
    }
}

/// The answer for names: none.
pub(super) fn no_symbols() -> Response {
    text("num_symbols: 0\n")
}

impl Taking {
    /// Takes the profile of a process, as a file for pprof or as the page's data.
    pub(super) async fn answer(
        self,
        stage: &Stage,
        take: TakeProfile,
        seat: &Seat,
        shape: Shape,
    ) -> Response {
        let Taking { wish, length, .. } = self;
        let encode = match shape {
            Shape::Bytes => encode::pprof,
            _ => |profile: &_, symbols: &_| encode::html_data(profile, symbols).into_bytes(),
        };
        let process = seat.process();
        let target = Target::Exact(process.pid, process.start_ticks);
        let longest = length + Duration::from_secs(60);
        let work = move |context: &mut crate::output::Context| {
            let bytes = take((&target, &wish), (length, PATIENCE), encode)?;
            context.bytes(&bytes).map(|()| crate::exit::Exit::Ok)
        };
        stage.answer(shape, longest, work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(query: &[(&str, &str)]) -> Vec<(String, String)> {
        query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_query_says_what_to_take() {
        let query =
            pairs(&[("seconds", "2"), ("hz", "19"), ("group", "GET *"), ("group", "b"), ("pid", "tea")]);
        let Ok(Asked::Profile(taking)) = asked("heap", &query) else { panic!("it is a profile") };
        assert_eq!((taking.length.as_secs(), taking.service.as_deref()), (2, Some("tea")));
        assert_eq!((taking.wish.kind, taking.wish.live), (ProfileKind::Alloc, true));
        assert_eq!((taking.wish.hz, taking.wish.group.as_deref()), (Some(19), Some("GET *,b")));
        let Ok(Asked::Profile(plain)) = asked("profile", &[]) else { panic!("it is a profile") };
        assert_eq!((plain.length.as_secs(), plain.wish), (30, ProfileRequest::default()));
        assert!(matches!(asked("symbol", &[]), Ok(Asked::Symbol)));
    }

    #[test]
    fn bad_queries_are_refused() {
        for (kind, name, value, status) in [
            ("profile", "seconds", "0", 400),
            ("profile", "seconds", "301", 400),
            ("profile", "hz", "1001", 400),
            ("profile", "debug", "1", 400),
            ("profile", "output", "/tmp/x", 400),
            ("profile", "unwind", "maybe", 400),
            ("goroutine", "seconds", "1", 404),
        ] {
            let refused = asked(kind, &pairs(&[(name, value)])).unwrap_err();
            assert_eq!(refused.status().as_u16(), status, "{kind} {name}={value}");
        }
        assert!(for_page(&pairs(&[("kind", "heap")])).is_err());
        assert_eq!(for_page(&pairs(&[("kind", "wall")])).unwrap().wish.kind, ProfileKind::Wall);
    }
}
