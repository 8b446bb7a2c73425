//! `long-polls`: the long polls that clients have requested.
//!
//! A request belongs to its connection, as a watch does. Reports are fetched by the client, so for
//! a slow or silent client nothing accumulates here beyond the queue of its request, which keeps
//! the newest.

use std::time::Duration;

use dormouse_protocol::{
    Code, LongPollNowRow, LongPollReportsRequest, LongPollRow, LongPollsBegun, LongPollsPart,
    LongPollsRequest, ThreadSampleRow, WireError,
};

use super::{LongPoll, LongPollNow, LongPolls, LongPollsError, long_polls};
use crate::agent::{Answered, Asked, ClientState};
use crate::features::stalls::ThreadIn;

/// Reports in one answer.
const ROWS: usize = 64;

impl ClientState for LongPolls {
    fn what(&self) -> String {
        "looks for long polls".to_owned()
    }
}

impl Answered for LongPollsRequest {
    /// Has long polls reported.
    fn answer(self, asked: &mut Asked<'_>) -> Result<LongPollsBegun, WireError> {
        let begun = long_polls(Duration::from_micros(self.threshold_us)).map_err(|why| {
            let code = match why {
                LongPollsError::Threshold { .. } => Code::BadRequest,
                LongPollsError::Unavailable(_) => Code::NoLook,
            };
            WireError::new(code, why.to_string())
        })?;
        // This ends what the client had asked for before.
        asked.client().states.set(begun);
        Ok(LongPollsBegun {})
    }
}

impl Answered for LongPollReportsRequest {
    /// The reports that have come since the last time.
    fn answer(self, asked: &mut Asked<'_>) -> Result<LongPollsPart, WireError> {
        let Some(polls) = asked.client().states.get::<LongPolls>() else {
            let message = "this connection has not asked for long polls: `long-polls`";
            return Err(WireError::new(Code::BadRequest, message));
        };
        if polls.is_over() {
            return Err(WireError::new(Code::NoLook, "the thread that looks for long polls was killed"));
        }
        let look_us = u64::try_from(polls.between().as_micros()).unwrap_or(u64::MAX);
        let reports: Vec<_> = polls.take_some(ROWS).into_iter().map(row).collect();
        Ok(LongPollsPart { more: reports.len() == ROWS, lost: polls.lost(), look_us, reports })
    }
}

/// A report as it is sent.
fn row(of: LongPoll) -> LongPollRow {
    let since_1970 = of.at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (stack, way) = of.stack.map(|stack| (stack.frames, stack.way.name().to_owned())).unwrap_or_default();
    LongPollRow {
        number: of.number,
        at_unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
        tid: of.tid,
        thread: of.thread,
        task: of.task,
        group: of.group.map_or_else(String::new, |group| group.name().to_owned()),
        lasted_ns: u64::try_from(of.lasted.as_nanos()).unwrap_or(u64::MAX),
        exact: of.is_exact,
        stack,
        way,
        no_stack: of.no_stack.map(|why| why.to_string()),
        looks: of.looks.into_iter().map(sample_row).collect(),
        now: of.now.map(now_row),
        over: of.is_over,
    }
}

fn sample_row((within, looks): (ThreadIn, u64)) -> ThreadSampleRow {
    ThreadSampleRow { within: within.to_string(), looks }
}

fn now_row(LongPollNow { within, arguments, kernel_function, mutex_owner }: LongPollNow) -> LongPollNowRow {
    let arguments = arguments.map_or_else(Vec::new, Vec::from);
    LongPollNowRow { within: within.to_string(), arguments, kernel_function, mutex_owner }
}
