//! The long polls that clients want to know of.
//!
//! A wish is its connection's, as a watch is. Reports are asked for, so that nothing piles up here
//! for a client that is slow or silent, beyond the queue of its wish, which keeps the newest.

use std::time::Duration;

use crate::long_polls::{LongPolls, LongPollsError, long_polls};
use crate::wire::{Code, LongPollsBegun, LongPollsPart, LongPollsWish, WireError};

/// Reports in one answer.
const ROWS: usize = 64;

/// The memory of an answer, first as structures and then as text: 130 addresses in each report.
pub(super) const MEMORY: usize = 1024 * 1024;

/// Has long polls reported.
pub(super) fn begin(polls: &mut Option<LongPolls>, wish: LongPollsWish) -> Result<LongPollsBegun, WireError> {
    let begun = long_polls(Duration::from_micros(wish.threshold_us)).map_err(|why| {
        let code = match why {
            LongPollsError::Threshold { .. } => Code::BadRequest,
            LongPollsError::Unavailable(_) => Code::NoLook,
        };
        WireError::new(code, why.to_string())
    })?;
    // This ends what the client had wished for before.
    *polls = Some(begun);
    Ok(LongPollsBegun {})
}

/// The reports that have come since the last time.
pub(super) fn report(polls: Option<&LongPolls>) -> Result<LongPollsPart, WireError> {
    let none =
        || WireError::new(Code::BadRequest, "this connection has not asked for long polls: `long-polls`");
    let polls = polls.ok_or_else(none)?;
    if polls.is_over() {
        return Err(WireError::new(Code::NoLook, "the thread that looks for long polls was killed"));
    }
    let look_us = u64::try_from(polls.between().as_micros()).unwrap_or(u64::MAX);
    let reports: Vec<_> = polls.take_some(ROWS).into_iter().map(Into::into).collect();
    Ok(LongPollsPart { more: reports.len() == ROWS, lost: polls.lost(), look_us, reports })
}
