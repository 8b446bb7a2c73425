//! Polls that runtimes tell of: how many there are, and in how many of them a task was entered.
//!
//! The switch pays nothing for that. To enter a task while anything is counted begins another span,
//! or counts an entry in the span that there is. So a poll in which neither has happened has
//! entered none.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::thread::MAX_THREADS;

use super::stack::{Stack, with};
use crate::generation::Generation;
use crate::span;

/// Polls that runtimes have told of, while anything was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ToldPolls {
    /// All of them.
    pub all: u64,
    /// Those in which a task was entered, of whatever context.
    pub inside: u64,
}

/// The polls of one thread, and of those that had its block before. Nobody resets them.
#[repr(align(128))]
struct Told {
    all: AtomicU64,
    inside: AtomicU64,
}

/// By the index of the thread's block.
static TOLD: [Told; MAX_THREADS] =
    [const { Told { all: AtomicU64::new(0), inside: AtomicU64::new(0) } }; MAX_THREADS];

/// A runtime is about to poll one of its tasks on this thread; [`poll_ends`] follows. Of a poll
/// inside of another one, the inner one alone is told.
pub fn poll_begins() {
    with(|stack| stack.told.set(Generation::current().counts().then(|| stack.entries())));
}

/// The poll of [`poll_begins`] is over.
pub fn poll_ends() {
    with(|stack| {
        if let Some(before) = stack.told.take()
            && let Some(here) = stack.here()
        {
            TOLD[here.block.index()].count(stack.entries() != before);
        }
    });
}

/// The polls that threads have been told of since the start of the process.
pub fn told_polls() -> ToldPolls {
    TOLD[..span::used().len()].iter().map(Told::read).fold(ToldPolls::default(), |sum, of| ToldPolls {
        all: sum.all.wrapping_add(of.all),
        inside: sum.inside.wrapping_add(of.inside),
    })
}

/// In a fork child: its polls are its own.
pub(super) fn begin_in_child() {
    for told in &TOLD[..span::used().len()] {
        told.all.store(0, Ordering::Relaxed);
        told.inside.store(0, Ordering::Relaxed);
    }
}

impl Told {
    fn count(&self, is_inside: bool) {
        // One writer.
        self.all.store(self.all.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let inside = self.inside.load(Ordering::Relaxed).wrapping_add(is_inside.into());
        // Pairs with the load in `read`.
        self.inside.store(inside, Ordering::Release);
    }

    fn read(&self) -> ToldPolls {
        // Pairs with the store in `count`: a thread that sees a poll inside sees it among all.
        let inside = self.inside.load(Ordering::Acquire);
        ToldPolls { all: self.all.load(Ordering::Relaxed), inside }
    }
}

impl Stack {
    /// Another value when a counted task has been entered since.
    fn entries(&self) -> (u64, u64) {
        self.here().map_or((0, 0), |here| here.span.entries())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Task, enter, park, set_lazy};
    use super::*;
    use crate::control::{Counting, Mode};
    use crate::ledger::Context;
    use crate::pmu::Event;

    #[test]
    fn a_poll_that_enters_nothing_is_outside() {
        let contexts = [Context::new(), Context::new()];
        let _counting =
            contexts.map(|context| Counting::of(context, &[Event::TASK_CLOCK], Mode::GroupExact).unwrap());
        let run = |context: usize| drop(enter(&mut Task::new(contexts[context], 7), Kind::Poll));
        // Of this thread alone, and of no other test.
        let told = |poll: &dyn Fn()| {
            let before = told_polls();
            poll_begins();
            poll();
            poll_ends();
            let after = told_polls();
            (after.all - before.all, after.inside - before.inside)
        };
        let (inside, outside) = ((1, 1), (1, 0));
        for lazy in [false, true] {
            set_lazy(lazy);
            assert_eq!(told(&|| ()), outside);
            for _ in 0..3 {
                assert_eq!(told(&|| run(0)), inside, "the same context again, lazily: {lazy}");
            }
            assert_eq!(told(&|| ()), outside, "a context is current, or was");
            assert_eq!(told(&|| (0..3).for_each(|n| run(n % 2))), inside);
            run(1);
            park();
            assert_eq!(told(&|| ()), outside, "what ran before is no part of it");
        }
        set_lazy(false);
        // A runtime in a poll of another one.
        let inner = || {
            poll_begins();
            poll_ends();
            run(0);
        };
        assert_eq!(told(&inner), outside, "the inner poll alone is told");
        let before = told_polls();
        poll_ends();
        assert_eq!(told_polls(), before, "no poll had begun");
    }
}
