//! Which threads block a signal, according to `/proc`.
//!
//! The C library blocks every signal for a moment in the thread that starts another one
//! (`pthread_create`, `posix_spawn`, `fork`), and so does each handler of dormouse's in the thread
//! that it interrupts. Such a thread unblocks by itself, so a caller may check again. Its mask
//! identifies it: it includes a signal which the library reserves for itself, and which is in no
//! set that a program fills by `sigfillset`.
//!
//! # Safety
//!
//! The unsafe code reads the calling thread's mask.
#![allow(unsafe_code)]

use std::io;

use crate::brief;
use crate::process::threads;

/// The signals that C libraries keep for themselves: the first real-time signals of the kernel.
const OF_THE_LIBRARY: u64 = 0b11 << 31;

/// A thread that blocks a signal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocking {
    /// The thread's id.
    pub tid: u32,
    /// The thread's name.
    pub name: String,
    /// Whether the thread blocks the signal only for a moment: inside of the C library, or of a
    /// handler of ours.
    pub for_a_moment: bool,
}

/// The threads of this process that block `signal` now.
///
/// # Errors
///
/// An error of reading `/proc`; or threads end so often that no list of them is complete.
///
/// # Cost
///
/// Reads a file of `/proc` for each thread.
pub fn blocking(signal: libc::c_int) -> io::Result<Vec<Blocking>> {
    let mut blocking = Vec::new();
    let mut tids = Vec::new();
    if !threads::list_whole(&mut tids)? {
        return Err(io::Error::other("no list of the threads is complete, because some always end"));
    }
    for tid in tids {
        let status = match brief::read(format!("/proc/self/task/{tid}/status")) {
            Ok(status) => status,
            // A thread that has ended meanwhile blocks nothing.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => continue,
            Err(error) => return Err(error),
        };
        // The kernel cuts a name anywhere, also in the middle of a character.
        let status = String::from_utf8_lossy(&status);
        if has_ended(&status) {
            continue;
        }
        let mask = blocked(&status).ok_or(io::ErrorKind::InvalidData)?;
        if has(mask, signal) {
            let name = field(&status, "Name:").unwrap_or_default().to_owned();
            blocking.push(Blocking { tid, name, for_a_moment: mask & OF_THE_LIBRARY != 0 });
        }
    }
    Ok(blocking)
}

/// The set of signals that the first thread of this process blocks: bit `n - 1` for signal `n`.
pub fn of_first_thread() -> Option<u64> {
    blocked(&String::from_utf8_lossy(&brief::read("/proc/self/status").ok()?))
}

/// Whether a thread of this process blocks a signal, and not only for a moment. False for a thread
/// that has ended.
///
/// # Cost
///
/// Reads a file of `/proc`.
pub fn is_blocking(tid: u32, signal: libc::c_int) -> bool {
    let status = brief::read(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
    blocked(&String::from_utf8_lossy(&status)).is_some_and(|mask| is_for_long(mask, signal))
}

/// Whether a thread of this process is under a filter of system calls. True if that is unknown.
///
/// # Cost
///
/// Reads a file of `/proc`.
pub fn is_filtered(tid: u32) -> bool {
    let status = brief::read(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
    field(&String::from_utf8_lossy(&status), "Seccomp:") != Some("0")
}

/// Whether the calling thread blocks a signal, and not only for a moment.
///
/// # Async-signal-safety
///
/// A system call, which changes `errno` where a filter refuses it; then the result is false.
pub fn is_blocked_here(signal: libc::c_int) -> bool {
    let mut mask = 0_u64;
    let none = std::ptr::null::<u64>();
    // SAFETY: the kernel writes a set of 64 bits. (The C library's own function would leave out the
    // signals that it keeps for itself.)
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, none, &raw mut mask, size_of::<u64>());
    }
    is_for_long(mask, signal)
}

/// Whether a thread of this process blocks a signal now, even if only for a moment. False for a
/// thread that has ended.
///
/// # Cost
///
/// Reads a file of `/proc`.
pub fn is_blocking_now(tid: u32, signal: libc::c_int) -> bool {
    let status = brief::read(format!("/proc/self/task/{tid}/status")).unwrap_or_default();
    blocked(&String::from_utf8_lossy(&status)).is_some_and(|mask| has(mask, signal))
}

fn is_for_long(mask: u64, signal: libc::c_int) -> bool {
    has(mask, signal) && mask & OF_THE_LIBRARY == 0
}

/// Whether a thread of this process may be in the middle of starting another one: it is running,
/// and blocks the signals that the C library or a handler of ours blocks. False for a thread that
/// has ended.
pub fn may_be_starting_a_thread(tid: u32) -> io::Result<bool> {
    let status = match brief::read(format!("/proc/self/task/{tid}/status")) {
        Ok(status) => status,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => return Ok(false),
        Err(error) => return Err(error),
    };
    let status = String::from_utf8_lossy(&status);
    // A thread that starts another one runs, or waits for memory or a lock of the kernel's.
    let runs = field(&status, "State:").is_some_and(|state| state.starts_with(['R', 'D']));
    Ok(runs && blocked(&status).is_none_or(|mask| mask & OF_THE_LIBRARY != 0))
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Whether the thread runs nothing any more: a process whose first thread has ended keeps it as a
/// zombie, with the mask that it ended with.
fn has_ended(status: &str) -> bool {
    field(status, "State:").is_some_and(|state| state.starts_with(['Z', 'X']))
}

/// The set of signals that the thread blocks; `None` if the file lacks it.
fn blocked(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "SigBlk:")?, 16).ok()
}

fn has(mask: u64, signal: libc::c_int) -> bool {
    mask & (1 << (signal - 1)) != 0
}

/// `None` if the file lacks the mask.
#[cfg(test)]
pub(crate) fn blocks(status: &str, signal: libc::c_int) -> Option<bool> {
    blocked(status).map(|mask| has(mask, signal))
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a name and a mask that std cannot set")]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_a_status_file_is_read() {
        let status = |mask: &str| format!("Name:\ttea\nSigPnd:\t0000000000000000\nSigBlk:\t{mask}\n");
        assert_eq!(blocks(&status("0000000000000010"), libc::SIGTRAP), Some(true));
        assert_eq!(blocks(&status("fffffffe7ffbfeff"), libc::SIGTRAP), Some(true));
        assert_eq!(blocks(&status("ffffffffffffffef"), libc::SIGTRAP), Some(false));
        assert_eq!(blocks("", libc::SIGTRAP), None);
    }

    #[test]
    fn starters_of_threads_block_for_a_moment() {
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::thread::spawn(|| {}).join().unwrap();
                }
            });
            let seen: Vec<_> = (0..2000).flat_map(|_| blocking(libc::SIGWINCH).unwrap()).collect();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(!seen.is_empty(), "no thread was seen while it started another");
            assert!(seen.iter().all(|thread| thread.for_a_moment), "{seen:?}");
        });
    }

    #[test]
    fn a_first_thread_that_has_ended_blocks_nothing() {
        assert!(has_ended("Name:\ttea\nState:\tZ (zombie)\nSigBlk:\tfffffffe7ffbfeff\n"));
        for state in ["R (running)", "S (sleeping)", "D (disk sleep)", "T (stopped)", "t (tracing stop)"] {
            assert!(!has_ended(&format!("Name:\tZ\nState:\t{state}\n")));
        }
    }

    #[test]
    fn a_thread_with_a_cut_name_is_seen() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: sets this thread's own name and mask from local, whole values.
            unsafe {
                libc::prctl(libc::PR_SET_NAME, c"aaaaaaaaaaaaaa\u{e9}".as_ptr());
                let mut mask = std::mem::zeroed();
                libc::sigemptyset(&raw mut mask);
                libc::sigaddset(&raw mut mask, libc::SIGURG);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut());
            }
            tell.send(rustix::thread::gettid().as_raw_pid().cast_unsigned()).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        assert!(blocking(libc::SIGURG).unwrap().iter().any(|thread| thread.tid == tid));
        drop(end);
        thread.join().unwrap();
    }
}
