//! `dormouse reset`: keys as the service started with them.

use dormouse::wire::{Changed, Op};

use crate::args::KeyArgs;
use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;
use crate::render::leases::{Switched, say_held};
use crate::sample::events::knows;

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
    let (mut client, hello) = Client::open(&args.keys.target, context.patience)?;
    if !knows(&hello, "reset") {
        let version = format!("dormouse {} in {} knows no `reset`", hello.version, client.who);
        return Err(Failure::new(Exit::Unsupported, version).hint("use `off`"));
    }
    let changed: Changed = client.call(Op::Reset { glob: args.keys.glob.clone() })?;
    let switched =
        Switched { state: "reset", mode: "now", pid: client.pid, off_at_unix_ms: None, changed: &changed };
    switched.print(context)?;
    Ok(if say_held(&changed) { Exit::Failed } else { Exit::Ok })
}
