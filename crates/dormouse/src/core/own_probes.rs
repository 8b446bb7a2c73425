//! Dormouse's own probes, from which a timeline shows tasks. They sleep like any other.
//!
//! | key | enter | exit |
//! |---|---|---|
//! | `dormouse.poll` | a thread is in the task from now on | no longer |
//! | `dormouse.task` | the task begins: `parent` is the task that it began in, 0 if in none | it ends: of a request with its `outcome` |
//!
//! While places are requested the end of a cancelled request also has the numbers of the `place`
//! where it waited and of the `stack` that dropped it, the state in which it `waited`, and whether
//! the thread was `panicking`.
//!
//! `dormouse.trace_context` is a point: the trace of the task becomes known.
//!
//! All are records of the task itself. The polls of a thread are nested and balanced, also over
//! panics; if a key is switched in the midst of a poll, its enter or its exit is missing. A task
//! may begin and end on different threads.
//!
//! A copy of dormouse that follows another one records none: numbers in records are the leader's.
//!
//! # Async-signal-safety
//!
//! The same as for any probe.

use dormouse_clock::stamp;
use dormouse_keys::unlikely;
use dormouse_sys::records;
use dormouse_sys::thread::Current;
use dormouse_waits::{DroppedTask, TraceContext, Waited};

use crate::core::ends::TaskOutcome;
use crate::core::probe::{Probe, record_of};
use crate::core::record::RecordKind;
use crate::core::tasks::is_request;
use dormouse_keys::StaticKey;

static POLL_PROBE: Probe = Probe::new("");
static POLL: StaticKey<false> = StaticKey::new("dormouse.poll", file!(), line!()).with(&POLL_PROBE);
static TASK_PROBE: Probe = Probe::new(",parent,is_request");
static TASK: StaticKey<false> = StaticKey::new("dormouse.task", file!(), line!()).with(&TASK_PROBE);
static TRACED_PROBE: Probe = Probe::new(",trace_id,span_id");
static TRACED: StaticKey<false> =
    StaticKey::new("dormouse.trace_context", file!(), line!()).with(&TRACED_PROBE);

/// The thread is in the task that is current, until it is dropped. It holds nothing, so that asleep
/// a poll passes two sites and no more.
#[derive(Debug)]
#[must_use = "the poll ends when it is dropped"]
pub(crate) struct PollMark(());

impl PollMark {
    /// The task has become current just now.
    #[inline]
    pub(crate) fn begin() -> Self {
        if unlikely!(POLL) {
            lay_current(RecordKind::Enter);
        }
        Self(())
    }
}

impl Drop for PollMark {
    #[inline]
    fn drop(&mut self) {
        if unlikely!(POLL) {
            lay_current(RecordKind::Exit);
        }
    }
}

/// Does what [`PollMark`] does, until [`poll_leaves`]: for callers without destructors.
#[inline]
pub(crate) fn poll_enters(task: u64, group: u32) {
    if unlikely!(POLL) {
        lay(RecordKind::Enter, task, group);
    }
}

/// The thread has left what it entered by [`poll_enters`].
#[inline]
pub(crate) fn poll_leaves(task: u64, group: u32) {
    if unlikely!(POLL) {
        lay(RecordKind::Exit, task, group);
    }
}

/// A task of that number and group begins.
#[inline]
pub(crate) fn task_begins(task: u64, group: u32, is_request: bool) {
    if unlikely!(TASK) {
        begins(task, group, is_request);
    }
}

/// A task ends in this way. Without an outcome it has lived for long.
#[inline]
pub(crate) fn task_ends(task: u64, group: u32, outcome: Option<TaskOutcome>, dropped: Option<DroppedTask>) {
    if unlikely!(TASK) {
        ends(task, group, outcome, dropped);
    }
}

/// The task belongs to that trace.
#[inline]
pub(crate) fn task_traced(task: u64, group: u32, context: impl FnOnce() -> Option<TraceContext>) {
    if unlikely!(TRACED)
        && let Some(context) = context()
    {
        traced(Current { task, group }, context);
    }
}

/// The task that is current does.
#[inline]
pub(crate) fn current_traced(context: TraceContext) {
    if unlikely!(TRACED) {
        traced(records::current_task(), context);
    }
}

#[cold]
#[inline(never)]
fn traced(whose: Current, context: TraceContext) {
    if records::is_account_shown() && whose.task != 0 {
        record_of(&TRACED_PROBE, RecordKind::Point, stamp(), whose, |writer| {
            writer.formatted(format_args!("{:032x}", u128::from_be_bytes(context.trace_id())));
            match context.span_id() {
                Some(id) => writer.formatted(format_args!("{:016x}", u64::from_be_bytes(id))),
                None => writer.nothing(),
            }
        });
    }
}

#[cold]
#[inline(never)]
fn lay_current(kind: RecordKind) {
    let Current { task, group } = records::current_task();
    lay(kind, task, group);
}

#[cold]
#[inline(never)]
fn lay(kind: RecordKind, task: u64, group: u32) {
    if records::is_account_shown() {
        record_of(&POLL_PROBE, kind, stamp(), Current { task, group }, |_| {});
    }
}

#[cold]
#[inline(never)]
fn begins(task: u64, group: u32, is_request: bool) {
    if records::is_account_shown() {
        let parent = dormouse_events::current_task();
        record_of(&TASK_PROBE, RecordKind::Enter, stamp(), Current { task, group }, |writer| {
            writer.unsigned(parent);
            writer.boolean(is_request);
        });
    }
}

#[cold]
#[inline(never)]
fn ends(task: u64, group: u32, outcome: Option<TaskOutcome>, dropped: Option<DroppedTask>) {
    if records::is_account_shown() {
        record_of(&TASK_PROBE, RecordKind::Exit, stamp(), Current { task, group }, |writer| {
            let Some(outcome) = outcome.filter(|_| is_request(task)) else { return };
            writer.text(outcome.word());
            if let Some(DroppedTask { place, stack, waited, is_panicking, .. }) = dropped {
                writer.unsigned(place.into());
                writer.unsigned(stack.into());
                writer.text(match waited {
                    Waited::Awaiting => "awaiting",
                    Waited::Runnable => "runnable",
                    Waited::NotBegun => "not_begun",
                    Waited::Unknown => "unknown",
                });
                writer.boolean(is_panicking);
            }
        });
    }
}
