//! The first use of a span by its thread, forks, and the end of the thread.

use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::thread;

use super::announced;
use super::outside;
use super::stack::{Here, Stack, with};
use super::state::State;
use crate::pmu;
use crate::publishing;
use crate::span::{self, Pending};

static BEGIN_IN_CHILD: Reset = Reset::new(Phase::Spans, begin_in_child);

impl Stack {
    /// Where other threads see this one; the first call finds a block.
    #[inline]
    pub(super) fn here(&self) -> Option<Here> {
        match self.here.get() {
            None => self.arrive(),
            here => here,
        }
    }

    /// A thread without a block (there are more threads than the table holds) has its tasks on the
    /// stack and counts nothing. So does a handler that comes while its thread is on the way.
    #[cold]
    fn arrive(&self) -> Option<Here> {
        if self.arrives.replace(true) {
            return None;
        }
        compiler_fence(Ordering::SeqCst);
        let here = self.find_block();
        self.here.set(here);
        compiler_fence(Ordering::SeqCst);
        self.arrives.set(false);
        here
    }

    fn find_block(&self) -> Option<Here> {
        if self.ended.get() || !thread::on_thread_exit(end_of_thread) || !BEGIN_IN_CHILD.join() {
            return None;
        }
        let block = thread::current()?;
        self.start.set(block.start());
        let span = span::own(block);
        span.arrive();
        outside::publish(block, self);
        pmu::arrive();
        thread::find_tasks_around(|| with(Stack::tasks_around));
        Some(Here { block, span })
    }
}

/// Case 11.
fn end_of_thread() {
    with(|stack| {
        stack.lazy.set(false);
        stack.pop_to(0);
        stack.park();
        if let Some(here) = stack.here.take() {
            outside::withdraw(here.block);
            let number = here.span.begin();
            stack.charge_pending(here.span, None);
            here.span.end_alike(number);
        }
        stack.sched_out();
        stack.ended.set(true);
    });
    // The last charge has read the counters.
    pmu::depart();
}

/// Case 10. The counters of a child's thread begin again at zero.
fn begin_in_child() {
    // The lease of the key has gone.
    publishing::set_on(false);
    announced::begin_in_child();
    with(|stack| {
        // A poll in which the process forks is counted in the parent alone.
        stack.announced.set(None);
        stack.withdraw();
        if let Some(here) = stack.here.get() {
            stack.state.set(State::Closed);
            // Its PMUs forget what they had in the parent.
            stack.scheduled.set(None);
            if here.span.is_in_edit() {
                // A handler over an edit of the span has forked. The edit goes on in the child
                // and ends there.
                return here.span.set_asleep();
            }
            let number = here.span.begin();
            here.span.set_asleep();
            here.span.end_alike(number);
        }
    });
}

/// In a fork child: hands the pending counts of the parent's other threads to `charge`. Signal-safe
/// if `charge` is.
pub(crate) fn charge_others(charge: impl Fn(&Pending)) {
    let own = with(|stack| stack.here.get());
    for span in span::used() {
        if own.is_none_or(|own| !std::ptr::eq(own.span, span)) {
            let seen = span.snapshot();
            span.take_pending(0);
            charge(&seen.pending);
        }
    }
}

/// The pending counts of all threads.
pub(crate) fn all_pending() -> Vec<Pending> {
    span::used().iter().map(|span| span.snapshot().pending).collect()
}
