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
use crate::ledger::Context;
use crate::publishing;

impl Stack {
    /// Shows the context that is current, in the hook.
    #[inline]
    pub(super) fn show_top(&self) {
        let Some(slot) = self.slot.get().or_else(|| self.find_slot()) else { return };
        let context = self.top_frame().and_then(|top| top.context.get());
        slot.show(context.and_then(Context::shown));
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
