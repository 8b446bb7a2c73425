//! The times of a response: of its head, of the frames of its body, and of its end.
//!
//! A request is answered once its response begins: its latency ends with the head. How long the
//! body takes is another time, which depends on the client, too. A stream lasts for as long as its
//! client stays, so it has neither of the two.
//!
//! | the response is | a head comes | a frame of a stream | the task ends |
//! |---|---|---|---|
//! | `OPEN` | counts the latency; `ANSWERED`, or `SHOWN` if it is an exemplar | `STREAM` | counts its age |
//! | | not sure: `UNSURE` | | |
//! | | of a stream: `STREAM` | | |
//! | `ANSWERED` | – | – | counts the body |
//! | `SHOWN` | – | – | counts the body; the exemplar has its outcome |
//! | `UNSURE` | – | `STREAM` | counts the latency and the body |
//! | `STREAM` | – | counts the gap before it | – |
//!
//! A poll makes the head and each frame, so their moments are the ends of polls: no clock is read
//! for them.

use std::sync::atomic::Ordering;

use dormouse_clock::overhead::TASKS;
use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_keys::unlikely;

use crate::buckets;
use crate::counts::Time;
use crate::exemplars::{self, Ended};
use crate::response::{ANSWERED, Frames, Head, OPEN, SHOWN, STREAM, UNSURE};
use crate::rows::{self, Account, Shelf, row_of};
use crate::run::run_begun;
use crate::slot::Slot;
use crate::slow;
use crate::waiting::WAITS;

/// The last poll of the slot's task has made the head of its response.
pub(crate) fn head(slot: &Slot, account: Account, head: Head) {
    let _timed = TASKS.begin();
    let (response, now) = (&slot.response, slot.since.load(Ordering::Relaxed));
    if slot.answer.get() != OPEN {
        return;
    }
    response.head.store(now, Ordering::Relaxed);
    let state = match head {
        Head::Answer if answered(slot, account, now, None) => SHOWN,
        Head::Answer => ANSWERED,
        Head::Unsure => UNSURE,
        Head::Stream => STREAM,
    };
    slot.answer.set(state);
}

/// The last poll of the slot's task has made frames of its body.
pub(crate) fn frames(slot: &Slot, shelf: &Shelf, account: Account, of: Frames) {
    let _timed = TASKS.begin();
    let (response, now) = (&slot.response, slot.since.load(Ordering::Relaxed));
    let before = match response.frame.load(Ordering::Relaxed) {
        0 => response.head.load(Ordering::Relaxed),
        frame => frame,
    };
    response.frame.store(now, Ordering::Relaxed);
    if of.is_stream {
        slot.answer.set(STREAM);
        if before != 0 {
            account.counts.count(Time::Gap, now.saturating_sub(before), slot.task.load(Ordering::Relaxed));
        }
        shelf.streams[row_of(slot.group.load(Ordering::Relaxed))].count(of);
    }
}

/// Counts frames of a stream of `group` that `task` makes now, in the midst of a poll. `last` is
/// the stamp of the stream's previous frames, or 0, and is set to now. Without effect while times
/// are not taken.
#[inline]
pub fn count_frames(task: u64, group: u32, of: Frames, last: &mut u64) {
    if unlikely!(WAITS) {
        count_frames_now(task, group, of, last);
    }
}

#[inline(never)]
fn count_frames_now(task: u64, group: u32, of: Frames, last: &mut u64) {
    if let Some(shelf) = rows::own()
        && let Some(account) = shelf.account(group)
    {
        let now = stamp();
        let before = std::mem::replace(last, now);
        // Else frames may have been made in between while times were not taken.
        if before >= run_begun() {
            account.counts.count(Time::Gap, now.saturating_sub(before), task);
        }
        shelf.streams[row_of(group)].count(of);
    }
}

/// How the request of a slot's task ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestEnd {
    /// When, as a stamp.
    pub(crate) at: u64,
    /// It was dropped or unwound, before its answer or in the middle of the body.
    pub(crate) is_unanswered: bool,
    /// The number of its outcome, if the caller has one.
    pub(crate) outcome: Option<u8>,
}

/// The request of the slot's task ends, which began while times were taken. Returns its age at its
/// answer, or at its end if it has none, in ticks.
#[inline]
pub(crate) fn ends(slot: &Slot, shelf: &Shelf, account: Account, end: RequestEnd) -> u64 {
    let RequestEnd { at: now, is_unanswered, outcome } = end;
    let response = &slot.response;
    let (task, group) = (slot.task.load(Ordering::Relaxed), slot.group.load(Ordering::Relaxed));
    let (head, frame) = (response.head.load(Ordering::Relaxed), response.frame.load(Ordering::Relaxed));
    let state = slot.answer.get();
    let age = age(slot, if state == OPEN { now } else { head });
    match state {
        OPEN if is_unanswered => {
            shelf.unanswered(group).count(age);
            slow::ends(task, group, age, || slot.traced.get());
        }
        OPEN => _ = answered(slot, account, now, outcome),
        UNSURE => _ = answered(slot, account, head, outcome),
        SHOWN => {
            if let Some(outcome) = outcome {
                exemplars::has_outcome(task, group, ticks_to_ns(age), outcome);
            }
        }
        _ => {}
    }
    // Without a frame it has no body.
    if matches!(state, UNSURE | ANSWERED | SHOWN) && frame != 0 && !is_unanswered {
        account.counts.count(Time::Body, frame.saturating_sub(head), task);
    }
    age
}

/// The request of the slot's task was answered at `now`. Returns whether it is an exemplar.
#[inline]
fn answered(slot: &Slot, account: Account, now: u64, outcome: Option<u8>) -> bool {
    // Else it began before times were taken.
    let is_known = slot.begun.load(Ordering::Relaxed) != 0;
    is_known && {
        let (task, group) = (slot.task.load(Ordering::Relaxed), slot.group.load(Ordering::Relaxed));
        let (lasted, trace) = (age(slot, now), || slot.traced.get());
        let lasted_ns = ticks_to_ns(lasted);
        let bucket = buckets::place(lasted_ns);
        let is_longest = account.counts.count_in(bucket, Time::Request, lasted_ns, task);
        slow::ends(task, group, lasted, trace);
        exemplars::ended(Ended { task, group, lasted_ns, bucket, ends: now, is_longest, outcome }, trace)
    }
}

/// The age of the slot's task at `now`, in ticks.
fn age(slot: &Slot, now: u64) -> u64 {
    now.saturating_sub(slot.begun.load(Ordering::Relaxed))
}
