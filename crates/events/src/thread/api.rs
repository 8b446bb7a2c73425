//! The calls that a program makes on its own thread: enter and leave tasks, switch, park.
//!
//! # Async-signal-safety
//!
//! A signal handler may enter and leave tasks, except those of a context that is exact for each
//! task, whose first entry allocates. It must drop its guards before it returns.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use dormouse_keys::unlikely;

use super::announced;
use super::charge::Switched;
use super::stack::{LastFrames, Stack, with};
use super::state::State;
use super::switch::OVERFLOWS;
use super::task::Task;
use super::token::{Kind, MAX_DEPTH, Token};
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

/// A guard as plain numbers, for languages without destructors; made by [`TaskGuard::into_mark`].
/// It can be copied, sent and lost; [`leave`] returns whether its task was still entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The depth on its thread's stack at which the task was entered.
    pub place: u64,
    /// The number of the task, unique in the process. So marks of other threads are recognised.
    pub task: u64,
}

/// Makes `task` current on this thread until the guard is dropped; then the task before it is
/// current again.
///
/// # Cost
///
/// A dozen stores while nothing is counted, fewer from poll to poll of one context. Otherwise one
/// read of each counter, unless the task is equivalent to the current one; dropping the guard costs
/// the same.
///
/// # Async-signal-safety
///
/// A handler may call it once its thread has called it before, but not for a task that counts for
/// itself, whose first entry allocates. In the middle of a switch of the same thread the guard does
/// nothing.
#[inline]
pub fn enter(task: &mut Task, kind: Kind) -> TaskGuard {
    if cfg!(dormouse_off) {
        return TaskGuard { token: Token::NONE, not_send: PhantomData };
    }
    let token = with(|stack| stack.enter(task, kind));
    if unlikely!(PUBLISH) {
        with(|stack| stack.show_entered(token, task.context()));
    }
    TaskGuard { token, not_send: PhantomData }
}

/// Makes `to` current on this thread, or no task, whatever was current. This is the primitive for
/// callers that see every switch of a thread, such as a scheduler of fibers or a program's own
/// executor. A task that was switched from may be switched to on another thread, in the middle of
/// its run too. Guards of [`enter`] that the previous task leaves behind do nothing any more.
///
/// # Cost
///
/// Between equivalent tasks some comparisons and stores, otherwise one read of each counter.
///
/// # Async-signal-safety
///
/// Not for signal handlers: it would end the tasks that they have interrupted.
#[inline]
pub fn switch(to: Option<&mut Task>) -> Switched {
    if unlikely!(PUBLISH) {
        return with(|stack| stack.switch_shown(to));
    }
    with(|stack| stack.switch(to))
}

/// Sets whether the calling thread leaves the last task current until the next one begins, and so
/// reads no counter between two tasks of one context. Correct only where every piece of work on the
/// thread is a task, and where [`park`] is called before the thread does anything else: other work
/// would be charged to the task before it. Not for signal handlers.
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

/// Charges the last task of a lazy thread up to now. Call it before the thread sleeps or does other
/// work.
pub fn park() {
    with(Stack::park);
}

/// Whether anything is counted for anybody, for code of the service's threads: a sleeping
/// instruction.
#[inline]
pub fn is_counting() -> bool {
    unlikely!(SWITCH)
}

/// Call this when a runtime is about to poll one of its tasks on this thread, and [`poll_ends`]
/// after the poll. So [`announced_polls`](super::announced_polls) can return how many polls there
/// were, and in how many of them a task of a context was entered or was current around them. Where
/// one poll runs inside of another, only the inner one is counted.
///
/// # Cost
///
/// Together with [`poll_ends`] one or two nanoseconds while nothing is counted, otherwise six; row
/// `direct-added/told` of `dormouse bench waits`.
///
/// # Async-signal-safety
///
/// Not for signal handlers: it would end the poll that they have interrupted.
#[inline]
pub fn poll_begins() {
    with(|stack| stack.announced.set(if unlikely!(SWITCH) { stack.begin_announced() } else { None }));
}

/// Ends the poll that [`poll_begins`] began.
#[inline]
pub fn poll_ends() {
    with(|stack| {
        if let Some(before) = stack.announced.get() {
            stack.end_announced(before);
        }
    });
}

impl Stack {
    /// `None` where nothing is counted any more, or not yet.
    #[inline(never)]
    fn begin_announced(&self) -> Option<LastFrames> {
        Generation::current().counts().then(|| self.last_frames())
    }

    #[inline(never)]
    fn end_announced(&self, before: LastFrames) {
        self.announced.set(None);
        if let Some(here) = self.here() {
            announced::count(here.block, self.depth() > 0 || self.last_frames() != before);
        }
    }
}

/// The number of the task that is current on this thread; 0 outside of tasks.
pub fn current_task() -> u64 {
    with(|stack| stack.top_frame().map_or(0, |frame| frame.task.get()))
}

/// The number of the context that is current on this thread; 0 outside of tasks.
pub fn current_context() -> u32 {
    with(|stack| stack.top_frame().and_then(|frame| frame.context.get()).map_or(0, Context::id))
}

/// The task that is current on this thread, and the one around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskNesting {
    /// The number of the current task, 0 outside of tasks. If `is_full`, that of the task around
    /// it.
    pub task: u64,
    /// The number of the task around that, 0 if there is none.
    pub around: u64,
    /// Whether the stack is full, so that tasks entered now are charged to the current one.
    pub is_full: bool,
}

/// How the thread's tasks are nested, without tasks whose guards are gone.
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

/// Does what dropping the guard would have done that became `mark`. Returns false and does nothing
/// if the task is not entered on this thread (any more): it was entered on another thread, was left
/// already, or ended together with a poll around it.
///
/// # Cost
///
/// The cost of dropping a guard.
///
/// # Async-signal-safety
///
/// See [`enter`].
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
    /// Leaves task number `task` current until [`leave`] or another end. `None` if the guard is
    /// inert: then there is nothing to leave.
    pub fn into_mark(self, task: u64) -> Option<Mark> {
        let token = self.token;
        std::mem::forget(self);
        (token != Token::NONE).then_some(Mark { place: token.0, task })
    }
}

impl Drop for TaskGuard {
    #[inline]
    fn drop(&mut self) {
        if !cfg!(dormouse_off) {
            with(|stack| leave_frame(stack, self.token));
        }
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
