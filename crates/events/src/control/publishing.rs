//! Beginning and ending to publish the current context of each thread while threads run;
//! [`crate::publishing`] has the steps.

use dormouse_keys::{Key, Lease};
use dormouse_sys::process::identity;

use super::counting::move_on;
use crate::publishing::{PUBLISH, set_on};

/// Keeps the hook awake which points each thread at its current context. Several may exist at once.
///
/// The caller turns storing of pointers on and off with `set_on`, and must turn it off before it
/// drops the last of these.
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
    /// If a static key cannot be switched.
    pub fn start() -> Result<Self, dormouse_keys::Error> {
        Ok(Self { process: identity::id(), lease: Some(PUBLISH.acquire()?) })
    }

    /// The keys that this value keeps on.
    pub fn keys(&self) -> &[&'static Key] {
        self.lease.as_ref().map_or(&[], Lease::keys)
    }

    /// Sets whether threads may store pointers from now on. A thread in the middle of a task obeys
    /// at its next event. (Step 1 of the module.)
    pub fn set_on(on: bool) {
        set_on(on);
    }
}

impl Drop for ContextPublishing {
    fn drop(&mut self) {
        // A forked child has begun again. Step 2, and step 3: the lease goes.
        if self.process == identity::id() && move_on().is_err() {
            // In a handler that interrupted a change of what is counted: the hook stays awake, and
            // takes pointers back.
            std::mem::forget(self.lease.take());
        }
    }
}
