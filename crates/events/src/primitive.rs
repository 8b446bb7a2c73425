//! The seam behind which loom takes std's place.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};

/// A function that is `const` but under loom, whose atomics are made at run time.
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

/// An array of atomics that are zero.
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

/// The cheap side of a barrier ([`dormouse_sys::barrier`]) whose other side is in `control`.
#[inline]
pub(crate) fn light_barrier() {
    #[cfg(not(all(test, loom)))]
    dormouse_sys::barrier::light();
    #[cfg(all(test, loom))]
    fence(std::sync::atomic::Ordering::SeqCst);
}
