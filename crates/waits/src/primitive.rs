//! The atomics of what loom checks here.

dormouse_sys::atomics!(AtomicPtr, AtomicU32, AtomicU64);
