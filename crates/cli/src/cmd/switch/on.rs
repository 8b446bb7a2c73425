//! `dormouse on`: switches keys on, for as long as there is a holder.
//!
//! By default the holder is this command: it stays in the foreground, and when it ends, in whatever
//! way, the connection closes and the agent ends the lease. `--for` leaves a lease that ends by
//! itself, `--keep` sets the baseline without a lease. `--dwell` keeps the keys on for a while
//! after the lease, so that a script that switches often does not have the service patched each
//! time.

use std::os::fd::AsFd as _;
use std::time::Duration;

use dormouse_protocol::{Changed, Note, OnRequest};
use serde::Deserialize;

#[cfg(feature = "serve")]
use super::Request as SwitchRequest;
use crate::args::help;
use crate::client::Client;
use crate::client::session::{Session, Subject};
use crate::duration::{milliseconds, parse_hold};
use crate::exit::{Exit, Outcome};
use crate::output::Context;
use crate::render::leases::{Switched, note_ended, short_ms, unix_ms_in};
use crate::signals::{Signals, wait};
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// Switch keys on: until Ctrl-C, for a time, or for good
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {
    #[arg(help = help::GLOB)]
    glob: String,
    /// Return at once; the service switches them off after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_hold)]
    #[serde(skip)]
    length: Option<Duration>,
    /// Return at once and leave them on
    #[arg(long, conflicts_with = "length")]
    #[serde(skip)]
    keep: bool,
    /// Leave them on this much longer after the end; if they are on again by then, nothing is
    /// patched
    #[arg(long, value_name = "DURATION", value_parser = parse_hold, conflicts_with_all = ["length", "keep"])]
    #[serde(skip)]
    dwell: Option<Duration>,
}

impl Request {
    /// For that time.
    pub(super) fn timed(glob: String, length: Duration) -> Request {
        Request { glob, length: Some(length), keep: false, dwell: None }
    }
}

impl Asked for Request {
    const NAME: &'static str = "on";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::changing::<SwitchRequest>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let Request { glob, length, keep, dwell } = self;
        let mut session = subject.session(context.patience)?;
        // From here on a signal ends the wait below, not the process in the middle of a line.
        let signals = context.cancel()?;
        let (for_ms, dwell_ms) = (length.map(milliseconds), dwell.map(milliseconds));
        let mode = match for_ms {
            _ if *keep => "kept",
            Some(_) => "timed",
            None => "foreground",
        };
        let mut changed: Changed =
            session.call(OnRequest { glob: glob.clone(), for_ms, dwell_ms, keep: *keep })?;
        if let Some(ms) = for_ms {
            // An agent that does not report it has held them for the requested time.
            changed.off_in_ms.get_or_insert(ms);
        }
        let off_at_unix_ms = changed.off_in_ms.and_then(unix_ms_in);
        Switched::new(("on", mode), session.pid(), off_at_unix_ms, &changed, context).print(context)?;
        context.flush()?;
        let who = session.who();
        if *keep {
            let target = &subject.target;
            context.note(format_args!("they stay on; `dormouse reset {target} '{glob}'` undoes it"));
        } else if let Some(ms) = for_ms {
            let left = changed.off_in_ms.unwrap_or(ms);
            let earlier = if left > ms { ": an earlier --for holds longer" } else { "" };
            context.note(format_args!("{who} switches them off in {}{earlier}", short_ms(left)));
        } else if let Session::Own(mut client) = session {
            let later = dwell_ms.map(|ms| format!(" {} later", short_ms(ms))).unwrap_or_default();
            context.note(format_args!("holding them on in {who}; Ctrl-C switches them off{later}"));
            return stay_connected(&mut client, &signals, context);
        }
        Ok(Exit::Ok)
    }
}

/// Keeps the connection, and with it the lease, until a signal, the end of the service, or another
/// client's `off --force` of all of it.
fn stay_connected(client: &mut Client, signals: &Signals, context: &Context) -> Outcome {
    loop {
        let [readable, signalled] = wait([client.as_fd(), signals.as_fd()], None)?;
        if signalled && signals.take() {
            return Ok(Exit::Ok);
        }
        if !readable {
            continue;
        }
        let notices = client
            .notices()
            .map_err(|failure| failure.hint("keys of a service that ended are off with it"))?;
        for note in notices {
            let Note::Ended(ended) = note else { continue };
            note_ended(&ended, context);
            if ended.left == 0 {
                return Ok(Exit::Failed);
            }
        }
    }
}
