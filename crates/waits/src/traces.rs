//! The traces to which tasks belong ([`traced`](crate::traced) has the rules).
//!
//! A service sets one itself, or its tracer reports each span that becomes current on a thread or
//! is left ([`observe`]). A task that begins takes the trace that is current on its thread then, or
//! else that of the task that is polled around it.
//!
//! Nothing is recorded while times are not taken.
//!
//! # Invariants
//!
//! 1. The span that is current on a thread belongs to one run: spans that became current before are
//!    unknown.
//!
//! # Async-signal-safety
//!
//! All functions, on a thread that has polled. A handler that interrupts its thread in the midst of
//! [`observe`] finds nothing current, and one that interrupts a write to the task's slot sets
//! nothing.

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_keys::unlikely;

use crate::rows::{self, Shelf};
use crate::run::run;
use crate::slot::Slot;
use crate::trace_context::TraceContext;
use crate::traced::ActiveSpan;
use crate::waiting::WAITS;

/// The span that is current on the thread, and the run in which it became so.
struct Active {
    run: Cell<u64>,
    span: Cell<Option<ActiveSpan>>,
}

thread_local! {
    static ACTIVE: Active = const { Active { run: Cell::new(0), span: Cell::new(None) } };
}

/// A change of the current span on the calling thread, as its tracer reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanSwitch {
    /// The span that is current from now on, or `None`.
    pub to: Option<ActiveSpan>,
    /// Where `to` was entered; `None` if another span was left, so that `to` is current again.
    pub entered: Option<Nesting>,
}

/// Where a span is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nesting {
    /// Outside of all spans of this process.
    Outermost,
    /// Inside of another span of this process.
    Nested,
}

/// A tracer calls this when the current span of the calling thread changes. Returns the trace of
/// the task that the thread is in, if it is new.
///
/// # Cost
///
/// While times are not taken, a sleeping instruction, and `switch` is not called.
#[inline]
pub fn observe(switch: impl FnOnce() -> SpanSwitch) -> Option<TraceContext> {
    if unlikely!(WAITS) { turn(switch()) } else { None }
}

#[cold]
fn turn(switch: SpanSwitch) -> Option<TraceContext> {
    let now = run();
    ACTIVE.with(|active| {
        active.run.set(0);
        compiler_fence(Ordering::SeqCst);
        active.span.set(switch.to);
        compiler_fence(Ordering::SeqCst);
        active.run.set(now);
    });
    let (span, nesting, slot) = (switch.to?, switch.entered?, polled(now)?);
    let is_new = slot.sequence.try_write(|| slot.traced.enter(span, nesting == Nesting::Nested))?;
    is_new.then_some(span.context)
}

/// Sets the trace of the innermost task that the calling thread polls or runs; false if it is in no
/// task whose times are taken. The last call counts.
///
/// # Cost
///
/// While times are not taken a sleeping instruction, otherwise some nanoseconds.
#[inline]
pub fn set_trace_context(context: TraceContext) -> bool {
    if unlikely!(WAITS) { set(context) } else { false }
}

#[cold]
fn set(context: TraceContext) -> bool {
    polled(run()).is_some_and(|slot| slot.sequence.try_write(|| slot.traced.set(context)).is_some())
}

/// The slot of the innermost task that the thread polls.
fn polled(run: u64) -> Option<&'static Slot> {
    innermost(rows::own()?, run)
}

fn innermost(shelf: &Shelf, run: u64) -> Option<&'static Slot> {
    let going = shelf.polled().filter(|going| !going.is_over())?;
    (going.slot.run.load(Ordering::Relaxed) == run).then_some(going.slot)
}

/// A task begins in that slot, on this thread, within a write of the slot's sequence.
pub(crate) fn begin(slot: &Slot, shelf: &Shelf, run: u64) {
    slot.traced.clear();
    let active = ACTIVE.with(|active| active.span.get().filter(|_| active.run.get() == run));
    match active {
        Some(span) => _ = slot.traced.enter(span, false),
        None => {
            if let Some(context) = innermost(shelf, run).and_then(|outer| outer.traced.inherited()) {
                slot.traced.call(context);
            }
        }
    }
}
