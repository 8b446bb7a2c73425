//! The kernel's own clocks, and facts that are asked for once.
//!
//! A seccomp filter may refuse any of these calls, on any thread; so none of these functions fails.
//! Where the vDSO answers without a system call (all but CPU time, with the usual clock sources), a
//! filter has no effect.
//!
//! # Safety
//!
//! The unsafe code calls `sysconf`.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dormouse_sys::clock::{ask, ask_library};
use dormouse_sys::perf::is_filtered;

/// CPU time of the calling thread, in nanoseconds, by a system call; `None` where a filter refuses
/// it.
pub(crate) fn thread_ns() -> Option<u64> {
    ask(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The largest CPU time of the process that was seen.
static PROCESS: AtomicU64 = AtomicU64::new(0);

/// CPU time of the process in nanoseconds, by a system call. For every other thread that is
/// running, up to a scheduler tick is missing (Linux: `thread_group_cputime` in
/// `kernel/sched/cputime.c`). Where a filter refuses the call, the clock stands still.
pub fn process_cpu_ns() -> u64 {
    let Some(ns) = ask(libc::CLOCK_PROCESS_CPUTIME_ID) else { return PROCESS.load(Ordering::Relaxed) };
    PROCESS.fetch_max(ns, Ordering::Relaxed);
    ns
}

/// `CLOCK_MONOTONIC` at the last tick, in nanoseconds, without a read of the counter; 0 where a
/// filter refuses it.
pub(crate) fn tick_ns() -> u64 {
    ask_library(libc::CLOCK_MONOTONIC_COARSE).unwrap_or(0)
}

/// `CLOCK_MONOTONIC_RAW`, in nanoseconds: at the rate of the hardware, which no correction of the
/// other clocks changes. 0 where a filter refuses it.
pub(crate) fn raw_ns() -> u64 {
    ask_library(libc::CLOCK_MONOTONIC_RAW).unwrap_or(0)
}

/// `CLOCK_REALTIME` in nanoseconds since 1970; 0 where a filter refuses it.
pub fn realtime_ns() -> u64 {
    ask_library(libc::CLOCK_REALTIME).unwrap_or(0)
}

/// In a fork child: its CPU time begins at zero.
pub(crate) fn forget() {
    PROCESS.store(0, Ordering::Relaxed);
}

/// The number of processors of the machine, which bounds how many threads run at once. A very large
/// number until a thread without a filter of system calls has called this, because the C library
/// opens files for it.
pub fn processors() -> usize {
    const MANY: usize = 8192;
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 if is_filtered() => MANY,
        0 => {
            // SAFETY: takes a number.
            let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
            let count = usize::try_from(count).map_or(1, |count| count.max(1));
            KNOWN.store(count, Ordering::Relaxed);
            count
        }
        count => count,
    }
}

/// CPU time of a thread of this process in nanoseconds, by a system call that makes the kernel
/// bring the thread's account up to date. `None` if there is no such thread, or a filter refuses
/// the call.
pub fn thread_cpu_ns_of(tid: u32) -> Option<u64> {
    // The clock id of a thread: its complement, then "per thread" and "scheduler time"
    // (Linux: include/linux/posix-timers_types.h; glibc builds the same in pthread_getcpuclockid).
    ask((!tid.cast_signed() << 3) | 0b110)
}

/// CPU time of a process in nanoseconds, including its threads that have ended. `None` if there is
/// no process with this id. A system call.
pub fn process_cpu_ns_of(pid: u32) -> Option<u64> {
    // As above, without "per thread".
    ask((!pid.cast_signed() << 3) | 0b010)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it has no clocks of threads")]
    fn only_clocks_of_living_threads_are_readable() {
        let own = dormouse_sys::process::identity::tid();
        let before = thread_ns().unwrap();
        let seen = std::thread::spawn(move || thread_cpu_ns_of(own)).join().unwrap().unwrap();
        assert!(seen >= before);
        assert_eq!(thread_cpu_ns_of(u32::MAX >> 4), None);
        assert!(process_cpu_ns_of(std::process::id()).unwrap() >= seen);
        assert_eq!(process_cpu_ns_of(u32::MAX >> 4), None);
    }

    #[test]
    fn a_refused_question_leaves_errno_alone() {
        // SAFETY: the thread's own errno.
        unsafe { *libc::__errno_location() = libc::EXDEV };
        assert_eq!(thread_cpu_ns_of(u32::MAX >> 4), None);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EXDEV));
    }
}
