//! Publishing the current context of each thread to readers outside of the process (OTEP 4947).
//!
//! The thread's pointer leads to the bytes of the current context, the topmost one of the thread's
//! stack. It is stored after each change of the stack. So the end of a nested context leads back to
//! the outer one, guards may be dropped in any order, and a handler that enters and leaves tasks
//! leaves the pointer as it was.
//!
//! # The end of it
//!
//! After the key has gone to sleep, the end of a poll no longer runs the hook, so it would not take
//! the pointer back. No pointer may outlive its poll for that reason. So publishing ends in three
//! steps:
//!
//! 1. `ON` becomes false. A thread that is in the hook sees it after it has stored its pointer, and
//!    takes the pointer back.
//! 2. The generation moves on. So each thread takes the slow path at its next event, and each slow
//!    path takes the pointer back, even if another user publishes by then (`Stack::withdraw`).
//! 3. The key goes to sleep, unless other users publish.
//!
//! A thread leaves a task in one of two ways: it runs the hook first and does everything in it, or
//! it finds the hook asleep and loads the generation later. In the second case step 3 was over, and
//! so was step 2. A thread that enters a task in the hook between steps 1 and 3 may begin in the
//! new generation, but then it sees step 1.
//!
//! A thread in the midst of a poll shows its context up to its next event. That is right, because
//! it is still in that poll.

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
