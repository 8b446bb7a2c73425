//! `dormouse on`: switches keys on, for as long as somebody answers for it.
//!
//! By default that is this command: it stays in the foreground, and when it ends, however it ends, the connection
//! closes and the agent takes the lease back. `--for` leaves a lease that ends by itself, `--keep` none at all.
//! `--dwell` has what is taken back linger, so that who switches often does not have the service patched each time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dormouse::wire::{Changed, Ended, Note, Op};
use serde::Serialize;

use crate::args::Selection;
use crate::client::Client;
use crate::duration::{milliseconds, parse_hold, short};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, GOOD, HEAD, say};
use crate::signals::{Signals, wait};
use crate::text::{Clean, count};

/// Switch keys on: until Ctrl-C, for a time, or for good
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    keys: Selection,
    /// Return at once; the service switches them off after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_hold)]
    length: Option<Duration>,
    /// Return at once and leave them on
    #[arg(long, conflicts_with = "length")]
    keep: bool,
    /// Leave them on this much longer after the end; if they are on again by then, nothing is patched
    #[arg(long, value_name = "DURATION", value_parser = parse_hold, conflicts_with_all = ["length", "keep"])]
    dwell: Option<Duration>,
}

/// Who answers for the keys being on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// This process, as long as it lives, and then nobody for so many milliseconds.
    Foreground { dwell_ms: Option<u64> },
    /// The agent, for so many milliseconds.
    Timed(u64),
    /// Nobody.
    Baseline,
}

impl Hold {
    /// The word for it in JSON.
    fn word(self) -> &'static str {
        match self {
            Hold::Foreground { .. } => "foreground",
            Hold::Timed(_) => "timed",
            Hold::Baseline => "kept",
        }
    }
}

impl Args {
    fn hold(&self) -> Hold {
        match self.length {
            _ if self.keep => Hold::Baseline,
            Some(length) => Hold::Timed(milliseconds(length)),
            None => Hold::Foreground { dwell_ms: self.dwell.map(milliseconds) },
        }
    }
}

/// What `on` and `off` did, as JSON.
#[derive(Serialize)]
pub(super) struct Done<'a> {
    pub(super) state: &'static str,
    /// What keeps them so: `foreground`, `timed`, `kept`; `dwell` where they are to go off later, else `now`.
    pub(super) mode: &'static str,
    pub(super) pid: u32,
    /// When they go off, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) off_at_unix_ms: Option<u64>,
    #[serde(flatten)]
    pub(super) changed: &'a Changed,
}

/// The moment so many milliseconds from now, since 1970.
pub(super) fn unix_ms_in(ms: u64) -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(now.as_millis()).ok()?.checked_add(ms)
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let hold = args.hold();
    let (mut client, _) = Client::open(&args.keys.target, context.patience)?;
    // From here on a signal ends the wait below, not the process in the middle of a line.
    let signals = Signals::to_end()?;
    let op = Op::On {
        glob: args.keys.glob.clone(),
        for_ms: if let Hold::Timed(ms) = hold { Some(ms) } else { None },
        dwell_ms: if let Hold::Foreground { dwell_ms } = hold { dwell_ms } else { None },
        keep: hold == Hold::Baseline,
    };
    let mut changed: Changed = client.call(op)?;
    if let Hold::Timed(ms) = hold {
        // An agent that does not say it has held them for what was asked.
        changed.off_in_ms.get_or_insert(ms);
    }
    if context.json {
        let off_at_unix_ms = changed.off_in_ms.and_then(unix_ms_in);
        let done =
            Done { state: "on", mode: hold.word(), pid: client.pid(), off_at_unix_ms, changed: &changed };
        context.document(&done)?;
    } else {
        print(&changed, "on", context)?;
    }
    context.flush()?;
    match hold {
        Hold::Foreground { dwell_ms } => {
            let later = dwell_ms.map(|ms| format!(" {} later", short(ms.saturating_mul(1_000_000))));
            let later = later.unwrap_or_default();
            say(format_args!("holding them on in {}; Ctrl-C switches them off{later}", client.who()));
            hold_on(&mut client, &signals)
        }
        Hold::Timed(ms) => {
            let left = changed.off_in_ms.unwrap_or(ms);
            let length = short(left.saturating_mul(1_000_000));
            let earlier = if left > ms { ": an earlier --for holds longer" } else { "" };
            say(format_args!("{} switches them off in {length}{earlier}", client.who()));
            Ok(Exit::Ok)
        }
        Hold::Baseline => {
            let Selection { target, glob } = &args.keys;
            say(format_args!("they stay on until `dormouse off {target} '{glob}'`"));
            Ok(Exit::Ok)
        }
    }
}

/// Keeps the connection, and with it the lease, until a signal, the end of the service, or somebody who takes all of it
/// away.
fn hold_on(client: &mut Client, signals: &Signals) -> Outcome {
    use std::os::fd::AsFd as _;
    loop {
        let [readable, signalled] = wait([client.as_fd(), signals.as_fd()], None)
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot wait: {error}")))?;
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
            say(format_args!("{FAIR}switched off by force:{FAIR:#} {}", taken(&ended)));
            if ended.left == 0 {
                return Ok(Exit::Failed);
            }
        }
    }
}

/// What somebody took, and who.
pub(crate) fn taken(ended: &Ended) -> String {
    let keys = count(ended.keys as u64, "key");
    let left = match ended.left {
        0 => "nothing is held any more".to_owned(),
        n => format!("{} still held", count(n as u64, "key")),
    };
    match ended.pid {
        0 => format!("{keys}, by user {}; {left}", ended.uid),
        pid => format!("{keys}, by process {pid} of user {}; {left}", ended.uid),
    }
}

/// What a batch did, for people.
pub(super) fn print(changed: &Changed, state: &str, context: &mut Context) -> Outcome<()> {
    let batch = &changed.batch;
    let how = match changed.changed as u64 {
        0 => "no key changed".to_owned(),
        n => format!(
            "{} changed, {} in {}",
            count(n, "key"),
            count(batch.sites as u64, "site"),
            short(batch.elapsed_ns)
        ),
    };
    context.line(format_args!("{HEAD}{state}{HEAD:#}: {how}"))?;
    // An agent that does not say which is of before there was a difference.
    for name in changed.names.as_ref().unwrap_or(&changed.matched) {
        context.line(format_args!("  {GOOD}{}{GOOD:#}", Clean(name)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    fn hold(length: Option<Duration>, keep: bool) -> Hold {
        let keys = Selection { target: Target::Pid(1), glob: "*".into() };
        Args { keys, length, keep, dwell: None }.hold()
    }

    #[test]
    fn a_lease_is_never_shorter_than_asked_for() {
        assert_eq!(hold(None, false), Hold::Foreground { dwell_ms: None });
        assert_eq!(hold(None, true), Hold::Baseline);
        assert_eq!(hold(Some(Duration::from_secs(30)), false), Hold::Timed(30_000));
        assert_eq!(hold(Some(Duration::from_nanos(1)), false), Hold::Timed(1));
        assert_eq!(hold(Some(Duration::from_micros(1001)), false), Hold::Timed(2));
    }
}
