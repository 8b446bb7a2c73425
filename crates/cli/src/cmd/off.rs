//! `dormouse off`: ends leases and the baseline, and lists the holders of keys that stay on.

use std::time::Duration;

use dormouse_protocol::{Changed, OffRequest};

use crate::args::KeyArgs;
use crate::client::Client;
use crate::duration::{milliseconds, parse_hold};
use crate::exit::{Exit, Outcome};
use crate::output::{Context, say};
use crate::render::leases::{Switched, say_held, short_ms, unix_ms_in};
use crate::text::count;

/// Switch keys off
///
/// Clears what `on --keep` and your own `on --for` left. Keys that the service starts with on stay
/// on unless they are named without a wildcard; `reset` restores what they started with. Keys that
/// others hold stay on, which is listed and ends with exit code 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    keys: KeyArgs,
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
    let op = OffRequest { glob: args.keys.glob.clone(), dwell_ms, force: args.force, release: false };
    let changed: Changed = client.call(op)?;
    let mode = if dwell_ms.is_some() { "dwell" } else { "now" };
    let off_at_unix_ms = dwell_ms.and_then(unix_ms_in);
    Switched { state: "off", mode, pid: client.pid, off_at_unix_ms, changed: &changed }.print(context)?;
    if let Some(dwell_ms) = dwell_ms {
        let later = short_ms(dwell_ms);
        say(format_args!("what was on goes off in {later}, unless it is switched on again"));
    }
    if changed.start_on > 0 {
        let keys = count(changed.start_on as u64, "key");
        say(format_args!(
            "{keys} that the service starts with left on: to switch one off, name it without a wildcard"
        ));
    }
    if !say_held(&changed) {
        return Ok(Exit::Ok);
    }
    if args.force {
        say("  hint: the service's own code holds these, and nobody else can end that");
    } else {
        say("  hint: --force ends what others hold");
    }
    Ok(Exit::Failed)
}
