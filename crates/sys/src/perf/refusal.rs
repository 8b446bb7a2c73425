//! The kernel's errors of opening an event, and the setting that causes each.
//!
//! # References
//!
//! `perf_event_open(2)`; Linux `kernel/events/core.c`: `ENOENT` is a type that no unit registered,
//! `EACCES` and `EPERM` are rights, `ENOSPC` is debug registers.
//!
//! # Safety
//!
//! The unsafe code is a `prctl` that only queries.
#![allow(unsafe_code)]

use std::{fs, io};

use super::attr::{Attr, Release};
use super::error::Error;
use super::subject::Subject;

/// The error that the answer of a kernel of this version to the opening means.
pub(super) fn refusal(kernel: Release, attr: &Attr, subject: Subject, source: io::Error) -> Error {
    let name = attr.name;
    let lacking = attr.newest().filter(|(_, release)| kernel < *release);
    match (source.raw_os_error(), subject) {
        (Some(libc::EACCES | libc::EPERM), _) => {
            Error::Denied { name, advice: Rights::here().advice(attr, subject) }
        }
        (Some(libc::ENOENT | libc::EOPNOTSUPP), _) if attr.is_hardware => Error::NoPmu(name),
        (Some(libc::ENOSPC), _) => Error::NoSlot(name),
        (Some(libc::EMFILE | libc::ENFILE), _) => Error::NoDescriptor(name),
        (Some(libc::ENOSYS), _) => Error::NoEvents(name),
        // A shorter structure, or a flag that was reserved.
        (Some(libc::E2BIG | libc::EINVAL), _) if lacking.is_some() => {
            let (what, release) = lacking.unwrap_or_default();
            Error::TooOld { name, what, release }
        }
        (Some(libc::ESRCH), Subject::Thread(tid) | Subject::ThreadOnCpu { tid, .. }) => {
            Error::NoSuchThread { tid }
        }
        (Some(libc::ENODEV), Subject::Cpu(cpu) | Subject::ThreadOnCpu { cpu, .. }) => Error::NoSuchCpu(cpu),
        _ => Error::Kernel { what: "open", name, source },
    }
}

/// Whether system calls of the calling thread pass a filter, which may end the process for a call
/// that it does not allow. True if the kernel does not tell.
///
/// # Async-signal-safety
///
/// One `prctl`. It opens no file, because a filter may end the process for that too.
pub fn is_filtered() -> bool {
    // Miri makes no system calls.
    if cfg!(miri) {
        return false;
    }
    // SAFETY: takes a number.
    match unsafe { libc::prctl(libc::PR_GET_SECCOMP) } {
        0 => false,
        // A kernel without seccomp does not support the query; a filter may refuse it.
        -1 => io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL),
        _ => true,
    }
}

/// The settings that decide whether a process may count.
#[derive(Debug, Clone, Copy)]
struct Rights {
    /// `kernel.perf_event_paranoid`; distributions have added levels above 2.
    paranoid: Option<i32>,
    /// Whether system calls of this thread pass a filter.
    filtered: bool,
}

impl Rights {
    fn here() -> Self {
        let filtered = is_filtered();
        // A filter that refuses events may end the process for opening files.
        let level =
            (!filtered).then(|| fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()).flatten();
        Self { paranoid: level.and_then(|level| level.trim().parse().ok()), filtered }
    }

    /// The one setting to change, if it can be determined.
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
            _ if self.filtered => {
                "a seccomp filter is in the way: run the container with CAP_PERFMON, or with a profile that \
                 allows perf_event_open"
                    .to_owned()
            }
            (_, Subject::Thread(tid) | Subject::ThreadOnCpu { tid, .. }) => {
                format!("thread {tid} belongs to another user: run as that user, or grant CAP_PERFMON")
            }
            _ => "a security module of the kernel forbids it (lockdown, SELinux)".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::{Access, Breakpoint, KernelEvent, WatchLen};

    #[test]
    fn an_advice_names_the_obstacle() {
        let kernel = Attr::count(KernelEvent::Cycles);
        let user = kernel.user_only();
        let rights = |paranoid, filtered| Rights { paranoid: Some(paranoid), filtered };
        for (rights, attr, subject, expected) in [
            (rights(2, false), kernel, Subject::ThisThread, "paranoid is 2: set it to 1"),
            (rights(4, true), user, Subject::ThisThread, "paranoid is 4: set it to 2"),
            (rights(1, false), user, Subject::Cpu(0), "paranoid is 1: set it to 0"),
            (rights(-1, true), kernel, Subject::ThisThread, "seccomp"),
            (rights(2, false), user, Subject::Thread(7), "thread 7 belongs to another user"),
            (rights(2, false), user, Subject::ThisThread, "security module"),
            (Rights { paranoid: None, filtered: true }, kernel, Subject::Cpu(1), "seccomp"),
        ] {
            let advice = rights.advice(&attr, subject);
            assert!(advice.contains(expected), "{rights:?} {subject:?}: {advice}");
        }
    }

    #[test]
    fn an_old_kernel_is_named() {
        let watch = Breakpoint::watch(8, WatchLen::Eight, Access::Write).unwrap();
        let plain = Attr::breakpoint(watch);
        for (kernel, attr, needed) in [
            ((5, 18), plain.trapping(7).inherited_by_threads(), Some("5.19")),
            ((5, 12), plain.inherited_by_threads(), Some("5.13")),
            ((5, 12), plain.inherited(), None),
            // It refuses something else.
            ((5, 13), plain.inherited_by_threads(), None),
            ((6, 1), plain.trapping(7), None),
        ] {
            for errno in [libc::E2BIG, libc::EINVAL] {
                let source = io::Error::from_raw_os_error(errno);
                let refused = refusal(kernel, &attr, Subject::ThisThread, source);
                let is_told = |needed: &str| refused.to_string().ends_with(&format!("takes Linux {needed}"));
                assert!(needed.map_or(matches!(refused, Error::Kernel { .. }), is_told), "{refused}");
            }
        }
    }

    #[test]
    fn a_refusal_names_the_request() {
        let of = |counted, subject, errno| {
            let source = io::Error::from_raw_os_error(errno);
            refusal((6, 18), &Attr::count(counted), subject, source).to_string()
        };
        let here = Subject::ThisThread;
        for (message, expected) in [
            (of(KernelEvent::Cycles, here, libc::ENOENT), "no PMU counts cycles here"),
            (of(KernelEvent::L1Loads, here, libc::EOPNOTSUPP), "no PMU counts L1-dcache-loads here"),
            (of(KernelEvent::TaskClock, here, libc::ENOENT), "cannot open task-clock: "),
            (of(KernelEvent::Cycles, here, libc::EMFILE), "ulimit -n"),
            (of(KernelEvent::Cycles, here, libc::EPERM), "counting cycles is not allowed: "),
            (of(KernelEvent::Cycles, Subject::Thread(9), libc::ESRCH), "there is no thread 9"),
            (of(KernelEvent::Cycles, Subject::Cpu(99), libc::ENODEV), "there is no processor 99"),
            (of(KernelEvent::Cycles, here, libc::ENOSYS), "no perf_event_open"),
        ] {
            assert!(message.contains(expected), "{message}");
        }
    }
}
