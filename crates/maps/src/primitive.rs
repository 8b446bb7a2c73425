//! The seam behind which loom takes std's place.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence},
};

/// What stands beside sequentially consistent accesses: loom takes them for acquiring and releasing ones, and knows the
/// one order of all of them from fences only.
#[inline(always)]
pub(crate) fn in_one_order() {
    #[cfg(all(test, loom))]
    fence(std::sync::atomic::Ordering::SeqCst);
}

/// A `const fn`, except under loom, whose types cannot be made at compile time.
macro_rules! const_unless_loom {
    ($(#[$attribute:meta])* $seen:vis fn $($rest:tt)*) => {
        #[cfg(not(all(test, loom)))]
        $(#[$attribute])*
        $seen const fn $($rest)*
        #[cfg(all(test, loom))]
        $(#[$attribute])*
        $seen fn $($rest)*
    };
}
pub(crate) use const_unless_loom;
