//! The kernel's refusals, with what was asked for and what to change.
//!
//! What an errno means here stands in `perf_event_open(2)` and follows from `kernel/events/core.c`: `ENOENT` is a type
//! that no unit registered, `EACCES` and `EPERM` are rights, `ENOSPC` is debug registers.

use std::{fs, io};

use super::{Attr, Subject};

/// Why an event could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A register watches aligned memory only.
    #[error("a watch of {len} bytes at {addr:#x} cannot be set: the address must be a multiple of {len}")]
    Misaligned {
        /// Where.
        addr: u64,
        /// How many bytes.
        len: u64,
    },
    /// Not allowed to whoever asked.
    #[error("counting {name} is not allowed: {advice}")]
    Denied {
        /// What was to be counted.
        name: &'static str,
        /// What to change.
        advice: String,
    },
    /// Nothing here counts such an event.
    #[error("no PMU counts {name} here; a virtual machine has one if its host passes it on")]
    NoPmu {
        /// What was to be counted.
        name: &'static str,
    },
    /// All debug registers are taken.
    #[error("no debug register is free for {name}: remove another breakpoint of this thread or processor")]
    NoSlot {
        /// What was to be counted.
        name: &'static str,
    },
    /// There is no such thread (any more).
    #[error("there is no thread {tid}")]
    NoSuchThread {
        /// Its id.
        tid: u32,
    },
    /// There is no such processor, or it is off.
    #[error("there is no processor {cpu}, or it is offline")]
    NoSuchCpu {
        /// Its number.
        cpu: u32,
    },
    /// The process, or the machine, has as many descriptors open as it may.
    #[error("no descriptor is left for counting {name}: raise the limit on open files (ulimit -n)")]
    NoDescriptor {
        /// What was to be counted.
        name: &'static str,
    },
    /// A buffer for an inherited event must be some processor's.
    #[error("an inherited event cannot have one buffer for all processors: open one for each processor")]
    Unplaced,
    /// More memory would be locked than is allowed.
    #[error(
        "{bytes} bytes of locked memory for records of {name} are not allowed: use a smaller buffer, or raise \
         kernel.perf_event_mlock_kb or the limit on locked memory (ulimit -l)"
    )]
    LockedMemory {
        /// What was to be recorded.
        name: &'static str,
        /// How much.
        bytes: usize,
    },
    /// The kernel was built without events, or the sandbox hides them.
    #[error("this kernel or sandbox has no perf_event_open: {name} cannot be counted")]
    NoEvents {
        /// What was to be counted.
        name: &'static str,
    },
    /// Another refusal.
    #[error("cannot {what} {name}: {source}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The event.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// What the kernel's answer to the opening means.
    pub(super) fn of_open(attr: &Attr, subject: Subject, source: io::Error) -> Self {
        let name = attr.name;
        match (source.raw_os_error(), subject) {
            (Some(libc::EACCES | libc::EPERM), _) => {
                Self::Denied { name, advice: Rights::here().advice(attr, subject) }
            }
            (Some(libc::ENOENT | libc::EOPNOTSUPP), _) if attr.is_hardware => Self::NoPmu { name },
            (Some(libc::ENOSPC), _) => Self::NoSlot { name },
            (Some(libc::EMFILE | libc::ENFILE), _) => Self::NoDescriptor { name },
            (Some(libc::ENOSYS), _) => Self::NoEvents { name },
            (Some(libc::ESRCH), Subject::Thread(tid) | Subject::ThreadOnCpu { tid, .. }) => {
                Self::NoSuchThread { tid }
            }
            (Some(libc::ENODEV), Subject::Cpu(cpu) | Subject::ThreadOnCpu { cpu, .. }) => {
                Self::NoSuchCpu { cpu }
            }
            _ => Self::Kernel { what: "open", name, source },
        }
    }
}

/// Whether system calls of the calling thread pass a filter, which may end the process for one that it does not
/// like.
///
/// Where it cannot be told, the answer is yes.
pub fn is_filtered() -> bool {
    Rights::here().filtered != Some(false)
}

/// What decides who may count.
#[derive(Debug, Clone, Copy)]
struct Rights {
    /// `kernel.perf_event_paranoid`; distributions know levels above 2.
    paranoid: Option<i32>,
    /// Whether system calls of this thread pass a filter.
    filtered: Option<bool>,
}

impl Rights {
    fn here() -> Self {
        let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
        let status = fs::read("/proc/thread-self/status").unwrap_or_default();
        // A name in it may be cut in the middle of a character.
        let status = String::from_utf8_lossy(&status);
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        Self {
            paranoid: paranoid.ok().and_then(|level| level.trim().parse().ok()),
            filtered: mode.map(|mode| mode.trim() != "0"),
        }
    }

    /// The one thing to change, as far as it can be told.
    fn advice(self, attr: &Attr, subject: Subject) -> String {
        let most = match subject {
            Subject::Cpu(_) => 0,
            _ if !attr.is_user_only() => 1,
            _ => 2,
        };
        match (self.paranoid, subject) {
            (Some(level), _) if level > most => {
                format!("kernel.perf_event_paranoid is {level}: set it to {most}, or grant CAP_PERFMON")
            }
            _ if self.filtered == Some(true) => {
                "a seccomp filter is in the way: run the container with CAP_PERFMON, or with a profile that \
                 allows perf_event_open"
                    .to_owned()
            }
            (_, Subject::Thread(tid) | Subject::ThreadOnCpu { tid, .. }) => {
                format!("thread {tid} is somebody else's: ask as its user, or grant CAP_PERFMON")
            }
            _ => "a security module of the kernel forbids it (lockdown, SELinux)".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::Counted;

    #[test]
    fn an_advice_names_what_stands_in_the_way() {
        let kernel = Attr::count(Counted::Cycles);
        let user = kernel.user_only();
        let rights = |paranoid, filtered| Rights { paranoid: Some(paranoid), filtered: Some(filtered) };
        for (rights, attr, subject, expected) in [
            (rights(2, false), kernel, Subject::ThisThread, "paranoid is 2: set it to 1"),
            (rights(4, true), user, Subject::ThisThread, "paranoid is 4: set it to 2"),
            (rights(1, false), user, Subject::Cpu(0), "paranoid is 1: set it to 0"),
            (rights(-1, true), kernel, Subject::ThisThread, "seccomp"),
            (rights(2, false), user, Subject::Thread(7), "thread 7 is somebody else's"),
            (rights(2, false), user, Subject::ThisThread, "security module"),
            (Rights { paranoid: None, filtered: Some(true) }, kernel, Subject::Cpu(1), "seccomp"),
        ] {
            let advice = rights.advice(&attr, subject);
            assert!(advice.contains(expected), "{rights:?} {subject:?}: {advice}");
        }
    }

    #[test]
    fn a_refusal_says_what_was_asked_for() {
        let of = |counted, subject, errno| {
            Error::of_open(&Attr::count(counted), subject, io::Error::from_raw_os_error(errno)).to_string()
        };
        let here = Subject::ThisThread;
        for (message, expected) in [
            (of(Counted::Cycles, here, libc::ENOENT), "no PMU counts cycles here"),
            (of(Counted::L1Loads, here, libc::EOPNOTSUPP), "no PMU counts L1-dcache-loads here"),
            (of(Counted::TaskClock, here, libc::ENOENT), "cannot open task-clock: "),
            (of(Counted::Cycles, here, libc::EMFILE), "ulimit -n"),
            (of(Counted::Cycles, here, libc::EPERM), "counting cycles is not allowed: "),
            (of(Counted::Cycles, Subject::Thread(9), libc::ESRCH), "there is no thread 9"),
            (of(Counted::Cycles, Subject::Cpu(99), libc::ENODEV), "there is no processor 99"),
            (of(Counted::Cycles, here, libc::ENOSYS), "no perf_event_open"),
        ] {
            assert!(message.contains(expected), "{message}");
        }
    }
}
