//! The calls of a program on its own thread: enter and leave tasks, switch, park.
//!
//! # Async-signal-safety
//!
//! A handler may enter and leave tasks, but not those of a context that is exact for each task,
//! whose first entry allocates. It drops its guards before it returns.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use dormouse_keys::unlikely;

use super::charge::Switched;
use super::stack::{LastFrames, Stack, with};
use super::state::State;
use super::switch::OVERFLOWS;
use super::task::Task;
use super::token::{Kind, MAX_DEPTH, Token};
use super::told;
use crate::generation::{Generation, SWITCH};
use crate::ledger::Context;
use crate::publishing::PUBLISH;

/// Makes a task current as long as it lives.
#[derive(Debug)]
#[must_use = "the task is current as long as the guard lives"]
pub struct TaskGuard {
    token: Token,
    /// A guard belongs to its thread.
    not_send: PhantomData<*const ()>,
}

/// A guard as plain numbers, for languages without destructors: what [`TaskGuard::into_mark`]
/// leaves of it. It can be copied, sent and lost; [`leave`] tells whether its task is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Where on its thread's stack the task was entered.
    pub place: u64,
    /// The number of the task. No other task of the process has had it, so it tells marks of other
    /// threads apart.
    pub task: u64,
}

/// Makes `task` current on this thread until the guard is dropped; then the task before is current
/// again.
///
/// # Cost
///
/// A dozen stores while nothing is counted, fewer from poll to poll of one context. Else one read
/// of each counter, unless the task is equivalent to the current one; as much again when the guard
/// is dropped.
///
/// # Async-signal-safety
///
/// A handler may call it once its thread has, but not for a task that counts for itself, whose
/// first entry allocates. Over a switch of the same thread the guard does nothing.
#[inline]
pub fn enter(task: &mut Task, kind: Kind) -> TaskGuard {
    let token = with(|stack| stack.enter(task, kind));
    if unlikely!(PUBLISH) {
        with(|stack| stack.show_entered(token, task.context()));
    }
    TaskGuard { token, not_send: PhantomData }
}

/// This thread goes on with `to`, or with nothing, whatever was current: the primitive for a caller
/// that sees every switch of a thread, as a scheduler of fibers or a program's own executor does. A
/// task that was switched from may be switched to on another thread, in the middle of its run too.
/// Guards of [`enter`] that the previous task has left are as if dropped.
///
/// # Cost
///
/// Between equivalent tasks some comparisons and stores. Else one read of each counter.
///
/// # Async-signal-safety
///
/// Not for handlers: it ends the tasks that they have interrupted.
#[inline]
pub fn switch(to: Option<&mut Task>) -> Switched {
    if unlikely!(PUBLISH) {
        return with(|stack| stack.switch_shown(to));
    }
    with(|stack| stack.switch(to))
}

/// Whether the calling thread leaves the last task current until the next one comes, and so reads
/// nothing between two tasks of one context. Honest only where every piece of work on the thread is
/// a task, and where [`park`] is called before the thread does anything else: work that runs unseen
/// is charged to the task before it. Not for signal handlers.
pub fn set_lazy(lazy: bool) {
    with(|stack| {
        stack.lazy.set(lazy);
        // The end of the task that is current now chooses the state anew.
        stack.state.set(State::Closed);
        stack.park();
    });
}

/// Whether the calling thread is lazy; see [`set_lazy`].
pub fn is_lazy() -> bool {
    with(|stack| stack.lazy.get())
}

/// Charges the last task of a lazy thread up to now: the thread does something else from now on, or
/// sleeps.
pub fn park() {
    with(Stack::park);
}

/// A runtime is about to poll one of its tasks on this thread; [`poll_ends`] follows. So
/// [`told_polls`](super::told_polls) has the polls in which a task of a context was entered, or was
/// current around them, beside all. Of a poll inside of another one the inner one alone is told.
///
/// # Cost
///
/// With [`poll_ends`] one or two nanoseconds while nothing is counted, else six; row
/// `direct-added/told` of `dormouse bench waits`.
///
/// # Async-signal-safety
///
/// Not for handlers: it would end the poll that they have interrupted.
#[inline]
pub fn poll_begins() {
    with(|stack| stack.told.set(if unlikely!(SWITCH) { stack.begin_told() } else { None }));
}

/// The poll of [`poll_begins`] is over.
#[inline]
pub fn poll_ends() {
    with(|stack| {
        if let Some(before) = stack.told.get() {
            stack.end_told(before);
        }
    });
}

impl Stack {
    /// `None` where nothing is counted any more, or not yet.
    #[inline(never)]
    fn begin_told(&self) -> Option<LastFrames> {
        Generation::current().counts().then(|| self.last_frames())
    }

    #[inline(never)]
    fn end_told(&self, before: LastFrames) {
        self.told.set(None);
        if let Some(here) = self.here() {
            told::count(here.block, self.depth() > 0 || self.last_frames() != before);
        }
    }
}

/// The number of the task that is current on this thread, 0 outside any.
pub fn current_task() -> u64 {
    with(|stack| stack.top_frame().map_or(0, |frame| frame.task.get()))
}

/// The number of the context that is current on this thread, 0 outside any.
pub fn current_context() -> u32 {
    with(|stack| stack.top_frame().and_then(|frame| frame.context.get()).map_or(0, Context::id))
}

/// The task that is current on this thread, and the one around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskNesting {
    /// The number of the current task, 0 outside any; if `is_full`, the one around it.
    pub task: u64,
    /// The number of the task around that, 0 if there is none.
    pub around: u64,
    /// Whether tasks that are entered now are charged to the current one.
    pub is_full: bool,
}

/// How the thread's tasks are nested, without those whose guards are gone.
#[cold]
pub fn nesting() -> TaskNesting {
    with(|stack| {
        let is_full = stack.depth() >= MAX_DEPTH;
        let frames = &stack.frames[..stack.depth().min(MAX_DEPTH - 1)];
        let there = frames.iter().rev().filter(|frame| frame.context.get().is_some());
        let mut tasks = there.map(|frame| frame.task.get());
        let mut next = || tasks.next().unwrap_or(0);
        TaskNesting { task: next(), around: next(), is_full }
    })
}

/// How often a task was entered deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
pub fn overflows() -> u64 {
    OVERFLOWS.load(Ordering::Relaxed)
}

/// As the drop of the guard that was made a mark. False, and nothing has happened, if this thread
/// has no such task (any more): it was entered on another thread, was left already, or ended with a
/// poll around it.
///
/// # Cost
///
/// As of the guard's drop.
///
/// # Async-signal-safety
///
/// As of [`enter`].
pub fn leave(mark: Mark) -> bool {
    with(|stack| {
        let token = Token(mark.place);
        let there = stack.frame(token);
        let is_there =
            there.is_some_and(|frame| frame.task.get() == mark.task && frame.context.get().is_some());
        if is_there {
            leave_frame(stack, token);
        }
        is_there
    })
}

impl TaskGuard {
    /// Leaves the task of that number current, until [`leave`] or an end of another kind. `None` if
    /// the guard is inert: then there is nothing to leave.
    pub fn into_mark(self, task: u64) -> Option<Mark> {
        let token = self.token;
        std::mem::forget(self);
        (token != Token::NONE).then_some(Mark { place: token.0, task })
    }
}

impl Drop for TaskGuard {
    #[inline]
    fn drop(&mut self) {
        with(|stack| leave_frame(stack, self.token));
    }
}

/// The hook comes first, not last; see [`crate::publishing`].
#[inline]
fn leave_frame(stack: &Stack, token: Token) {
    if unlikely!(PUBLISH) {
        return stack.leave_shown(token);
    }
    stack.leave(token);
}
