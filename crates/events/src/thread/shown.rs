//! The context that the thread shows to readers outside of the process; see [`crate::publishing`].
//!
//! # Async-signal-safety
//!
//! A handler may come between any two instructions. Its own events leave the pointer on the topmost
//! frame that it has interrupted, or null. The interrupted code then stores the context that it has
//! at hand or looks up, or takes the pointer back: a handler leaves the stack as it was.

use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_sys::otel::Slot;

use super::stack::Stack;
use super::token::Token;
use crate::ledger::Context;
use crate::publishing;

impl Stack {
    /// Shows the context that is current, in the hook.
    #[cold]
    #[inline(never)]
    pub(super) fn show_top(&self) {
        self.show(self.top_frame().and_then(|top| top.context.get()));
    }

    /// Does what [`Stack::show_top`] does, where the hook already has the context: looking it up
    /// costs as much as the rest.
    #[inline]
    pub(super) fn show(&self, context: Option<&Context>) {
        let Some(slot) = self.slot.get().or_else(|| self.find_slot()) else { return };
        slot.show(context.and_then(Context::shown));
        compiler_fence(Ordering::SeqCst);
        // After the store: step 1 of the end.
        if context.is_some() && !publishing::is_on() {
            slot.show(None);
        }
    }

    /// Shows the context of a task that was just entered; of one that was not, what is current.
    #[inline]
    pub(super) fn show_entered(&self, token: Token, context: &Context) {
        if token == Token::NONE { self.show_top() } else { self.show(Some(context)) }
    }

    #[cold]
    #[inline(never)]
    fn find_slot(&self) -> Option<Slot> {
        let slot = Slot::of_thread();
        self.slot.set(slot);
        slot
    }

    /// Shows nothing: on each long way, and after step 2 of the end that is each way. An awake hook
    /// comes later.
    #[inline]
    pub(super) fn withdraw(&self) {
        if let Some(slot) = self.slot.get() {
            slot.show(None);
        }
    }
}
