//! Times of tasks that an agent takes for a client.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use dormouse_protocol::{WaitsBegun, WaitsRequest};

use super::Client;
use crate::exit::Outcome;
use crate::signals::{Signals, wait};

/// Has the agent take times, until the connection ends.
pub(crate) fn begin(client: &mut Client, request: WaitsRequest) -> Outcome<WaitsBegun> {
    client.call(request)
}

/// Waits for `length`, or for a signal: whether there was one.
pub(crate) fn await_times(client: &mut Client, length: Duration, signals: &Signals) -> Outcome<bool> {
    let due = Instant::now() + length;
    while Instant::now() < due {
        let [is_over, has_come] = wait([signals.as_fd(), client.as_fd()], Some(due))?;
        if is_over {
            return Ok(true);
        }
        if has_come {
            // The end of the service, unless it is a notice.
            client.notices()?;
        }
    }
    Ok(false)
}
