//! The module that gives loom's types in place of std's under `cfg(loom)`.

pub(crate) use dormouse_sys::const_unless_loom;
#[cfg(not(all(test, loom)))]
pub(crate) use dormouse_sys::process::fork::{Condvar, Mutex, MutexGuard};
#[cfg(all(test, loom))]
pub(crate) use {
    loom::sync::{Condvar, Mutex},
    model::Site as ModelSite,
};

dormouse_sys::atomics!(AtomicBool, AtomicU64);

#[cfg(all(test, loom))]
pub(crate) type MutexGuard<T> = loom::sync::MutexGuard<'static, T>;

/// A static, or under loom one that every execution makes anew.
macro_rules! shared {
    ($(#[$meta:meta])* static $name:ident: $type:ty = $value:expr;) => {
        #[cfg(not(all(test, loom)))]
        $(#[$meta])* static $name: $type = $value;
        #[cfg(all(test, loom))]
        loom::lazy_static! { $(#[$meta])* static ref $name: $type = $value; }
    };
}

pub(crate) use shared;

/// A key's sites in a model.
#[cfg(all(test, loom))]
mod model {
    use std::sync::atomic::{AtomicBool as Plain, AtomicUsize, Ordering};

    use loom::sync::atomic::AtomicBool;

    /// A key's one site, written without any ordering of its own.
    #[derive(Debug)]
    pub(crate) struct Site {
        awake: AtomicBool,
        writes: AtomicUsize,
        /// Whether another patcher has changed it, so that it cannot be written.
        pub(crate) foreign: Plain,
    }

    impl Site {
        pub(crate) fn new(awake: bool) -> Self {
            Self { awake: AtomicBool::new(awake), writes: AtomicUsize::new(0), foreign: Plain::new(false) }
        }

        pub(crate) fn write(&self, awake: bool) {
            self.awake.store(awake, Ordering::Relaxed);
            self.writes.fetch_add(1, Ordering::Relaxed);
        }

        pub(crate) fn is_awake(&self) -> bool {
            self.awake.load(Ordering::Relaxed)
        }

        /// How often it has been written.
        pub(crate) fn writes(&self) -> usize {
            self.writes.load(Ordering::Relaxed)
        }
    }
}
