//! The atomics of what loom checks here.

dormouse_sys::atomics!(AtomicU32, AtomicU64, AtomicUsize, fence);
