//! Times of tasks, as an agent has them taken for a client.

use dormouse::wire::{Hello, Op, WaitsBegun, WaitsWish};

use super::Client;
use crate::exit::{Exit, Failure, Outcome};

/// Has the agent take times, until the connection ends.
pub(crate) fn begin(client: &mut Client, hello: &Hello, wish: WaitsWish) -> Outcome<WaitsBegun> {
    if !hello.ops.iter().any(|op| op == "waits") {
        let message = format!("its dormouse ({}) takes no times of tasks", hello.version);
        return Err(Failure::new(Exit::Unsupported, message).hint("build the service with a newer dormouse"));
    }
    client.call(Op::Waits(wish))
}
