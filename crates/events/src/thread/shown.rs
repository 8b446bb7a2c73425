//! The context that the thread shows to readers outside of the process; see [`crate::publishing`].
//!
//! # Async-signal-safety
//!
//! A handler may come between any two instructions. Its own events end with the pointer on the
//! topmost frame that it has interrupted, or on none. The interrupted code stores what it has
//! looked up there, or takes it back.

use std::sync::atomic::{Ordering, compiler_fence};

use dormouse_sys::otel::Slot;

use super::stack::Stack;
use super::token::Token;
use crate::ledger::Context;
use crate::publishing;

impl Stack {
    /// Shows the context that is current, in the hook.
    #[inline]
    pub(super) fn show_top(&self) {
        self.show(self.top_frame().and_then(|top| top.context.get()));
    }

    /// [`Stack::show_top`] behind an entry: of a task of `context`, unless the token is inert.
    #[inline]
    pub(super) fn show_entered(&self, token: Token, context: &Context) {
        if token != Token::NONE {
            self.show(Some(context));
        }
    }

    #[inline(always)]
    fn show(&self, context: Option<&Context>) {
        let Some(slot) = self.slot.get().or_else(|| self.find_slot()) else { return };
        // None is what the end wants, too.
        let Some(context) = context else { return slot.show(None) };
        slot.show(context.shown());
        compiler_fence(Ordering::SeqCst);
        // After the store: step 1 of the end.
        if !publishing::is_on() {
            slot.show(None);
        }
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
