//! Publishing the current context of each thread to readers outside of the process (OTEP 4947).
//!
//! The thread's pointer leads to the bytes of the context that is current: the topmost one of the
//! thread's stack, stored after each change of the stack. So nested contexts lead back to the
//! outer one, guards may be dropped in any order, and a handler that enters and leaves tasks leaves
//! the pointer as it was.
//!
//! # The end of it
//!
//! A pointer must not outlive its poll after the key has gone to sleep, where the end of the poll
//! passes the hook. So an end has three steps:
//!
//! 1. `ON` becomes false. A thread that is in the hook sees it after it has stored its pointer, and
//!    takes the pointer back.
//! 2. The generation moves on. So each thread takes the long way at its next event, and each long
//!    way takes the pointer back, whoever publishes by then (`Stack::withdraw`).
//! 3. The key goes to sleep, unless others publish.
//!
//! A thread that leaves a task has two ways: it passes the hook first and then does all in it, or
//! it finds the hook asleep and looks at the generation later. In the second case step 3 was over,
//! and so was step 2. A thread that enters in the hook between 1 and 3 may begin in the new
//! generation, but then it sees step 1.
//!
//! A thread in the midst of a poll shows its context up to its next event: rightly, for it is in
//! that poll.

use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_keys::static_key;

static_key! {
    /// On while the current context of each thread is published.
    pub(crate) static PUBLISH: "dormouse.publish" = false;
}

/// Whether pointers may be stored.
static ON: AtomicBool = AtomicBool::new(false);

#[inline]
pub(crate) fn is_on() -> bool {
    // Pairs with the store in `set_on`.
    ON.load(Ordering::Acquire)
}

pub(crate) fn set_on(on: bool) {
    // Pairs with the load in `is_on`.
    ON.store(on, Ordering::Release);
}
