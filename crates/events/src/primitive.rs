//! The module that gives loom's atomics in place of std's under `cfg(loom)`.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};

/// A function that is `const`, except under loom, which makes atomics at run time.
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visible:vis fn $name:ident() -> $made:ty $body:block) => {
        #[cfg(not(all(test, loom)))]
        $(#[$attribute])*
        $visible const fn $name() -> $made $body

        #[cfg(all(test, loom))]
        $(#[$attribute])*
        $visible fn $name() -> $made $body
    };
}

/// An array of atomics that are zero, one for each slot.
#[cfg(not(all(test, loom)))]
macro_rules! zeros {
    () => {
        [const { AtomicU64::new(0) }; MAX_COUNTERS]
    };
}
#[cfg(all(test, loom))]
macro_rules! zeros {
    () => {
        std::array::from_fn(|_| AtomicU64::new(0))
    };
}

pub(crate) use {const_fn, zeros};

/// The cheap side of the pair of barriers in [`dormouse_sys::barrier`]; `control` passes the heavy
/// side.
#[inline]
pub(crate) fn light_barrier() {
    #[cfg(not(all(test, loom)))]
    dormouse_sys::barrier::light();
    #[cfg(all(test, loom))]
    fence(std::sync::atomic::Ordering::SeqCst);
}
