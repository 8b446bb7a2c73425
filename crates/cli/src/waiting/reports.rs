//! The long polls of a service, as its agent reports them.

use std::time::Duration;

use dormouse_protocol::{
    LongPollReportsRequest, LongPollRow, LongPollsBegun, LongPollsPart, LongPollsRequest,
};

use crate::client::Client;
use crate::client::room::AnswerRoom;
use crate::exit::Outcome;

/// The most answers in which the reports of one moment come.
const MAX_PARTS: usize = 64;

/// Has polls of that length reported from now on, as long as the connection lasts.
pub(crate) fn begin(client: &mut Client, threshold: Duration) -> Outcome<()> {
    let threshold_us = u64::try_from(threshold.as_micros()).unwrap_or(u64::MAX);
    let _begun: LongPollsBegun = client.call(LongPollsRequest { threshold_us })?;
    Ok(())
}

/// The reports that have come, how many were lost so far, and the time between two readings.
pub(crate) fn take(client: &mut Client) -> Outcome<(Vec<LongPollRow>, u64, Duration)> {
    let (mut all, mut rooms) = (Vec::new(), None);
    for _ in 0..MAX_PARTS {
        let part: LongPollsPart = client.call(LongPollReportsRequest {})?;
        AnswerRoom::collect(&mut rooms, client.keep_room());
        all.extend(part.reports);
        if !part.more {
            client.hold_room(rooms);
            return Ok((all, part.lost, Duration::from_micros(part.look_us)));
        }
    }
    Err(client.nonsense("reports on long polls without an end"))
}
