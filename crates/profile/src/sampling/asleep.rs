//! A thread that sleeps in the kernel, read by another one: where it has entered the kernel, and
//! its stack. It is not woken or otherwise involved; a signal would end calls that the kernel does
//! not restart (`poll`, `epoll_wait`, `nanosleep`: signal(7)).
//!
//! # References
//!
//! `proc_pid_syscall(5)`. A process may always read this of its own threads
//! (`__ptrace_may_access`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::thread_stack::NoStack;

/// The most bytes of a stack.
const MOST: usize = 256 * 1024;

/// The doing of a thread, as far as others see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Doing {
    /// It is running or runnable.
    Runs,
    /// It sleeps in the kernel.
    Sleeps(Asleep),
}

/// A thread that sleeps. Two that are equal are one sleep, where the kernel counts how often
/// threads run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asleep {
    /// The address to which the kernel returns, and its stack pointer.
    pub(super) instruction: u64,
    pub(super) stack: u64,
    /// The kernel's whole text, which includes the call and its arguments.
    text: Vec<u8>,
    /// For how long and how often it has run.
    ran: Vec<u8>,
}

/// The doing of a thread of this process.
pub(super) fn doing(tid: u32) -> Result<Doing, NoStack> {
    // First: a thread that has run since is seen by the second look.
    let ran = fs::read(format!("/proc/self/task/{tid}/schedstat")).unwrap_or_default();
    let text = match fs::read(format!("/proc/self/task/{tid}/syscall")) {
        Ok(text) => text,
        Err(error) if is_gone(&error) && has_task(tid) => {
            return Err(NoStack::Refused("the kernel does not report where threads sleep".into()));
        }
        Err(error) if is_gone(&error) => return Err(NoStack::Ended),
        Err(error) => {
            let why = format!("the kernel refuses to report where threads sleep: {error}");
            return Err(NoStack::Refused(why));
        }
    };
    if text.starts_with(b"running") {
        return Ok(Doing::Runs);
    }
    parse(text, ran).map(Doing::Sleeps).ok_or(NoStack::Ended)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Whether there is such a thread, and so a file was not built into the kernel.
fn has_task(tid: u32) -> bool {
    fs::exists(format!("/proc/self/task/{tid}/comm")).unwrap_or(false)
}

/// The last two of the numbers are the stack pointer and the instruction. A thread that has no
/// memory any more has none.
fn parse(text: Vec<u8>, ran: Vec<u8>) -> Option<Asleep> {
    let words = std::str::from_utf8(&text).ok()?.trim_end();
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let mut last = words.rsplit(' ').map_while(number);
    let (instruction, stack) = (last.next()?, last.next()?);
    (stack != 0).then_some(Asleep { instruction, stack, text, ran })
}

/// A copy of the stack of a thread that sleeps, which ends there at most. `None`: it does not sleep
/// any more, or has run meanwhile.
pub(super) fn stack(tid: u32, asleep: &Asleep, memory: &File, end: u64) -> Result<Option<Vec<u8>>, NoStack> {
    let refused = |why: &str| NoStack::Refused(format!("the thread's stack cannot be read: {why}"));
    let mut bytes = Vec::new();
    let length = usize::try_from(end.saturating_sub(asleep.stack)).unwrap_or(MOST).min(MOST);
    bytes.try_reserve_exact(length).map_err(|_| refused("there is no memory for a copy"))?;
    bytes.resize(length, 0);
    let mut filled = 0;
    while filled < length {
        match memory.read_at(&mut bytes[filled..], asleep.stack + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(_) if filled > 0 => break,
            Err(error) => {
                // Its memory may have gone with it.
                let there = doing(tid)?;
                let is_still = there == Doing::Sleeps(asleep.clone());
                return if is_still { Err(refused(&error.to_string())) } else { Ok(None) };
            }
        }
    }
    bytes.truncate(filled);
    Ok((doing(tid)? == Doing::Sleeps(asleep.clone())).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read() {
        let line = b"230 0x0 0x0 0x7ffe1 0x0 0x0 0x0 0x7ffd0 0x7f01\n";
        let asleep = parse(line.to_vec(), Vec::new()).unwrap();
        assert_eq!((asleep.stack, asleep.instruction), (0x7ffd0, 0x7f01));
        assert_eq!(parse(b"-1 0x7ffd0 0x7f01\n".to_vec(), Vec::new()).unwrap().stack, 0x7ffd0);
        assert_eq!(parse(b"0 0x0\n".to_vec(), Vec::new()), None);
        assert_eq!(parse(b"".to_vec(), Vec::new()), None);
    }
}
