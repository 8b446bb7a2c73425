//! Beginning and ending to publish the current context of each thread, while threads run; see
//! [`crate::publishing`], which has the steps.

use dormouse_keys::{Key, Lease};
use dormouse_sys::process::identity;

use super::counting::move_on;
use crate::publishing::{PUBLISH, set_on};

/// Keeps the hook awake by which each thread's pointer follows its current context. Several count.
///
/// The caller says meanwhile whether pointers may be stored, and that they may not before the last
/// of these is dropped.
#[derive(Debug)]
#[must_use = "contexts are published as long as it lives"]
pub struct ContextPublishing {
    process: u64,
    lease: Option<Lease>,
}

impl ContextPublishing {
    /// Wakes the hook.
    ///
    /// # Errors
    ///
    /// A static key that cannot be switched.
    pub fn start() -> Result<Self, dormouse_keys::Error> {
        Ok(Self { process: identity::id(), lease: Some(PUBLISH.acquire()?) })
    }

    /// The keys that it keeps on.
    pub fn keys(&self) -> &[&'static Key] {
        self.lease.as_ref().map_or(&[], Lease::keys)
    }

    /// Whether pointers may be stored from now on: by a thread in the midst of a task at its next
    /// event. (Step 1.)
    pub fn set_on(on: bool) {
        set_on(on);
    }
}

impl Drop for ContextPublishing {
    fn drop(&mut self) {
        // A forked child has begun again. Step 2, and step 3: the lease goes.
        if self.process == identity::id() && move_on().is_err() {
            // A handler over a change of what is counted: the hook stays awake, and takes pointers
            // back.
            std::mem::forget(self.lease.take());
        }
    }
}
