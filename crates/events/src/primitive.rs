//! The seam behind which loom takes std's place.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU64};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicU64};
