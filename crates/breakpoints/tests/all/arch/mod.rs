//! Everything that differs between processors, for tests of watches: writes, with frames whatever
//! the compiler does with frame pointers, and traps that are no hits.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

use std::sync::atomic::AtomicU64;

pub(crate) use processor::*;

unsafe extern "C" {
    /// Calls a function that writes the value.
    pub(crate) fn dormouse_test_outer(at: *const AtomicU64, value: u64);
    /// Where that function returns to.
    pub(crate) fn dormouse_test_returned();
    /// Where a watch stops the writer.
    pub(crate) fn dormouse_test_stopped();
}
