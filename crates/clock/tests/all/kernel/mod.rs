//! The calling thread as the kernel knows it.

use dormouse_clock::thread_cpu_ns_of;

pub(crate) fn tid() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

/// The kernel's clock of the calling thread.
pub(crate) fn kernel_ns() -> u64 {
    thread_cpu_ns_of(tid()).unwrap()
}
