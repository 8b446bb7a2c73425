//! A thread goes from one task to another on the slow path: cases 1, 2 and 7 of [`super::state`].
//!
//! # Async-signal-safety
//!
//! A handler may come between any two instructions. During an edit of the span its guards are inert
//! (case 8). Either the edit begins before the stack changes, or the stack changes first in a way
//! that the handler's guards do not disturb; in both cases the edit ends when the stack is
//! complete. Outside of edits any frame of the stack may be charged at any moment, because a
//! handler's guard, when it is dropped, begins a span for the topmost frame.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use dormouse_sys::thread::Current;

use super::charge::Switched;
use super::stack::{Here, Stack, give_back};
use super::state::State;
use super::task::{Customization, Task};
use super::token::{Kind, Token};
use crate::generation::Generation;
use crate::ledger::Context;

pub(super) static OVERFLOWS: AtomicU64 = AtomicU64::new(0);

impl Stack {
    /// Cases 1 and 8.
    #[inline]
    pub(super) fn enter_slowly(
        &self,
        here: Option<Here>,
        context: &'static Context,
        id: u64,
        own: Option<&Arc<Customization>>,
        kind: Kind,
    ) -> Token {
        self.withdraw();
        let depth = self.depth();
        let Some(frame) = self.frames.get(depth) else {
            OVERFLOWS.fetch_add(1, Ordering::Relaxed);
            return Token::NONE;
        };
        if here.is_some_and(|here| here.span.is_in_edit()) {
            // Case 8.
            return Token::NONE;
        }
        let token = self.push(frame, depth, context, kind);
        frame.task.set(id);
        if own.is_some() {
            frame.set_own(own);
        }
        if let Some(here) = here {
            let raw = own.map_or(ptr::null(), Arc::as_ptr);
            // Before the generation is loaded, as in case 5.
            here.block.set_current(Current { task: id, group: context.id() });
            if own.is_some() || !here.span.suits(context.id(), Generation::current()) {
                self.charge_and_begin(here, depth, depth + 1, context, raw);
            }
            if !here.span.began_asleep() {
                here.count(kind);
            }
        }
        token
    }

    /// Leaves the frame of `token`, and the frames above it that end with it: case 1 or 2.
    #[inline]
    pub(super) fn leave_slowly(&self, token: Token) {
        self.withdraw();
        let Some(frame) = self.frame(token) else { return };
        if token.is_scope() && token.depth() < self.depth() {
            // The frames above go on, and this one is passed over when they are gone. So far they
            // were inside of it.
            self.charge_top();
            frame.context.set(None);
            return;
        }
        self.pop_to(token.depth() - 1);
    }

    /// Leaves `depth` frames, and of these only up to the topmost live one.
    #[inline]
    pub(super) fn pop_to(&self, mut depth: usize) {
        while depth > 0 && self.frames[depth - 1].context.get().is_none() {
            depth -= 1;
        }
        let before = self.depth();
        let Some(here) = self.here.get() else { return self.truncate(before, depth) };
        if here.span.is_in_edit() {
            // Case 8: the guard belongs to a task that the handler has interrupted. The poll around
            // the task will end it.
            return;
        }
        // The contexts of further frames between would have to be charged as those around.
        let at_most_one = before <= depth + 1;
        let top = depth.checked_sub(1).map(|top| &self.frames[top]);
        let Some((top, context)) = top.and_then(|top| Some((top, top.context.get()?))) else {
            // Case 2.
            if at_most_one && self.lazy.get() && self.end_lazily(here) {
                self.truncate(before, 0);
                here.block.set_task(0);
            } else {
                self.charge_and_end(here, before);
            }
            return;
        };
        let own = top.own.get();
        if at_most_one && own.is_null() && here.span.suits(context.id(), Generation::current()) {
            // Case 1(a), for the outer task.
            self.truncate(before, depth);
        } else {
            self.charge_and_begin(here, before, depth, context, own);
        }
        here.block.set_current(Current { task: top.task.get(), group: context.id() });
    }

    /// Case 7(b).
    #[inline(never)]
    pub(super) fn switch_slowly(&self, here: Here, task: &mut Task) -> Switched {
        self.withdraw();
        if here.span.is_in_edit() {
            return Switched::Asleep;
        }
        if self.depth() > 1 {
            self.pop_to(1);
        }
        let (context, id) = (task.context(), task.id());
        let own = task.customization();
        let raw = own.map_or(ptr::null(), |own| Arc::into_raw(Arc::clone(own)));
        let (top, frame) = (self.top.get(), &self.frames[0]);
        self.prepare(frame, context);
        self.top.set(top.gone().next(Kind::Poll));
        compiler_fence(Ordering::SeqCst);
        frame.context.set(Some(context));
        frame.task.set(id);
        let last = frame.own.replace(raw);
        // Before the generation is loaded, as in case 5.
        here.block.set_current(Current { task: id, group: context.id() });
        let did = self.charge_and_begin(here, top.depth(), 1, context, raw);
        if !here.span.began_asleep() {
            here.span.count_entry();
        }
        // The span that charged it is over.
        give_back(last);
        did
    }

    /// Switches to no task.
    pub(super) fn switch_to_none(&self) -> Switched {
        self.withdraw();
        let top = self.top_frame().and_then(|top| top.context.get());
        if self.depth() > 0 {
            self.pop_to(0);
        }
        self.park();
        if top.is_some_and(|context| !context.set().is_empty()) { Switched::Read } else { Switched::Asleep }
    }

    /// Ends the span of a thread without a task that runs on by laziness. (A span that runs on
    /// because nothing is counted may stay.)
    pub(super) fn park(&self) {
        if self.depth() > 0 {
            return;
        }
        if let Some(here) = self.here.get()
            && !here.span.is_idle()
            && !here.span.is_in_edit()
            && !self.is_open_asleep()
        {
            self.charge_and_end(here, 0);
        }
    }

    fn is_open_asleep(&self) -> bool {
        let generation = Generation::current();
        self.state.is(State::Open(generation)) && !generation.counts()
    }

    /// Charges the topmost task up to now.
    #[cold]
    pub(super) fn charge_top(&self) {
        if let (Some(here), Some(top)) = (self.here.get(), self.top_frame())
            && let Some(context) = top.context.get()
            && !here.span.is_in_edit()
        {
            let depth = self.depth();
            self.charge_and_begin(here, depth, depth, context, top.own.get());
        }
    }
}
