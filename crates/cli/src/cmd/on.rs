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

use crate::args::KeyArgs;
use crate::client::Client;
use crate::duration::{milliseconds, parse_hold};
use crate::exit::{Exit, Outcome};
use crate::output::{Context, say};
use crate::render::leases::{Switched, say_ended, short_ms, unix_ms_in};
use crate::signals::{Signals, wait};

/// Switch keys on: until Ctrl-C, for a time, or for good
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    keys: KeyArgs,
    /// Return at once; the service switches them off after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_hold)]
    length: Option<Duration>,
    /// Return at once and leave them on
    #[arg(long, conflicts_with = "length")]
    keep: bool,
    /// Leave them on this much longer after the end; if they are on again by then, nothing is
    /// patched
    #[arg(long, value_name = "DURATION", value_parser = parse_hold, conflicts_with_all = ["length", "keep"])]
    dwell: Option<Duration>,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let KeyArgs { target, glob } = &args.keys;
    let (mut client, _) = Client::open(target, context.patience)?;
    // From here on a signal ends the wait below, not the process in the middle of a line.
    let signals = Signals::to_end()?;
    let (for_ms, dwell_ms) = (args.length.map(milliseconds), args.dwell.map(milliseconds));
    let mode = match for_ms {
        _ if args.keep => "kept",
        Some(_) => "timed",
        None => "foreground",
    };
    let mut changed: Changed =
        client.call(OnRequest { glob: glob.clone(), for_ms, dwell_ms, keep: args.keep })?;
    if let Some(ms) = for_ms {
        // An agent that does not report it has held them for the requested time.
        changed.off_in_ms.get_or_insert(ms);
    }
    let off_at_unix_ms = changed.off_in_ms.and_then(unix_ms_in);
    Switched { state: "on", mode, pid: client.pid, off_at_unix_ms, changed: &changed }.print(context)?;
    context.flush()?;
    if args.keep {
        say(format_args!("they stay on; `dormouse reset {target} '{glob}'` undoes it"));
    } else if let Some(ms) = for_ms {
        let left = changed.off_in_ms.unwrap_or(ms);
        let earlier = if left > ms { ": an earlier --for holds longer" } else { "" };
        say(format_args!("{} switches them off in {}{earlier}", client.who, short_ms(left)));
    } else {
        let later = dwell_ms.map(|ms| format!(" {} later", short_ms(ms))).unwrap_or_default();
        say(format_args!("holding them on in {}; Ctrl-C switches them off{later}", client.who));
        return stay_connected(&mut client, &signals);
    }
    Ok(Exit::Ok)
}

/// Keeps the connection, and with it the lease, until a signal, the end of the service, or another
/// client's `off --force` of all of it.
fn stay_connected(client: &mut Client, signals: &Signals) -> Outcome {
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
            say_ended(&ended);
            if ended.left == 0 {
                return Ok(Exit::Failed);
            }
        }
    }
}
