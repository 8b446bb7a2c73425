//! The kernel's own clocks.
//!
//! # Safety
//!
//! The unsafe code is `clock_gettime` on a clock id that rustix has no name for, and `sysconf`.
#![allow(unsafe_code)]

use rustix::time::{ClockId, Timespec, clock_gettime};

fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// CPU time of the calling thread, in nanoseconds, by a system call.
pub(crate) fn thread_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time of the process, in nanoseconds, by a system call. Up to a scheduler tick behind for every sibling
/// that is running (Linux: `thread_group_cputime` in `kernel/sched/cputime.c`).
pub fn process_cpu_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// `CLOCK_MONOTONIC_RAW`, in nanoseconds: at the rate of the hardware, whatever sets the other clocks right.
pub(crate) fn raw_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::MonotonicRaw))
}

/// `CLOCK_REALTIME`, in nanoseconds since 1970.
pub(crate) fn realtime_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Realtime))
}

/// Processors of the machine: no more threads run at once, whatever their affinity and quota are now.
pub(crate) fn processors() -> usize {
    // SAFETY: takes a number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).map_or(1, |count| count.max(1))
}

/// CPU time of a thread of this process, in nanoseconds, by a system call that makes the kernel bring the
/// thread's account up to date; `None` when there is no such thread.
pub fn thread_cpu_ns_of(tid: u32) -> Option<u64> {
    // The clock id of a thread: its complement, then "per thread" and "scheduler time"
    // (Linux: include/linux/posix-timers_types.h; glibc builds the same in pthread_getcpuclockid).
    let clock = (!tid.cast_signed() << 3) | 0b110;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place; an id of no thread is refused with EINVAL.
    let asked = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (asked == 0).then(|| time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_threads_clock_is_readable_and_a_missing_threads_is_not() {
        let own = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        let before = thread_ns();
        let seen = std::thread::spawn(move || thread_cpu_ns_of(own)).join().unwrap().unwrap();
        assert!(seen >= before);
        assert_eq!(thread_cpu_ns_of(u32::MAX >> 4), None);
    }
}
