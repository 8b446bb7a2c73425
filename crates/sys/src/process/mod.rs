//! The process as a whole: its identity, its locks, the handlers of a fork, and its
//! threads.
//!
//! Each file depends only on those before it: `identity`, `lock`, `fork`, `schedstat`,
//! `threads`, `cgroup`.

pub mod cgroup;
pub mod fork;
pub mod identity;
pub mod lock;
pub mod schedstat;
pub mod threads;
