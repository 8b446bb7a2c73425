//! The fast path: from poll to poll of one context, cases 3 to 7 of [`super::state`]; while nothing
//! is counted, also from context to context, and into a task inside of another one.
//!
//! # Cases 5 and 6 while nothing is counted
//!
//! A poll then changes no span: the span of a thread without a task is the same as that of a thread
//! with one. So a change that begins to count cannot tell from the span whether there is a task
//! whose counting is to begin. It reads the thread's block. Each side stores, passes a barrier and
//! loads:
//!
//! | the thread (5, 6) | the change (`control`) |
//! |---|---|
//! | stores the task in its block | stores the generation |
//! | light barrier (free) | heavy barrier (`membarrier`) |
//! | loads the generation | loads the task from the block |
//!
//! So the thread finds the new generation and falls through to case 1 or 2, or the change finds the
//! task and flushes the span, which leaves a baseline in it. Both may happen: then the thread takes
//! over from the flush.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_clock::overhead::TASKS;
use dormouse_sys::thread::Current;

use super::charge::Switched;
use super::stack::{Here, Stack};
use super::state::State;
use super::task::{Customization, Task};
use super::token::{Kind, Token};
use crate::generation::Generation;
use crate::ledger::Context;
use crate::primitive::light_barrier;

impl Stack {
    #[inline]
    pub(super) fn enter(&self, task: &mut Task, kind: Kind) -> Token {
        // In state `Open` no task of the context counts for itself, so the task need not be asked
        // for more.
        if self.state.is_open()
            && kind.is_stretch()
            && !task.is_customized()
            && let Some(token) = self.go_on(task.context(), task.id(), kind)
        {
            return token;
        }
        if task.is_plain() {
            self.enter_plain(task.context(), task.id(), kind)
        } else {
            self.enter_customized(task, kind)
        }
    }

    #[inline(never)]
    fn enter_plain(&self, context: &'static Context, id: u64, kind: Kind) -> Token {
        if self.state.is_asleep()
            && let Some(token) = self.go_over(context, id, kind)
        {
            return token;
        }
        self.enter_idle(context, id, kind)
    }

    /// Not inlined: case 5(b) and 5(c) need not save the registers that case 3 uses.
    #[inline(never)]
    fn enter_idle(&self, context: &'static Context, id: u64, kind: Kind) -> Token {
        if self.state.is_idle()
            && let Some(token) = self.resume(context, id, kind)
        {
            return token;
        }
        self.enter_closed(context, id, None, kind)
    }

    /// Not inlined: case 3 need not save the registers that case 1 uses.
    #[inline(never)]
    fn enter_closed(
        &self,
        context: &'static Context,
        id: u64,
        own: Option<&Arc<Customization>>,
        kind: Kind,
    ) -> Token {
        self.enter_slowly(self.here(), context, id, own, kind)
    }

    #[cold]
    fn enter_customized(&self, task: &mut Task, kind: Kind) -> Token {
        let (context, id) = (task.context(), task.id());
        self.enter_closed(context, id, task.customization(), kind)
    }

    #[inline]
    pub(super) fn leave(&self, token: Token) {
        if !(self.state.is_open() && self.stop(token)) {
            self.leave_closed(token);
        }
    }

    #[inline(never)]
    fn leave_closed(&self, token: Token) {
        if !(self.state.is_asleep() && self.go_back(token)) {
            self.leave_idle(token);
        }
    }

    /// Not inlined, as [`Stack::enter_idle`].
    #[inline(never)]
    fn leave_idle(&self, token: Token) {
        if !(self.state.is_idle() && self.suspend(token)) {
            self.leave_slowly(token);
        }
    }

    #[inline]
    pub(super) fn switch(&self, to: Option<&mut Task>) -> Switched {
        let Some(task) = to else { return self.switch_to_none() };
        let Some(here) = self.here() else { return Switched::Asleep };
        let (context, id, top) = (task.context(), task.id(), self.top.get());
        if top.depth() == 1 && task.is_plain() && here.span.suits(context.id(), Generation::current()) {
            // Case 7(a). Something is counted, or the span would have no current generation. The
            // lowest frame is of this context already.
            self.top.set(top.gone().next(Kind::Poll));
            self.frames[0].task.set(id);
            here.span.count_entry();
            here.block.set_task(id);
            return if context.set().is_empty() { Switched::Asleep } else { Switched::Kept };
        }
        self.switch_slowly(here, task)
    }

    /// [`Stack::leave`], in the hook. Behind cases 4 and 6 nothing is current.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_shown(&self, token: Token) {
        if self.state.is_open() && self.stop(token) || self.state.is_idle() && self.suspend(token) {
            return self.show(None);
        }
        self.leave_slowly(token);
        self.show_top();
    }

    /// [`Stack::switch`], in the hook.
    #[cold]
    #[inline(never)]
    pub(super) fn switch_shown(&self, to: Option<&mut Task>) -> Switched {
        let did = self.switch(to);
        self.show_top();
        did
    }

    /// Case 5.
    #[inline]
    fn go_on(&self, context: &'static Context, id: u64, kind: Kind) -> Option<Token> {
        let top = self.top.get();
        let here = self.here.get().filter(|_| top.depth() == 0)?;
        // First of all: from here on a handler's frame comes on top of this one, and leads back to
        // it.
        let token = top.next(kind);
        self.top.set(token);
        compiler_fence(Ordering::SeqCst);
        self.frames[0].task.set(id);
        compiler_fence(Ordering::SeqCst);
        here.block.set_task(id);
        // Pairs with the heavy barrier in `control`; see the module.
        light_barrier();
        let generation = Generation::current();
        if self.state.is(State::Open(generation)) && self.keeps(context) {
            if generation.counts() {
                here.count(kind);
            }
            return Some(token);
        }
        self.top.set(top);
        compiler_fence(Ordering::SeqCst);
        here.block.set_task(0);
        None
    }

    /// Case 5(b), and 5(c) if a task is around.
    #[inline]
    fn go_over(&self, context: &'static Context, id: u64, kind: Kind) -> Option<Token> {
        let here = self.here.get()?;
        let below = self.depth();
        let frame = self.frames.get(below).filter(|_| below > 0 || kind.is_stretch())?;
        let number = self.begin_asleep(here)?;
        let token = self.next_token(below, kind);
        if below == 0 {
            // Before the frame: while the stack is empty, a handler may take case 5, and write this
            // frame; see `state`.
            self.top.set(token);
            compiler_fence(Ordering::SeqCst);
            self.kept_for.set(Some(context));
        }
        frame.context.set(Some(context));
        frame.task.set(id);
        self.end_asleep(here, number, token, context, id);
        Some(token)
    }

    /// Case 6(c), for the topmost frame; false if `token` is not that, or the task around is over
    /// or customized.
    #[inline]
    fn go_back(&self, token: Token) -> bool {
        if self.top.get() != token {
            return false;
        }
        let around = token.depth().checked_sub(2).and_then(|at| self.frames.get(at));
        let Some(around) = around.filter(|around| around.own.get().is_null()) else { return false };
        let Some((here, context)) = self.here.get().zip(around.context.get()) else { return false };
        let Some(number) = self.begin_asleep(here) else { return false };
        self.end_asleep(here, number, around.token.get(), context, around.task.get());
        true
    }

    /// Begins an edit of a span that has nothing to charge, in state `Open` while nothing is
    /// counted.
    #[inline]
    fn begin_asleep(&self, here: Here) -> Option<u64> {
        if here.span.is_in_edit() {
            return None;
        }
        // First of all: in the edit a handler's guards do nothing, and a change of what is counted
        // waits for its end.
        let number = here.span.begin();
        let generation = Generation::current();
        if !generation.counts() && self.state.is(State::Open(generation)) {
            // 2(a) has led here. A flush of this generation leaves a baseline without events.
            debug_assert!(here.span.began_asleep(), "the state is open, and the span counts");
            return Some(number);
        }
        here.span.cancel(number);
        None
    }

    /// Ends that edit: the frame of `token` is the topmost one from now on, of task `id` of
    /// `context`.
    #[inline]
    fn end_asleep(&self, here: Here, number: u64, token: Token, context: &'static Context, id: u64) {
        // Others see a frame only when it is complete.
        compiler_fence(Ordering::SeqCst);
        self.top.set(token);
        self.charged.set(Some(context));
        here.block.set_current(Current { task: id, group: context.id() });
        here.span.set_context(context.id());
        here.span.end(number);
    }

    /// Case 6, for what case 5 has entered; false if `token` is not that.
    #[inline]
    fn stop(&self, token: Token) -> bool {
        let Some(here) = self.here.get().filter(|_| token.depth() == 1 && self.top.get() == token) else {
            return false;
        };
        self.top.set(token.gone());
        compiler_fence(Ordering::SeqCst);
        here.block.set_task(0);
        // Pairs with the heavy barrier in `control`; see the module.
        light_barrier();
        if !self.state.is(State::Open(Generation::current())) {
            self.stop_late();
        }
        true
    }

    /// The generation has moved, and the span may have been flushed for a task that is over by now:
    /// case 2.
    #[cold]
    #[inline(never)]
    fn stop_late(&self) {
        self.withdraw();
        // Case 8: a handler had taken case 5 on an empty stack, over an edit.
        let Some(here) = self.here.get().filter(|here| !here.span.is_in_edit()) else { return };
        if !(self.lazy.get() && self.end_lazily(here)) {
            self.park();
        }
    }

    /// Case 3.
    #[inline]
    fn resume(&self, context: &'static Context, id: u64, kind: Kind) -> Option<Token> {
        let top = self.top.get();
        let here = self.here.get().filter(|here| top.depth() == 0 && !here.span.is_in_edit())?;
        // First of all, as in case 5.
        let token = top.next(kind);
        self.top.set(token);
        compiler_fence(Ordering::SeqCst);
        self.frames[0].task.set(id);
        let number = here.span.begin();
        if !self.state.is(State::Idle(Generation::current())) || !self.keeps(context) {
            self.top.set(top);
            here.span.cancel(number);
            return None;
        }
        let _timed = TASKS.begin();
        here.span.set_first(dormouse_clock::thread_cpu_ns_begin());
        here.count(kind);
        here.block.set_task(id);
        here.span.end(number);
        Some(token)
    }

    /// Case 4, for what case 3 has entered; false if `token` is not that.
    #[inline]
    fn suspend(&self, token: Token) -> bool {
        let is_lowest = token.depth() == 1 && self.top.get() == token;
        let Some(here) = self.here.get().filter(|here| is_lowest && !here.span.is_in_edit()) else {
            return false;
        };
        let span = here.span;
        let number = span.begin();
        if !self.state.is(State::Idle(Generation::current())) {
            span.cancel(number);
            return false;
        }
        let _timed = TASKS.begin();
        // Saturating: a fork child's clock begins again.
        span.add(dormouse_clock::thread_cpu_ns_end().saturating_sub(span.first()));
        self.top.set(token.gone());
        here.block.set_task(0);
        span.end_idle(number);
        true
    }
}
