//! The atomics of what loom checks here, and what differs under loom.

pub(crate) use dormouse_sys::const_unless_loom;

dormouse_sys::atomics!(AtomicPtr, AtomicU32, AtomicU64, fence);

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

pub(crate) use zeros;

/// The cheap side of the pair of barriers in [`dormouse_sys::barrier`]; `control` passes the heavy
/// side.
#[inline]
pub(crate) fn light_barrier() {
    #[cfg(not(all(test, loom)))]
    dormouse_sys::barrier::light();
    #[cfg(all(test, loom))]
    fence(std::sync::atomic::Ordering::SeqCst);
}
