//! `dormouse off`: clears what was left on, and says what still holds the rest.

use dormouse::wire::{Changed, Held, Op};

use super::on::{Done, print};
use crate::args::Selection;
use crate::client::Client;
use crate::duration::short;
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
    /// Also end what others hold
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let (mut client, _) = Client::open(&args.keys.target, context.patience)?;
    let changed: Changed = client.call(Op::Off { glob: args.keys.glob.clone(), force: args.force })?;
    if context.json {
        context.document(&Done { state: "off", pid: client.pid(), changed: &changed })?;
    } else {
        print(&changed, "off", context)?;
    }
    for held in &changed.held {
        say(format_args!("{FAIR}still on:{FAIR:#} {}", holder(held)));
    }
    if changed.held.is_empty() {
        return Ok(Exit::Ok);
    }
    say("  hint: --force ends these leases");
    Ok(Exit::Failed)
}

/// Who holds keys on, and for how long.
fn holder(held: &Held) -> String {
    let keys = count(held.keys as u64, "key");
    let who = match held.pid {
        0 => "the service itself".into(),
        pid => format!("process {pid} of user {}", held.uid),
    };
    match held.left_ms {
        Some(left) => format!("{keys} by {who}, for {} more", short(left.saturating_mul(1_000_000))),
        None => format!("{keys} by {who}, as long as it stays connected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_with_what_ends_its_lease() {
        let held = Held { keys: 2, uid: 1000, pid: 7, left_ms: Some(30_000) };
        assert_eq!(holder(&held), "2 keys by process 7 of user 1000, for 30.0 s more");
        let held = Held { keys: 1, uid: 0, pid: 7, left_ms: None };
        assert_eq!(holder(&held), "1 key by process 7 of user 0, as long as it stays connected");
        assert!(holder(&Held { keys: 1, uid: 0, pid: 0, left_ms: None }).contains("the service itself"));
    }
}
