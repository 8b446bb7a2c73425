//! Profiles, each taken by a thread of ours, which sleeps until its end and renders the answer. If
//! the future is dropped, the thread wakes and the profile ends.

use std::time::{Duration, Instant};

use dormouse_profile::{Profile, Symbols, encode};

use super::answer;
use super::page::page;
use super::query::{Asked, Taking};
use crate::core::memory;
use crate::features::profile::run::ProfileRun;
use crate::web::{Responding, Turn, Turns, WebAnswer, on_a_thread};

/// Profiles over HTTP at once.
const AT_ONCE: u64 = 8;

/// The stack of a thread that takes one, and names its addresses.
const STACK: usize = 1024 * 1024;

/// The memory of a profile and its answer.
const MEMORY: usize = 16 * 1024 * 1024;

static TURNS: Turns = Turns::new();

/// For names the program's debug information is copied, which may be large: one at a time.
static NAMING: Turns = Turns::new();

/// How often it is looked whether another one has its names.
const NEXT: Duration = Duration::from_millis(50);

/// For how long.
const LONGEST: Duration = Duration::from_secs(60);

/// Answers a request for a path and, after a question mark, a query; see the [module](super).
///
/// ```
/// # async fn handler(path_and_query: &str) {
/// let answer = dormouse::profile::web::respond(path_and_query).await;
/// println!("{} with {} bytes", answer.status, answer.body.len());
/// # }
/// ```
///
/// # Cost
///
/// Starts a thread, which ends with the answer.
pub fn respond(path_and_query: &str) -> Responding {
    let (taking, turn) = match begin(path_and_query) {
        Ok(begun) => begun,
        Err(answer) => return answer.into(),
    };
    on_a_thread("dormouse-pprof", STACK, move |shared| {
        // It goes before the answer, so that a client that has it has room for its next profile.
        let _turn = turn;
        take(&taking, |end| shared.is_wanted_at(end))
    })
}

/// [`respond`] on the calling thread, which sleeps until the profile is taken.
///
/// ```
/// let answer = dormouse::profile::web::respond_blocking("/debug/pprof/no-such-profile");
/// assert_eq!(answer.status, 404);
/// ```
pub fn respond_blocking(path_and_query: &str) -> WebAnswer {
    let (taking, _turn) = match begin(path_and_query) {
        Ok(begun) => begun,
        Err(answer) => return answer,
    };
    let sleep = |end: Instant| {
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        true
    };
    take(&taking, sleep).unwrap_or_else(answer::no_memory)
}

/// Returns the profile to take and the permit to begin, or the answer to send at once.
fn begin(path_and_query: &str) -> Result<(Taking, Turn), WebAnswer> {
    let taking = match Asked::parse(path_and_query)? {
        Asked::Page => return Err(answer::page(page())),
        Asked::Symbol => return Err(WebAnswer::text(200, "num_symbols: 0")),
        Asked::Profile(taking) => taking,
    };
    let turn = TURNS.take(AT_ONCE).ok_or_else(|| {
        WebAnswer::text(429, &format!("{AT_ONCE} profiles are being taken: try again when one has ended"))
    })?;
    Ok((taking, turn))
}

/// Takes a profile until its end, for which `wait` waits; `None` if `wait` returns that the request
/// was dropped.
fn take(taking: &Taking, mut wait: impl FnMut(Instant) -> bool) -> Option<WebAnswer> {
    if !memory::is_there(MEMORY) {
        return Some(answer::no_memory());
    }
    let run = match ProfileRun::start(&taking.spec) {
        Ok(run) => run,
        Err(why) => return Some(answer::refusal(&why)),
    };
    if !wait(Instant::now() + taking.length) {
        return None;
    }
    if !memory::is_there(MEMORY) {
        return Some(answer::no_memory());
    }
    let mut profile = run.read();
    drop(run);
    let symbols = if taking.symbols { name(&profile, wait)? } else { Symbols::default() };
    symbols.note_lacks(&mut profile);
    dormouse_profile::settle_waits(&mut profile, &symbols);
    Some(answer::profile(encode::pprof(&profile, &symbols)))
}

/// Finds the names, once no other request does, or after a while: a thread that a filter has killed
/// never gives its turn back.
fn name(profile: &Profile, mut wait: impl FnMut(Instant) -> bool) -> Option<Symbols> {
    let end = Instant::now() + LONGEST;
    loop {
        let turn = NAMING.take(1);
        if turn.is_some() || Instant::now() >= end {
            return Some(super::symbols(profile));
        }
        if !wait(Instant::now() + NEXT) {
            return None;
        }
    }
}
