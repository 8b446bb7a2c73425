//! A sample of a thread: what it is in at this moment.
//!
//! | state in `stat` | also read | the thread |
//! |---|---|---|
//! | `R` | its CPU clock, twice | runs if the clock goes on, else waits for a CPU |
//! | `S`, `D`, others | `syscall` | sleeps in a call, or in a page fault |
//! | `T`, `t` | | is stopped |
//!
//! It takes up to nine system calls of the thread that samples, and none of the other.

use std::fmt;
use std::io;

use dormouse_clock::thread_cpu_ns_of;
use dormouse_sys::process::kernel_view::{KernelEntry, KernelState, call_name};

/// How many different things are told apart.
const MOST: usize = 8;

/// The activity in which a thread was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ThreadIn {
    /// It was on a CPU.
    Cpu,
    /// It was runnable, and on no CPU: others ran there, or a CPU limit held it back.
    Runnable,
    /// It slept in the system call of this number.
    Call(u32),
    /// It slept in a page fault.
    PageFault,
    /// It was stopped, by a signal or a debugger.
    Stopped,
    /// It was found in other activities than the first eight.
    Other,
    /// It is not known, for this reason.
    Unknown(&'static str),
}

/// The name of the call or state, as in `futex` and `page fault`.
impl fmt::Display for ThreadIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("on a CPU"),
            Self::Runnable => f.write_str("runnable"),
            Self::Call(number) => match call_name(*number) {
                Some(name) => f.write_str(name),
                None => write!(f, "system call {number}"),
            },
            Self::PageFault => f.write_str("page fault"),
            Self::Stopped => f.write_str("stopped"),
            Self::Other => f.write_str("other"),
            Self::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// A sample of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadSample {
    pub(crate) within: ThreadIn,
    /// The first arguments of the call, if it is one.
    pub(crate) arguments: Option<[u64; 3]>,
}

impl ThreadSample {
    /// Samples a thread of this process.
    pub(crate) fn at(tid: u32) -> Self {
        let without = |within| Self { within, arguments: None };
        let stat = match KernelState::of_own(tid) {
            Ok(stat) => stat,
            Err(error) => return without(ThreadIn::Unknown(reason(&error))),
        };
        Self::in_state(tid, stat.state)
    }

    /// Samples a thread that was in this state a moment ago.
    pub(crate) fn in_state(tid: u32, state: u8) -> Self {
        let without = |within| Self { within, arguments: None };
        match state {
            b'R' => without(runs_or_waits(tid)),
            b'T' | b't' => without(ThreadIn::Stopped),
            b'Z' | b'X' => without(ThreadIn::Unknown(ENDED)),
            _ => match KernelEntry::of_own(tid) {
                Ok(KernelEntry::Call(number, arguments)) => {
                    Self { within: ThreadIn::Call(number), arguments: Some(arguments) }
                }
                Ok(KernelEntry::Fault) => without(ThreadIn::PageFault),
                // It has woken meanwhile.
                Ok(KernelEntry::Runs) => without(runs_or_waits(tid)),
                Err(error) => without(ThreadIn::Unknown(reason(&error))),
            },
        }
    }
}

/// The clock of a thread goes on at each reading while it is on a CPU.
fn runs_or_waits(tid: u32) -> ThreadIn {
    match (thread_cpu_ns_of(tid), thread_cpu_ns_of(tid)) {
        (Some(first), Some(second)) if second > first => ThreadIn::Cpu,
        (Some(_), Some(_)) => ThreadIn::Runnable,
        _ => ThreadIn::Unknown("the thread's clock is refused"),
    }
}

const ENDED: &str = "the thread has ended";

/// Why a file of `/proc` cannot be read.
fn reason(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES) => "its files in /proc are refused (EACCES), as after a change of user",
        Some(libc::EPERM) => "its files in /proc are refused (EPERM), by a filter or a security module",
        Some(libc::ENOSYS) => "a filter refuses to open files (ENOSYS)",
        Some(libc::EMFILE | libc::ENFILE) => "there is no free descriptor for a file of /proc",
        Some(libc::ENOENT | libc::ESRCH) if std::fs::exists("/proc/self").unwrap_or(false) => ENDED,
        Some(libc::ENOENT) => "there is no /proc",
        Some(libc::ESRCH) => ENDED,
        _ => "its files in /proc cannot be read",
    }
}

/// The calls and states in which threads were found, each with a sum: of samples, or of
/// nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ThreadTally(Vec<(ThreadIn, u64)>);

impl ThreadTally {
    /// Adds to a sum. Beyond the first eight activities it is that of the others.
    pub(crate) fn add(&mut self, within: ThreadIn, n: u64) {
        let place = |within| self.0.iter().position(|(of, _)| *of == within);
        let is_full = self.0.iter().filter(|(of, _)| *of != ThreadIn::Other).count() >= MOST;
        let within = if is_full && place(within).is_none() { ThreadIn::Other } else { within };
        match place(within) {
            Some(at) => self.0[at].1 += n,
            None if self.0.try_reserve(1).is_err() => {}
            None => self.0.push((within, n)),
        }
    }

    /// The sums, the greatest first.
    pub(crate) fn sorted(&self) -> Vec<(ThreadIn, u64)> {
        let mut all = self.0.clone();
        all.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_bounded() {
        let mut samples = ThreadTally::default();
        for number in 0..100 {
            samples.add(ThreadIn::Call(number % 20), 1);
        }
        samples.add(ThreadIn::Call(3), 1);
        let all = samples.sorted();
        assert_eq!((all.len(), all[0]), (MOST + 1, (ThreadIn::Other, 60)));
        assert_eq!(all[1], (ThreadIn::Call(3), 6));
    }

    #[test]
    fn others_have_one_sum() {
        let mut samples = ThreadTally::default();
        samples.add(ThreadIn::Other, 1);
        for number in 0..20 {
            samples.add(ThreadIn::Call(number), 1);
        }
        let all = samples.sorted();
        assert_eq!((all.len(), all[0]), (MOST + 1, (ThreadIn::Other, 13)));
    }

    #[test]
    fn errors_have_reasons() {
        let reason = |errno| reason(&io::Error::from_raw_os_error(errno));
        assert!(reason(libc::EACCES).contains("change of user") && reason(libc::EPERM).contains("filter"));
        assert_eq!(reason(libc::ESRCH), ENDED);
        assert_eq!(ThreadSample::at(u32::MAX >> 4).within, ThreadIn::Unknown(ENDED));
        assert_eq!(ThreadIn::Unknown(ENDED).to_string(), "unknown: the thread has ended");
        let futex = u32::try_from(libc::SYS_futex).unwrap();
        assert_eq!(
            [ThreadIn::Call(futex), ThreadIn::Call(9999)].map(|of| of.to_string()),
            ["futex", "system call 9999"]
        );
    }
}
