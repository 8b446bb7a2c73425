//! Times of tasks that an agent takes for a client.

use dormouse_protocol::{WaitsBegun, WaitsRequest};

use super::Client;
use crate::exit::Outcome;

/// Has the agent take times, until the connection ends.
pub(crate) fn begin(client: &mut Client, request: WaitsRequest) -> Outcome<WaitsBegun> {
    client.call(request)
}
