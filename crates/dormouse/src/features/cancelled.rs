//! `cancelled`: the requests that were cancelled lately, with where they waited and the stack that
//! dropped them. The command finds the names, and what the stack means.

use std::time::Duration;

use dormouse_protocol::{CancelledRequest, CancelledRow, CancelledRows, HistogramRow, WireError, WireWaited};
use dormouse_waits::{Cancellation, TraceContext, Waited, read_cancelled};

use crate::agent::{Answered, Asked};

impl Answered for CancelledRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<CancelledRows, WireError> {
        Ok(cancelled())
    }
}

pub(crate) fn cancelled() -> CancelledRows {
    let mut rows = Vec::new();
    let read = read_cancelled(|of| rows.push(row(of)));
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    CancelledRows {
        for_ns: read.map(|read| ns(read.time)),
        rows,
        no_room: read.map_or(0, |read| read.no_room),
    }
}

fn row(of: &Cancellation) -> CancelledRow {
    let known = |number: u32| (number != 0).then_some(number);
    CancelledRow {
        group: of.group,
        waited: match of.waited {
            Waited::Unknown => WireWaited::Unknown,
            Waited::NotBegun => WireWaited::NotBegun,
            Waited::Awaiting => WireWaited::Awaiting,
            Waited::Runnable => WireWaited::Runnable,
        },
        place: known(of.place),
        more_places: of.more_places,
        stack: known(of.stack),
        panicking: of.is_panicking,
        requests: of.requests,
        last_ns: of.last_ns,
        ages: HistogramRow::without_tasks(&of.ages),
        trace_id: of.trace.map(TraceContext::trace_digits),
    }
}
