//! Panics of the host, for a trigger that waits for one.
//!
//! The first such trigger puts a hook before the host's. It notes thread, task and group of a panic
//! and wakes the lookout, and then the host's hook does what it does. Without a trigger it passes
//! on at once. It stays to the end of the process, as hooks cannot be taken out of a chain; a hook
//! that the host sets later, and that calls no other, replaces it, and no panic is seen any more.
//!
//! The hook allocates nothing, takes no lock and waits for nobody: a panic may come anywhere, over
//! the allocator too. Of a panic that ends the process at once there is no file, because nothing
//! waits for the lookout: one in a destructor while another unwinds, in a program that is built
//! with `panic = "abort"`, or on the main thread, if the process ends by it sooner than the file is
//! written.

use std::panic::{Location, PanicHookInfo};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dormouse_sys::loader::PinError;
use dormouse_sys::process::identity;

/// How many triggers wait for one.
static WAITING: AtomicU32 = AtomicU32::new(0);
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);
/// How many there were, while somebody waited.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Of the last one.
static TASK: AtomicU64 = AtomicU64::new(0);
static GROUP: AtomicU32 = AtomicU32::new(0);
static THREAD: AtomicU32 = AtomicU32::new(0);
static LINE: AtomicU32 = AtomicU32::new(0);

/// Panics that were seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SeenPanics {
    pub(crate) count: u64,
    /// Of the last one.
    pub(crate) task: u64,
    pub(crate) group: u32,
    pub(crate) tid: u32,
    pub(crate) line: u32,
}

/// A trigger that waits for panics, as long as it lives.
#[derive(Debug)]
pub(crate) struct PanicWait(());

impl PanicWait {
    /// Begins. `wake` is called at each panic, under the same rules as the hook.
    ///
    /// Between taking the host's hook and setting ours there is a moment in which the process has
    /// std's, and in which a hook that another thread sets is lost.
    ///
    /// # Errors
    ///
    /// When this object is being unloaded: the hook stays, and its code has to.
    pub(crate) fn begin(wake: fn()) -> Result<Self, PinError> {
        dormouse_sys::loader::pin_self()?;
        if !std::thread::panicking() && !IS_INSTALLED.swap(true, Ordering::AcqRel) {
            let hosts = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                note(info, wake);
                hosts(info);
            }));
        }
        WAITING.fetch_add(1, Ordering::Relaxed);
        Ok(Self(()))
    }

    /// The panics that were seen so far.
    pub(crate) fn seen() -> SeenPanics {
        SeenPanics {
            // Acquire: pairs with the addition in `note`.
            count: COUNT.load(Ordering::Acquire),
            task: TASK.load(Ordering::Relaxed),
            group: GROUP.load(Ordering::Relaxed),
            tid: THREAD.load(Ordering::Relaxed),
            line: LINE.load(Ordering::Relaxed),
        }
    }
}

impl Drop for PanicWait {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

fn note(info: &PanicHookInfo<'_>, wake: fn()) {
    if WAITING.load(Ordering::Relaxed) == 0 {
        return;
    }
    TASK.store(dormouse_events::current_task(), Ordering::Relaxed);
    GROUP.store(dormouse_events::current_context(), Ordering::Relaxed);
    THREAD.store(identity::tid(), Ordering::Relaxed);
    LINE.store(info.location().map_or(0, Location::line), Ordering::Relaxed);
    // Release: who sees it sees the rest, or that of a later one.
    COUNT.fetch_add(1, Ordering::Release);
    wake();
}
