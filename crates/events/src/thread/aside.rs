//! A thread sets its tasks aside for a while: for waits in which it may run work of others.
//!
//! The frames are copied to the caller's stack, and tasks that are entered meanwhile begin on an
//! empty one. So sections may be nested as deep as the thread's stack allows, each with
//! [`MAX_DEPTH`] tasks of its own, and guards find their frames again afterwards.

use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_keys::unlikely;
use dormouse_sys::thread::Current;

use super::stack::{Frame, Stack, with};
use super::token::{MAX_DEPTH, Token};
use crate::ledger::Context;
use crate::publishing::PUBLISH;

/// Runs `f` as if the thread were in no task: whatever was current is neither charged, nor around
/// the tasks that `f` enters. Afterwards, also if `f` unwinds, the thread goes on with its tasks.
///
/// # Cost
///
/// That of leaving the current task and of entering it, and one kilobyte of the stack.
///
/// # Async-signal-safety
///
/// As [`enter`](super::enter). In the middle of a switch of the same thread nothing is set aside.
pub fn without_tasks<T>(f: impl FnOnce() -> T) -> T {
    let mut aside = Aside { top: Token::FIRST, frames: [const { Frame::none() }; MAX_DEPTH] };
    with(|stack| stack.set_aside(&mut aside));
    show_top();
    f()
}

/// The frames of a thread's tasks. The thread goes on with them when this is dropped.
struct Aside {
    /// The topmost frame; at depth 0 nothing was set aside.
    top: Token,
    frames: [Frame; MAX_DEPTH],
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.top.depth() > 0 {
            with(|stack| stack.go_on_with(self));
            show_top();
        }
    }
}

fn show_top() {
    if unlikely!(PUBLISH) {
        with(Stack::show_top);
    }
}

impl Stack {
    /// Case 2, with all frames.
    fn set_aside(&self, aside: &mut Aside) {
        self.withdraw();
        let (here, depth) = (self.here.get(), self.depth());
        if here.is_some_and(|here| here.span.is_in_edit()) {
            // Case 8.
            return;
        }
        if depth == 0 {
            return self.park();
        }
        aside.top = self.top.get();
        for (kept, frame) in aside.frames.iter().zip(&self.frames[..depth]) {
            kept.copy(frame);
        }
        match here {
            Some(here) => _ = self.charge_and_end(here, depth),
            None => self.truncate(depth, 0),
        }
        // Its lowest frames have numbers that no frame before, nor one after, has.
        self.numbers.set(self.numbers.get() + 1);
        self.top.set(Token::apart(self.numbers.get()));
    }

    /// Case 1, for the topmost frame.
    fn go_on_with(&self, aside: &Aside) {
        self.withdraw();
        if self.depth() > 0 {
            // Guards that were left behind.
            self.pop_to(0);
        }
        self.park();
        let depth = aside.top.depth();
        let frames = || self.frames.iter().zip(&aside.frames[..depth]);
        for (frame, kept) in frames() {
            if let Some(context) = kept.context.get() {
                self.prepare(frame, context);
            }
        }
        self.top.set(aside.top);
        compiler_fence(Ordering::SeqCst);
        // Once more the contexts, too: a handler in between may have used the frames.
        for (frame, kept) in frames() {
            frame.copy(kept);
            kept.set_own(None);
        }
        let top = &self.frames[depth - 1];
        if let Some(here) = self.here.get() {
            let group = top.context.get().map_or(0, Context::id);
            // Before the generation is loaded, as in case 5.
            here.block.set_current(Current { task: top.task.get(), group });
        }
        self.pop_to(depth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Counting, Mode};
    use crate::pmu::{CountingPmu, Event};
    use crate::{Kind, Task, current_task, enter, overflows};

    static PMU: CountingPmu = CountingPmu::new();

    fn pass(times: u64) {
        CountingPmu::happen(1, times);
    }

    /// A context that counts what passes.
    fn context() -> (&'static Context, Counting) {
        let context = Context::new();
        (context, Counting::of(context, &[event()], Mode::GroupExact).unwrap())
    }

    fn event() -> Event {
        PMU.event("aside", 1)
    }

    fn value(context: &Context) -> (u64, u64) {
        let counts = context.read();
        let count = counts.iter().find(|count| count.event == event());
        count.map_or((0, 0), |count| (count.value, count.nested))
    }

    #[test]
    fn what_runs_meanwhile_is_not_charged() {
        let ((a, _a), (b, _b), (c, _c)) = (context(), context(), context());
        let outer = enter(&mut Task::new(a, 1), Kind::Poll);
        let inner = enter(&mut Task::new(b, 2), Kind::Scope);
        pass(1);
        without_tasks(|| {
            assert_eq!(current_task(), 0);
            pass(1000);
            let _c = enter(&mut Task::new(c, 3), Kind::Run);
            pass(10);
        });
        assert_eq!(current_task(), 2);
        pass(1);
        drop(inner);
        assert_eq!(current_task(), 1);
        pass(100);
        drop(outer);
        pass(10_000);
        assert_eq!([value(a), value(b), value(c)], [(100, 2), (2, 0), (10, 0)]);
        assert_eq!([a.entries(), b.entries(), c.entries()], [1; 3]);
    }

    #[test]
    fn guards_left_behind_inside_do_nothing() {
        let ((a, _a), (b, _b)) = (context(), context());
        let first = enter(&mut Task::new(a, 1), Kind::Run);
        let mut left = Vec::new();
        without_tasks(|| {
            left.push(enter(&mut Task::new(b, 2), Kind::Scope));
            left.push(enter(&mut Task::new(b, 3), Kind::Scope));
        });
        assert_eq!(current_task(), 1);
        drop(first);
        // Numbers of lowest frames go on where the first has left them.
        let next = enter(&mut Task::new(a, 4), Kind::Scope);
        left.clear();
        assert_eq!(current_task(), 4);
        pass(1);
        drop(next);
        assert_eq!((value(a), value(b)), ((1, 0), (0, 0)));
    }

    #[test]
    fn a_panic_leads_back_to_the_tasks() {
        let (a, _a) = context();
        let guard = enter(&mut Task::new(a, 1), Kind::Poll);
        let inside = || without_tasks(|| std::panic::resume_unwind(Box::new("of the test")));
        assert!(std::panic::catch_unwind(inside).is_err());
        pass(3);
        drop(guard);
        assert_eq!((value(a).0, current_task()), (3, 0));
    }

    #[test]
    fn sections_nest_deeper_than_tasks() {
        fn nest(depth: u64, context: &'static Context) {
            let _inside = enter(&mut Task::new(context, depth + 1), Kind::Run);
            pass(1);
            if depth > 0 {
                without_tasks(|| {
                    pass(1000);
                    nest(depth - 1, context);
                });
            }
            assert_eq!(current_task(), depth + 1);
        }
        let (a, _a) = context();
        let before = overflows();
        nest(4 * MAX_DEPTH as u64, a);
        assert_eq!((value(a).0, overflows()), (4 * MAX_DEPTH as u64 + 1, before));
    }

    #[test]
    fn tasks_that_count_for_themselves_go_on() {
        let context = Context::new();
        let _counting = Counting::of(context, &[event()], Mode::TaskExact).unwrap();
        let mut task = Task::new(context, 1);
        let guard = enter(&mut task, Kind::Run);
        pass(1);
        without_tasks(|| {
            pass(10);
            drop(enter(&mut Task::new(context, 2), Kind::Run));
        });
        pass(100);
        drop(guard);
        assert_eq!(task.counts(), [(event(), 101)]);
    }
}
