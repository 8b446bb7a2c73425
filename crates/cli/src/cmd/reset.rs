//! `dormouse reset`: restores the state that keys had when the service started.

use dormouse_protocol::{Changed, ResetRequest};

use crate::args::KeyArgs;
use crate::client::Client;
use crate::exit::{Exit, Outcome};
use crate::output::Context;
use crate::render::leases::{Switched, say_held};

/// Restore the states that keys started with
///
/// Undoes `on --keep` and `off`, and ends your own `on --for`. Keys that others hold stay on, which
/// is listed and ends with exit code 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    keys: KeyArgs,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let (mut client, _) = Client::open(&args.keys.target, context.patience)?;
    let changed: Changed = client.call(ResetRequest { glob: args.keys.glob.clone() })?;
    let switched =
        Switched { state: "reset", mode: "now", pid: client.pid, off_at_unix_ms: None, changed: &changed };
    switched.print(context)?;
    Ok(if say_held(&changed) { Exit::Failed } else { Exit::Ok })
}
