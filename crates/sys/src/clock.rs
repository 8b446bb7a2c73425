//! The kernel's clocks, read without the C library.
//!
//! A preloaded library (libfaketime, and others that shift time for tests) answers `clock_gettime`
//! in the C library's place: it shifts CPU clocks by the offset of its dates, and takes a lock, on
//! which a signal handler would wait for ever. Reading a CPU clock is a system call in any case, so
//! [`ask`] makes the call itself and costs no more. The vDSO reads the other clocks without a
//! system call; [`ask_library`] uses it until [`look`] has found its answer to be false.
//!
//! # Async-signal-safety
//!
//! [`ask`] is one system call and leaves `errno` as it was. So is [`ask_library`] where time is
//! shifted.
//!
//! # Safety
//!
//! The unsafe code calls `clock_gettime` with a valid pointer for the result.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::errno::keeping_errno;

/// Nanoseconds by which vDSO and system call may differ: a correction of the clock between them.
const SLACK: u64 = 1_000_000;

/// Whether the library's answers were found to be false.
static IS_SHIFTED: AtomicBool = AtomicBool::new(false);

/// Reads a clock in nanoseconds, by a system call. `None` if there is no such clock, or if a filter
/// refuses the call.
pub fn ask(clock: libc::clockid_t) -> Option<u64> {
    if cfg!(miri) {
        // It makes no system call of this number.
        return library(clock);
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place; a clock that does not exist is refused.
    let answer = keeping_errno(|| unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) });
    (answer == 0).then(|| nanoseconds(time))
}

/// CPU time of the calling thread in nanoseconds, by a system call. `None` if a filter refuses it.
pub fn thread_cpu_ns() -> Option<u64> {
    ask(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Reads a clock in nanoseconds, through the vDSO; for all clocks but CPU time.
pub fn ask_library(clock: libc::clockid_t) -> Option<u64> {
    // Relaxed: it only goes from false to true, and each answer stands for itself.
    if IS_SHIFTED.load(Ordering::Relaxed) { ask(clock) } else { library(clock) }
}

/// `CLOCK_MONOTONIC` in nanoseconds; 0 where a filter refuses the call.
pub fn monotonic_ns() -> u64 {
    ask_library(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Compares the library's clock with the kernel's. If they differ, [`ask_library`] makes system
/// calls from then on. Must not be called under a filter of system calls, which may end the process
/// for the call.
pub fn look() {
    for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_MONOTONIC_RAW, libc::CLOCK_THREAD_CPUTIME_ID] {
        let (before, said, after) = (ask(clock), library(clock), ask(clock));
        let is_true = match (before, said, after) {
            (Some(before), Some(said), Some(after)) => {
                (before.saturating_sub(SLACK)..=after + SLACK).contains(&said)
            }
            _ => true,
        };
        if !is_true {
            IS_SHIFTED.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether a library was found that answers in the kernel's place, and falsely.
pub fn is_shifted() -> bool {
    IS_SHIFTED.load(Ordering::Relaxed)
}

#[allow(clippy::disallowed_methods, reason = "the one place that asks the library")]
fn library(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as in `ask`.
    let answer = keeping_errno(|| unsafe { libc::clock_gettime(clock, &raw mut time) });
    (answer == 0).then(|| nanoseconds(time))
}

fn nanoseconds(time: libc::timespec) -> u64 {
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn kernel_and_library_agree_where_nothing_shifts() {
        look();
        assert!(!is_shifted());
        let before = ask(libc::CLOCK_MONOTONIC).unwrap();
        let said = ask_library(libc::CLOCK_MONOTONIC).unwrap();
        assert!((before..=ask(libc::CLOCK_MONOTONIC).unwrap()).contains(&said));
        assert_eq!(ask(99), None);
    }
}
