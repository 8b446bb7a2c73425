//! The module that gives loom's atomics in place of std's under `cfg(loom)`.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};
