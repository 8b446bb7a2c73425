//! A timer on the CPU clock of another thread, by bare system calls: the C library's functions only
//! support threads that it made.
//!
//! Such a timer ticks only while its thread runs, and its signal goes to that thread. It is not
//! inherited by a child. The kernel attaches it to the thread itself, not to the thread's id.
//!
//! # Async-signal-safety
//!
//! Each function is one system call.
//!
//! # References
//!
//! `timer_create(2)`; `kernel/time/posix-cpu-timers.c`: expiries are checked on the tick
//! (`run_posix_cpu_timers`); a thread that has ended leaves no time (`posix_cpu_timer_get`).
//!
//! # Safety
//!
//! The unsafe code makes these calls, with pointers to locals.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

/// Makes a timer that is not set, for a thread of this process.
pub(super) fn create(tid: u32, signal: libc::c_int, value: u64) -> io::Result<u32> {
    // The clock id of a thread: its complement, then "per thread" and "scheduler time".
    let clock = (!tid.cast_signed() << 3) | 0b110;
    // SAFETY: plain numbers, for which zero is a value.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_value.sival_ptr = ptr::without_provenance_mut(value as usize);
    event.sigev_signo = signal;
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = tid.cast_signed();
    let mut timer = 0_i32;
    // SAFETY: valid places; the kernel looks at the ids itself.
    answer(unsafe { libc::syscall(libc::SYS_timer_create, clock, &raw const event, &raw mut timer) })?;
    Ok(timer.cast_unsigned())
}

/// Has a timer expire when its thread has run for `first` nanoseconds, and then each `period`.
pub(super) fn set(timer: u32, first: u64, period: u64) -> io::Result<()> {
    let time = |ns: u64| libc::timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    };
    let times = libc::itimerspec { it_interval: time(period), it_value: time(first) };
    let none = ptr::null_mut::<libc::itimerspec>();
    // SAFETY: a valid place; a timer that is not there is refused.
    answer(unsafe { libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const times, none) })
}

/// Whether the thread of a timer that was set has ended, also if another thread has its id by now.
/// False where a filter refuses the question.
pub(super) fn is_over(timer: u32) -> bool {
    times(timer).is_ok_and(|times| ns(times.it_value) == 0)
}

/// The period of a timer.
#[cfg(test)]
pub(super) fn period(timer: u32) -> io::Result<u64> {
    times(timer).map(|times| ns(times.it_interval))
}

fn times(timer: u32) -> io::Result<libc::itimerspec> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut times: libc::itimerspec = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place; a timer that is not there is refused.
    answer(unsafe { libc::syscall(libc::SYS_timer_gettime, timer, &raw mut times) })?;
    Ok(times)
}

fn ns(time: libc::timespec) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Ends a timer.
pub(super) fn delete(timer: u32) {
    // SAFETY: takes a number.
    if unsafe { libc::syscall(libc::SYS_timer_delete, timer) } != 0 {
        // A filter that came meanwhile may refuse this alone.
        let _ = set(timer, 0, 0);
    }
}

/// The most timers that dormouse makes: a quarter of the signals that the user may have queued,
/// because each timer keeps one. Where a filter refuses the question only the kernel's own limit
/// counts.
pub(super) fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a valid place, which a refused call leaves as it is. Not rustix's, which panics then.
    unsafe { libc::getrlimit(libc::RLIMIT_SIGPENDING, &raw mut limit) };
    limit.rlim_cur / 4
}

fn answer(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use dormouse_testkit::{Filter, in_child};

    use super::*;

    #[test]
    fn a_refused_limit_is_none() {
        in_child(|| {
            Filter::refuse(&[libc::SYS_prlimit64]).install();
            assert_eq!(limit(), libc::RLIM_INFINITY / 4);
        });
    }
}
