//! `dormouse off`: clears what was left on, and says what still holds the rest.

use std::time::Duration;

use dormouse::wire::{Changed, Held, HeldBy, Holder, Op};

use super::on::{Done, print, unix_ms_in};
use crate::args::Selection;
use crate::client::Client;
use crate::duration::{milliseconds, parse_hold, short};
use crate::exit::{Exit, Outcome};
use crate::output::{Context, FAIR, say};
use crate::text::count;

/// Switch keys off
///
/// Clears what `on --keep` and your own `on --for` left. Keys that others hold stay on, which is listed and ends
/// with exit code 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    keys: Selection,
    /// Leave them on this much longer; if they are on again by then, nothing is patched
    #[arg(long, value_name = "DURATION", value_parser = parse_hold)]
    dwell: Option<Duration>,
    /// Also end what others hold
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let (mut client, _) = Client::open(&args.keys.target, context.patience)?;
    let dwell_ms = args.dwell.map(milliseconds);
    let op = Op::Off { glob: args.keys.glob.clone(), dwell_ms, force: args.force };
    let changed: Changed = client.call(op)?;
    if context.json {
        let mode = if dwell_ms.is_some() { "dwell" } else { "now" };
        let off_at_unix_ms = dwell_ms.and_then(unix_ms_in);
        context.document(&Done {
            state: "off",
            mode,
            pid: client.pid(),
            off_at_unix_ms,
            changed: &changed,
        })?;
    } else {
        print(&changed, "off", context)?;
    }
    if let Some(dwell_ms) = dwell_ms {
        let later = short(dwell_ms.saturating_mul(1_000_000));
        say(format_args!("what was on goes off in {later}, unless it is switched on again"));
    }
    for held in &changed.held {
        say(format_args!("{FAIR}still on:{FAIR:#} {}", kept_by(held)));
    }
    if changed.held.is_empty() {
        return Ok(Exit::Ok);
    }
    if args.force {
        say("  hint: the service's own code holds these, and nobody else can end that");
    } else {
        say("  hint: --force ends what others hold");
    }
    Ok(Exit::Failed)
}

/// Who keeps how many keys on, and for how long.
fn kept_by(held: &Held) -> String {
    let keys = count(held.keys as u64, "key");
    let end = match held.holder {
        Holder { left_ms: Some(_), .. } => "",
        Holder { by: HeldBy::Client, .. } => ", as long as it stays connected",
        _ => ", as long as it likes",
    };
    format!("{keys} by {}{end}", who(&held.holder))
}

/// A holder, and how much longer, if that is known.
pub(super) fn who(holder: &Holder) -> String {
    let name = match holder.by {
        HeldBy::Client => format!("process {} of user {}", holder.pid, holder.uid),
        HeldBy::User => format!("user {}", holder.uid),
        HeldBy::Service => "the service itself".into(),
        HeldBy::Nobody => "the dwell time".into(),
        _ => "somebody".into(),
    };
    match holder.left_ms {
        Some(left) => format!("{name} for {} more", short(left.saturating_mul(1_000_000))),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(by: HeldBy, left_ms: Option<u64>) -> Held {
        Held { keys: 2, holder: Holder { by, uid: 1000, pid: 7, left_ms } }
    }

    #[test]
    fn a_holder_is_named_with_what_ends_its_lease() {
        for (by, left_ms, expected) in [
            (HeldBy::User, Some(30_000), "2 keys by user 1000 for 30.0 s more"),
            (HeldBy::Client, None, "2 keys by process 7 of user 1000, as long as it stays connected"),
            (HeldBy::Service, None, "2 keys by the service itself, as long as it likes"),
            (HeldBy::Service, Some(1_500), "2 keys by the service itself for 1.50 s more"),
        ] {
            assert_eq!(kept_by(&held(by, left_ms)), expected);
        }
    }
}
