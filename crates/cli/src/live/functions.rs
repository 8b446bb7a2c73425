//! The functions of a group while it runs: a profile of its process, shown as it grows.
//!
//! All groups are profiled, because the name of one may mean something else as a glob; one is
//! shown. The profile ends when the user leaves the page.

use std::time::{Duration, Instant};

use dormouse_protocol::ProfileRequest;

use super::page::{self, Writer};
use crate::exit::Outcome;
use crate::render::profile::text::{coverage, functions};
use crate::render::profile::uses::{amount, uses};
use crate::sample::profiling::Profiled;
use crate::signals::Signals;
use crate::target::Target;

/// How often the page is renewed.
const RENEWED: Duration = Duration::from_millis(500);
/// How long the agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most functions of the page.
const MOST: usize = 200;

/// Shows the functions of the group, or in a process without groups of the threads, of this name.
pub(super) fn run(pid: u32, who: &str, name: String, end: Option<Instant>, signals: &Signals) -> Outcome<()> {
    let title = format!("{name} of {who}");
    let begin = move || {
        let profiled = Profiled::open(&Target::Pid(pid), &ProfileRequest::default(), PATIENCE);
        Functions { profiled, name }
    };
    // The table comes back at once: a service that is stopped may let the profile wait for its end.
    page::run(title, begin, drop, (RENEWED, end, Duration::ZERO), signals).map(drop)
}

/// The page, on the thread that talks to the agent.
struct Functions {
    profiled: Outcome<Profiled>,
    name: String,
}

impl Writer for Functions {
    fn page(&mut self) -> Outcome<Option<String>> {
        let profiled = match &mut self.profiled {
            Ok(profiled) => profiled,
            // The table goes on without it.
            Err(failure) => return Ok(Some(failure.to_string())),
        };
        if !profiled.look()? {
            return Ok(None);
        }
        let Some((profile, symbols)) = profiled.named() else { return Ok(Some(String::new())) };
        let column = profile.kind.main_column();
        let groups = uses(profile, &symbols, column);
        let below = coverage(profile);
        Ok(Some(match groups.iter().find(|group| group.name == self.name) {
            Some(group) => {
                let total = amount(profile.kind, column, group.total);
                let table = functions(profile.kind, column, group, MOST);
                format!("{total} so far\n\n{table}\n{below}")
            }
            None => format!("it has used no CPU time so far\n\n{below}"),
        }))
    }
}
