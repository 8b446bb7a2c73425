//! What a thread keeps from one task to the next.
//!
//! Threads mostly go from poll to poll of one context, so at the end of a poll the stay is left as the next one will want
//! it, and whatever else comes finds that it is not kept any more:
//!
//! - **there**: the next poll of the context is entered by a few stores. That is so on a lazy thread, whose stay goes on; and
//!   on any thread while nothing is counted. Then the stay is the same with a task and without, and who begins to count asks
//!   the thread's block which it is: each side stores, passes a barrier, and looks at what the other has stored.
//! - **idle**: at the ends of each poll the clock is read, and the number of the stay changes. Nothing else.
//!
//! All the rest of a switch is in [`super`] and [`super::charge`].

use std::sync::atomic::{Ordering, compiler_fence};

use super::token::Token;
use super::{Here, Kind, Stack};
use crate::context::Context;
use crate::control::{generation, is_awake_in};
use crate::primitive::light_barrier;

/// How a thread keeps its last task's context while it has no task: what it would find out anew for the next one holds
/// as long as the generation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept(u64);

impl Kept {
    pub(super) const NOT: Self = Self(0);
    pub(super) const THERE: u64 = 1;
    pub(super) const IDLE: u64 = 2;

    /// The stay is what the next task of it wants: the thread is lazy and goes on to charge it, or nothing is counted
    /// anywhere. Then whether there is a task is what the thread's block shows.
    #[inline]
    pub(super) fn there(generation: u64) -> Self {
        Self(generation << 2 | Self::THERE)
    }

    /// The stay is idle, and task-clock alone is counted: that is read for the next task of it, and everything else is
    /// there. Holds while that task is current, too.
    #[inline]
    pub(super) fn idle(generation: u64) -> Self {
        Self(generation << 2 | Self::IDLE)
    }

    #[inline]
    pub(super) fn is(self, how: u64) -> bool {
        self.0 & how != 0
    }
}

impl Stack {
    #[inline]
    pub(super) fn keeps(&self, context: &Context) -> bool {
        self.kept.get().is_some_and(|kept| std::ptr::eq(kept, context))
    }

    /// Whether `context` is what the lowest entry has, and counted for it alone: what can be kept.
    #[inline]
    pub(super) fn can_keep(&self, context: &Context) -> bool {
        self.charged_own.get().is_null()
            && self.entries[0].context.get().is_some_and(|lowest| std::ptr::eq(lowest, context))
    }

    #[inline]
    pub(super) fn keep(&self, context: &'static Context, how: Kept) {
        self.kept.set(Some(context));
        compiler_fence(Ordering::SeqCst);
        self.kept_as.set(how);
    }

    /// Whether a lazy thread without a current task goes on to charge what was its last task's, from now on.
    pub(super) fn stays_lazily(&self, here: Here) -> bool {
        let Some(charged) = self.charged.get() else { return false };
        let generation = generation();
        if !is_awake_in(generation) || charged.is_exact() || !self.can_keep(charged) {
            return false;
        }
        if !here.stay.goes_on(charged.id(), generation) {
            self.pass(here, 1, 1, charged, std::ptr::null());
        }
        self.keep(charged, Kept::there(generation));
        compiler_fence(Ordering::SeqCst);
        if !here.stay.goes_on(charged.id(), generation) {
            // A handler between the two has left something else there.
            self.kept_as.set(Kept::NOT);
        }
        true
    }

    /// Whether what is there is kept because nothing is counted.
    pub(super) fn keeps_asleep(&self) -> bool {
        let generation = generation();
        self.kept_as.get() == Kept::there(generation) && !is_awake_in(generation)
    }

    /// A poll of what is kept there becomes the lowest entry.
    #[inline]
    pub(super) fn go_on(&self, context: &'static Context, id: u64) -> Option<Token> {
        let top = self.top.get();
        let here = self.here.get().filter(|_| top.depth() == 0)?;
        // First of all, so that what a handler enters from here on is above it, and leads back to it.
        let token = top.next(Kind::Poll);
        self.top.set(token);
        compiler_fence(Ordering::SeqCst);
        self.entries[0].task.set(id);
        compiler_fence(Ordering::SeqCst);
        here.block.set_task(id);
        // Its other side is in `control`: who changes the generation sees that there is a task, or we see that it
        // has changed.
        light_barrier();
        let generation = generation();
        if self.kept_as.get() == Kept::there(generation) && self.keeps(context) {
            if is_awake_in(generation) {
                here.stay.count_entry();
            }
            return Some(token);
        }
        self.top.set(top);
        compiler_fence(Ordering::SeqCst);
        here.block.set_task(0);
        None
    }

    /// Ends what [`Stack::go_on`] has begun; false if `token` is not that.
    #[inline]
    pub(super) fn stop(&self, token: Token) -> bool {
        let Some(here) = self.here.get().filter(|_| token.depth() == 1 && self.top.get() == token) else {
            return false;
        };
        self.top.set(token.gone());
        compiler_fence(Ordering::SeqCst);
        here.block.set_task(0);
        // As in `go_on`.
        light_barrier();
        if self.kept_as.get() != Kept::there(generation()) {
            self.stop_late(here);
        }
        true
    }

    /// Something else is counted, or something at last, for what the thread has no more.
    #[cold]
    #[inline(never)]
    fn stop_late(&self, here: Here) {
        if !(self.lazy.get() && self.stays_lazily(here)) {
            self.park();
        }
    }

    /// A task of what is kept idle becomes the lowest entry, and is charged.
    #[inline]
    pub(super) fn resume(&self, context: &'static Context, id: u64, kind: Kind) -> Option<Token> {
        let top = self.top.get();
        let here = self.here.get().filter(|here| top.depth() == 0 && !here.stay.is_changing())?;
        // As in `go_on`.
        let token = top.next(kind);
        self.top.set(token);
        compiler_fence(Ordering::SeqCst);
        self.entries[0].task.set(id);
        let number = here.stay.begin();
        if self.kept_as.get() != Kept::idle(generation()) || !self.keeps(context) {
            self.top.set(top);
            here.stay.cancel(number);
            return None;
        }
        here.stay.set_first(dormouse_clock::thread_cpu_ns());
        if kind != Kind::Drop {
            here.stay.count_entry();
        }
        here.block.set_task(id);
        here.stay.end(number);
        Some(token)
    }

    /// Ends what [`Stack::resume`] has begun; false if `token` is not that.
    #[inline]
    pub(super) fn suspend(&self, token: Token) -> bool {
        let is_lowest = token.depth() == 1 && self.top.get() == token;
        let Some(here) = self.here.get().filter(|here| is_lowest && !here.stay.is_changing()) else {
            return false;
        };
        let stay = here.stay;
        let number = stay.begin();
        if self.kept_as.get() != Kept::idle(generation()) {
            stay.cancel(number);
            return false;
        }
        stay.owe(dormouse_clock::thread_cpu_ns().saturating_sub(stay.first()));
        self.top.set(token.gone());
        here.block.set_task(0);
        stay.end_idle(number);
        true
    }
}
