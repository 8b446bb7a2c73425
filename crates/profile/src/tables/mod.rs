//! Finding callers in copies of stacks by the unwind tables that compilers write for exceptions.
//!
//! The tables are read once, and again when a stack has an address in unknown code: an object may
//! have been loaded since. That reads the kernel's list of mappings, so it is done at most once a
//! second.

#[cfg(all(feature = "unwind", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod read;
#[cfg(not(all(feature = "unwind", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[path = "none.rs"]
mod read;

pub(crate) use read::Tables;

/// How far the callers in a copy go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "unwind"), allow(dead_code, reason = "nothing is copied there"))]
pub(crate) enum Reach {
    /// To the outermost function of the thread.
    Outermost,
    /// To the end of the copy.
    Copy,
    /// To code that has no table, and keeps no frame pointer.
    Lost,
}
