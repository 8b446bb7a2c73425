//! `dormouse locks`: the locks for which a service waits, with their holders.
//!
//! The service notes its locks as long as this command is connected, unless it does so anyway. The
//! command reads what is known twice, and shows the difference.

mod listing;
mod text;

pub(super) use listing::LocksDocument;

use std::time::{Duration, Instant};

use dormouse_protocol::{LockReportRequest, LocksBegun, LocksRequest};
use serde::Deserialize;

use crate::client::Client;
use crate::client::session::Subject;
use crate::client::waits::await_times;
use crate::exit::{Exit, Outcome};
use crate::length::Length;
use crate::output::Context;
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

use listing::LockListing;

/// For how long locks are noted before a list.
const LENGTH: Duration = Duration::from_secs(2);

/// Show the locks for which a service waits: at which line, for how long, and their holders
///
/// The locks are those of `dormouse::sync`: a service uses them in place of std's, `parking_lot`'s
/// or tokio's. LOCK is the type of the value in the lock, where it is known, WHERE the line that
/// takes it. WAITED is the time that tasks and threads waited there, in each second; BY the groups
/// that waited, HELD BY those that held the lock when the waits began. P99 and LONGEST are of the
/// waits, with the line at which the holder of the longest one had taken the lock. A lock that was
/// taken before this command came has no holder: (before). Below stand the locks for which somebody
/// waits at this moment, and deadlocks. Exits with code 1 if there is a deadlock.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    /// Note locks for this long [default: 2s]; Ctrl-C ends it early
    #[arg(long = "for", value_name = "DURATION")]
    #[serde(rename = "for")]
    length: Option<Length>,
    /// Time each hold, not only those after a wait and one in 16 of the others: costs some 30 ns
    /// more for each
    #[arg(long)]
    all: bool,
    /// List at most this many lines [default: 20]
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<usize>,
}

impl Asked for Request {
    const NAME: &'static str = "locks";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let (mut client, _) = Client::open(&subject.target, context.patience)?;
        client.demand::<LocksRequest>()?;
        // Before locks are noted: from then on there is a list, also for a signal.
        let signals = context.cancel()?;
        let _begun: LocksBegun = client.call(LocksRequest { all: self.all })?;
        let begun = Instant::now();
        let before = client.call(LockReportRequest {})?;
        let length = self.length.map_or(LENGTH, |Length(length)| length);
        await_times(&mut client, length, &signals)?;
        let now = client.call(LockReportRequest {})?;
        let listing = LockListing::new(&before, &now, begun.elapsed());
        if context.json {
            context.document(&listing.document((client.pid, client.who.as_str())))?;
        } else {
            context.text(text::report(&listing, self.limit.unwrap_or(20)))?;
        }
        Ok(if listing.deadlocks.is_empty() { Exit::Ok } else { Exit::Failed })
    }
}
