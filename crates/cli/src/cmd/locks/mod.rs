//! `dormouse locks`: the locks and queues for which a service waits, with their holders.
//!
//! The service notes its locks and the places of its tasks as long as this command is connected,
//! unless it does so anyway. The command reads what is known of locks twice, and shows the
//! difference; and the tasks that wait in queues at the end.

mod deadlocks;
mod futexes;
mod listing;
mod text;

pub(super) use listing::LocksDocument;

use std::time::{Duration, Instant};

use dormouse_protocol::{LockReport, LockReportRequest, LocksBegun, LocksRequest};
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
use crate::waiting::queues::{self, WaitingTasks};

use deadlocks::Deadlock;
use listing::LockListing;

/// For how long locks are noted before a list.
const LENGTH: Duration = Duration::from_secs(2);

/// Show the locks and queues for which a service waits: lines, times and holders
///
/// The locks are those of `dormouse::sync`: a service uses them in place of std's, `parking_lot`'s
/// or tokio's. LOCK is the type of the value in the lock, where it is known, WHERE the line that
/// takes it. WAITED is the time that tasks and threads waited there, in each second; BY the groups
/// that waited, HELD BY those that held the lock when the waits began. P99 and LONGEST are of the
/// waits, with the line at which the holder of the longest one had taken the lock. A lock that was
/// taken before this command came has no holder: (before). Deadlocks stand above, each thread and
/// task with the functions in which it is stuck; below, the locks for which somebody waits at this
/// moment. There are also the queues that are not of `dormouse::sync`:
/// semaphores and locks of tokio's, the permits of pools (deadpool, bb8, sqlx, mobc), and channels
/// that are full, by the line at which tasks wait; and locks of others by their futex, if a poll
/// waits for one for 20ms or longer. Their holders are not known; only a mutex of the C library's
/// contains its owner's thread. Exits with code 1 if there is a deadlock; not for what may be one.
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
        let (mut client, hello) = Client::open(&subject.target, context.patience)?;
        client.demand::<LocksRequest>()?;
        // Before locks are noted: from then on there is a list, also for a signal.
        let signals = context.cancel()?;
        let _begun: LocksBegun = client.call(LocksRequest { all: self.all })?;
        let has_places = queues::begin(&mut client, &hello)?;
        let has_long_polls = futexes::begin(&mut client)?;
        let begun = Instant::now();
        let before = client.call(LockReportRequest::default())?;
        let length = self.length.map_or(LENGTH, |Length(length)| length);
        await_times(&mut client, length, &signals)?;
        let now: LockReport = client.call(LockReportRequest { stacks: true })?;
        let length = begun.elapsed();
        let tasks = if has_places { Some(WaitingTasks::read(&mut client, context)?) } else { None };
        let queues = tasks.as_ref().map(|tasks| (tasks.queues(), tasks.unplaced()));
        let futexes = if has_long_polls { Some(futexes::read(&mut client, &now.waiters)?) } else { None };
        let mut listing = LockListing { queues, futexes, ..LockListing::new(&before, &now, length) };
        Deadlock::find_stacks(&mut listing.deadlocks, &client, tasks.as_ref(), &now.waiters);
        if context.json {
            context.document(&listing.document((client.pid, client.who.as_str())))?;
        } else {
            context.text(text::report(&listing, self.limit.unwrap_or(20)))?;
        }
        let is_certain = listing.deadlocks.iter().any(|of| of.unsure.is_none());
        Ok(if is_certain { Exit::Failed } else { Exit::Ok })
    }
}
