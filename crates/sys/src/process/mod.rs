//! The process as a whole: its identity, its locks, the handlers of a fork, and its
//! threads.
//!
//! Each file depends only on those before it: `identity`, `lock`, `fork`, `schedstat`,
//! `threads`, `pressure`, `cgroup`, `kernel_view`.

pub mod cgroup;
pub mod fork;
pub mod identity;
pub mod kernel_view;
pub mod lock;
pub mod pressure;
pub mod schedstat;
pub mod threads;
