//! The moment a thread goes from one task to the next.
//!
//! Each thread has a stack of what is current, in a fixed place: entering allocates nothing. Guards know
//! their entry by place and token, so that a guard which is dropped late, out of order or never does
//! no harm to the others.
//!
//! # Invariants
//!
//! 1. `since` is the thread's CPU time at the last switch; everything before it is charged.
//! 2. The thread's block shows the topmost live entry.
//! 3. Tokens are never reused on a thread.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::thread::{self, Current, ThreadBlock};

use crate::context::Context;

/// How deep tasks can nest on one thread. What is entered below that is charged to what is there.
pub const MAX_DEPTH: usize = 32;

static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Entry {
    /// `None`: its guard was dropped before those above it.
    context: Cell<Option<&'static Context>>,
    task: Cell<u64>,
    token: Cell<u64>,
}

struct Stack {
    depth: Cell<usize>,
    tokens: Cell<u64>,
    since: Cell<u64>,
    /// The thread's start number, which chooses the shard; 0 before the first switch.
    start: Cell<u64>,
    entries: [Entry; MAX_DEPTH],
}

thread_local! {
    static STACK: Stack = const {
        Stack {
            depth: Cell::new(0),
            tokens: Cell::new(0),
            since: Cell::new(0),
            start: Cell::new(0),
            entries: [const { Entry { context: Cell::new(None), task: Cell::new(0), token: Cell::new(0) } }; MAX_DEPTH],
        }
    };
}

/// How the end of a task treats what was entered inside it and is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A scope: guards may be dropped in any order, and what was entered inside goes on.
    Scope,
    /// A poll: when it ends, nothing of it is current any more, whatever guards it has left behind.
    Poll,
    /// The destructor of a task: as a poll, but not counted as an entry.
    Drop,
}

/// Makes a task current as long as it lives.
#[derive(Debug)]
#[must_use = "the task is current as long as the guard lives"]
pub struct Entered {
    place: usize,
    token: u64,
    kind: Kind,
    /// A guard belongs to its thread.
    not_send: PhantomData<*const ()>,
}

#[cfg(not(test))]
use dormouse_clock::thread_cpu_ns as now;
#[cfg(test)]
use tests::fake_now as now;

/// Makes task number `task` of `context` current on this thread.
///
/// # Cost
///
/// One read of the thread's clock, and one or two atomic additions to a line that threads rarely share; as
/// much again when the guard is dropped.
#[inline]
pub fn enter(context: &'static Context, task: u64, kind: Kind) -> Entered {
    STACK.with(|stack| stack.enter(context, task, kind))
}

/// The task that is current on this thread, 0 outside any.
pub fn current_task() -> u64 {
    STACK.with(|stack| stack.top().map_or(0, |(_, task)| task))
}

/// The number of the context that is current on this thread, 0 outside any.
pub fn current_group() -> u32 {
    STACK.with(|stack| stack.top().map_or(0, |(context, _)| context.id()))
}

/// How often a task was entered deeper than [`MAX_DEPTH`].
pub fn overflows() -> u64 {
    OVERFLOWS.load(Ordering::Relaxed)
}

impl Stack {
    fn top(&self) -> Option<(&'static Context, u64)> {
        let entry = self.entries.get(self.depth.get().checked_sub(1)?)?;
        Some((entry.context.get()?, entry.task.get()))
    }

    #[inline]
    fn enter(&self, context: &'static Context, task: u64, kind: Kind) -> Entered {
        let token = self.tokens.get() + 1;
        self.tokens.set(token);
        let place = self.depth.get();
        let Some(entry) = self.entries.get(place) else {
            OVERFLOWS.fetch_add(1, Ordering::Relaxed);
            return Entered { place, token, kind, not_send: PhantomData };
        };
        let block = Self::begin();
        let now = self.charge_top();
        entry.context.set(Some(context));
        entry.task.set(task);
        entry.token.set(token);
        self.depth.set(place + 1);
        if kind != Kind::Drop {
            context.count_entry(self.start.get());
        }
        Self::publish(block, Current { task, group: context.id(), since: now });
        Entered { place, token, kind, not_send: PhantomData }
    }

    #[inline]
    fn leave(&self, guard: &Entered) {
        let depth = self.depth.get();
        let Some(entry) = self.entries.get(guard.place) else { return };
        if guard.place >= depth || entry.token.get() != guard.token {
            // A poll around it has ended before the guard.
            return;
        }
        if guard.kind == Kind::Scope && guard.place + 1 < depth {
            // Entries above go on; this one is passed over when they are gone.
            entry.context.set(None);
            return;
        }
        let block = Self::begin();
        let now = self.charge_top();
        let mut depth = guard.place;
        while depth > 0 && self.entries[depth - 1].context.get().is_none() {
            depth -= 1;
        }
        self.depth.set(depth);
        let (group, task) = self.top().map_or((0, 0), |(context, task)| (context.id(), task));
        Self::publish(block, Current { task, group, since: now });
    }

    /// Charges the time since the last switch to what is current, and says what time it is.
    #[inline]
    fn charge_top(&self) -> u64 {
        if self.start.get() == 0 {
            self.start.set(thread::current().map_or(1, ThreadBlock::start));
        }
        let now = now();
        if let Some((context, _)) = self.top() {
            // Saturating: a fork child's clock begins again at zero.
            context.charge(self.start.get(), now.saturating_sub(self.since.get()));
        }
        self.since.set(now);
        now
    }

    /// Says that a switch is under way *before* the time is charged: a reader who has seen the charge must not
    /// find the old task and count its time again.
    #[inline]
    fn begin() -> Option<&'static ThreadBlock> {
        // Without a block (more threads than the table holds) readers see this thread's time when it is
        // committed.
        let block = thread::current();
        if let Some(block) = block {
            block.begin_switch();
        }
        block
    }

    #[inline]
    fn publish(block: Option<&ThreadBlock>, current: Current) {
        if let Some(block) = block {
            block.set_current(current);
        }
    }
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        STACK.with(|stack| stack.leave(self));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static TIME: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn fake_now() -> u64 {
        TIME.with(Cell::get)
    }

    fn pass(ns: u64) {
        TIME.with(|t| t.set(t.get() + ns));
    }

    fn context(id: u32) -> &'static Context {
        Box::leak(Box::new(Context::new(id)))
    }

    /// What was charged. (`cpu_ns` adds the real clock of running threads, which tests with a fake one do
    /// without.)
    fn charged(contexts: &[&'static Context]) -> Vec<u64> {
        contexts.iter().map(|c| c.cpu_ns()).collect()
    }

    #[test]
    fn time_is_charged_to_the_innermost_task_only() {
        let (a, b) = (context(1001), context(1002));
        pass(100);
        let outer = enter(a, 1, Kind::Poll);
        pass(10);
        let inner = enter(b, 2, Kind::Poll);
        assert_eq!((current_task(), current_group()), (2, 1002));
        pass(5);
        drop(inner);
        assert_eq!(current_task(), 1);
        pass(1);
        drop(outer);
        pass(1000);
        assert_eq!((current_task(), current_group()), (0, 0));
        assert_eq!(charged(&[a, b]), [11, 5]);
        assert_eq!((a.entries(), b.entries()), (1, 1));
    }

    #[test]
    fn scopes_may_end_in_any_order() {
        let (a, b) = (context(1003), context(1004));
        let first = enter(a, 1, Kind::Scope);
        pass(1);
        let second = enter(b, 2, Kind::Scope);
        pass(10);
        drop(first);
        pass(100);
        drop(second);
        pass(1000);
        assert_eq!(charged(&[a, b]), [1, 110]);
        assert_eq!(current_task(), 0);
    }

    #[test]
    fn the_end_of_a_poll_ends_what_it_left_behind_and_late_guards_do_nothing() {
        let (a, b) = (context(1005), context(1006));
        let poll = enter(a, 1, Kind::Poll);
        let kept = enter(b, 2, Kind::Scope);
        std::mem::forget(enter(b, 3, Kind::Scope));
        pass(7);
        drop(poll);
        pass(100);
        let next = enter(a, 4, Kind::Poll);
        pass(1);
        drop(kept);
        assert_eq!(current_task(), 4);
        pass(1);
        drop(next);
        assert_eq!(charged(&[a, b]), [2, 7]);
    }

    #[test]
    fn deeper_than_the_stack_is_charged_to_what_is_there() {
        let (a, b) = (context(1007), context(1008));
        let before = overflows();
        let guards: Vec<_> = (0..MAX_DEPTH).map(|_| enter(a, 1, Kind::Scope)).collect();
        let too_deep = enter(b, 2, Kind::Scope);
        pass(3);
        drop(too_deep);
        drop(guards);
        assert_eq!(charged(&[a, b]), [3, 0]);
        assert_eq!(overflows(), before + 1);
        assert_eq!(current_task(), 0);
    }

    #[test]
    fn a_panic_ends_the_task() {
        let a = context(1009);
        let caught = std::panic::catch_unwind(|| {
            let _guard = enter(a, 1, Kind::Poll);
            pass(4);
            panic!("of the test");
        });
        assert!(caught.is_err());
        pass(100);
        assert_eq!(charged(&[a]), [4]);
        assert_eq!(current_task(), 0);
    }
}
