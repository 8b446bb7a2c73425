//! The atomics of what loom checks here.

dormouse_sys::atomics!(AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence);
