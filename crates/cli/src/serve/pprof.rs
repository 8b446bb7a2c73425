//! Profiles at the addresses that Go's programs have, and for the page.
//!
//! The service samples itself; the names are found here, where nobody waits for it. The words of
//! the query are those of [`ProfileQuery`]. `taskleak` lists tasks, and samples nothing.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use dormouse_profile::{ProfileKind, encode};
use dormouse_protocol::ProfileQuery;

use super::answers::{bad, refusal, text};
use super::hub::ServiceSession;
use super::served::{RunSlots, Shape};
use super::{TakeLeaks, TakeProfile};
use crate::output::Context;

/// The last part of the path for tasks that leak.
const LEAKS: &str = "taskleak";

/// The length of a profile for the page if the query has none.
const PAGE_SECONDS: u64 = 5;

/// A profile that is asked for.
#[derive(Debug)]
pub(super) struct Taking {
    query: ProfileQuery,
    /// The service by its id or name, where the query has it.
    pub(super) service: Option<String>,
}

/// The thing that an address asks for.
#[derive(Debug)]
pub(super) enum Asked {
    /// Go's tool asks for names that it has not found; all that are known are in the profile.
    Symbol,
    Profile(Box<Taking>),
    Leaks(LeakQuery),
}

/// Tasks that leak are asked for.
#[derive(Debug)]
pub(super) struct LeakQuery {
    /// For how long to watch; `None`: as long as it takes.
    length: Option<Duration>,
    /// The service by its id or name, where the query has it.
    pub(super) service: Option<String>,
}

/// Reads the last part of a path, and a query.
pub(super) fn asked(kind: &str, words: &[(String, String)]) -> Result<Asked, Response> {
    if kind == "symbol" {
        return Ok(Asked::Symbol);
    }
    if kind == LEAKS {
        return leaks(words).map(Asked::Leaks);
    }
    let query = ProfileQuery::at(kind);
    let query = query.map_err(|message| refusal(StatusCode::NOT_FOUND, "not-found", &message))?;
    taking(query, words).map(|taking| Asked::Profile(Box::new(taking)))
}

fn leaks(words: &[(String, String)]) -> Result<LeakQuery, Response> {
    let is_known = |(name, _): &(String, String)| ["seconds", "pid", "debug"].contains(&name.as_str());
    if let Some((other, _)) = words.iter().find(|word| !is_known(word)) {
        return Err(bad(&format!("`{other}` means nothing here: seconds, pid, debug do")));
    }
    // Checks what both have.
    let taking = taking(ProfileQuery::of(ProfileKind::Wall, PAGE_SECONDS), words)?;
    let has_length = words.iter().any(|(name, _)| name == "seconds");
    Ok(LeakQuery { length: has_length.then_some(taking.query.length), service: taking.service })
}

/// Reads the query of a profile for the page.
pub(super) fn for_page(words: &[(String, String)]) -> Result<Taking, Response> {
    let (kinds, rest): (Vec<_>, Vec<_>) = words.iter().cloned().partition(|(name, _)| name == "kind");
    let kind = match &*kinds {
        [] => "cpu",
        [(_, kind)] => kind,
        _ => return Err(bad("`kind` is given more than once")),
    };
    let kind = kind.parse().map_err(|why: String| bad(&format!("`kind`: {why}")))?;
    taking(ProfileQuery::of(kind, PAGE_SECONDS), &rest)
}

fn taking(query: ProfileQuery, words: &[(String, String)]) -> Result<Taking, Response> {
    let words = words.iter().map(|(name, value)| (name, value));
    let query = query.read(words, &["pid", "symbols"]).map_err(|why| bad(&why))?;
    // Names are always in the answer.
    query.own_flag("symbols").map_err(|why| bad(&why))?;
    let service = query.own.iter().rfind(|(name, _)| name == "pid").map(|(_, service)| service.clone());
    Ok(Taking { query, service })
}

/// The answer for names: none.
pub(super) fn no_symbols() -> Response {
    text("num_symbols: 0\n")
}

impl LeakQuery {
    /// Lists the tasks of a process that leak.
    pub(super) async fn answer(
        self,
        run_slots: &RunSlots,
        take: TakeLeaks,
        session: &ServiceSession,
    ) -> Response {
        let subject = session.subject();
        let longest = self.length.unwrap_or_default() + Duration::from_secs(60);
        let work = move |context: &mut Context| take(&subject, self.length, context);
        run_slots.answer(Shape::Bytes, longest, work).await
    }
}

impl Taking {
    /// Takes the profile of a process, as a file for pprof or as the page's data.
    pub(super) async fn answer(
        self,
        run_slots: &RunSlots,
        take: TakeProfile,
        session: &ServiceSession,
        shape: Shape,
    ) -> Response {
        let ProfileQuery { request, length, .. } = self.query;
        let encode = match shape {
            Shape::Bytes => encode::pprof,
            _ => |profile: &_, symbols: &_| encode::html_data(profile, symbols).into_bytes(),
        };
        let (subject, longest) = (session.subject(), length + Duration::from_secs(60));
        let work = move |context: &mut Context| take(&subject, (&request, length), encode, context);
        run_slots.answer(shape, longest, work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(query: &[(&str, &str)]) -> Vec<(String, String)> {
        query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_query_may_name_the_service() {
        let query = pairs(&[("seconds", "2"), ("pid", "tea"), ("symbols", "1")]);
        let Ok(Asked::Profile(taking)) = asked("heap", &query) else { panic!("it is a profile") };
        assert_eq!((taking.query.length.as_secs(), taking.service.as_deref()), (2, Some("tea")));
        assert_eq!((taking.query.request.kind, taking.query.request.live), (ProfileKind::Alloc, true));
        assert!(matches!(asked("symbol", &[]), Ok(Asked::Symbol)));
        let Ok(Asked::Leaks(leaks)) = asked("taskleak", &pairs(&[("pid", "tea")])) else {
            panic!("they leak")
        };
        assert_eq!((leaks.length, leaks.service.as_deref()), (None, Some("tea")));
        let Ok(Asked::Leaks(leaks)) = asked("taskleak", &pairs(&[("seconds", "3")])) else {
            panic!("they leak")
        };
        assert_eq!(leaks.length, Some(Duration::from_secs(3)));
    }

    #[test]
    fn bad_queries_are_refused() {
        for (kind, name, value, status) in [
            ("profile", "seconds", "0", 400),
            ("profile", "output", "/tmp/x", 400),
            ("profile", "symbols", "maybe", 400),
            ("goroutine", "seconds", "1", 404),
            ("taskleak", "seconds", "0", 400),
            ("taskleak", "hz", "1", 400),
        ] {
            let refused = asked(kind, &pairs(&[(name, value)])).unwrap_err();
            assert_eq!(refused.status().as_u16(), status, "{kind} {name}={value}");
        }
        assert!(for_page(&pairs(&[("kind", "heap")])).is_err());
        assert!(for_page(&pairs(&[("kind", "cpu"), ("kind", "cpu")])).is_err());
        assert!(asked("profile", &pairs(&[("seconds", "1"), ("seconds", "1")])).is_err());
        assert_eq!(for_page(&pairs(&[("kind", "wall")])).unwrap().query.request.kind, ProfileKind::Wall);
    }
}
