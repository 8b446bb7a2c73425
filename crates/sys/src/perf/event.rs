//! An open event: opening it, switching it, reading its count.
//!
//! # Safety
//!
//! The unsafe code is `perf_event_open` with a pointer to a copy of the request, the descriptor
//! that it returns, which no other code owns, `uname` into a local, three `ioctl`s that take no
//! pointer, and one that takes a copy of a request.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::attr::{Attr, BREAKPOINT, Release, TRAPPING};
use super::error::Error;
use super::kernel_event::KernelEvent;
use super::refusal::refusal;
use super::subject::Subject;

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 1 << 3;
/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE`.
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;
/// `PERF_EVENT_IOC_SET_OUTPUT`.
const SET_OUTPUT: libc::Ioctl = 0x2405;
/// `PERF_EVENT_IOC_MODIFY_ATTRIBUTES`.
const MODIFY: libc::Ioctl = 0x4008_240b;

/// The count of an event, and the time for which it was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// The count itself, including inheriting threads.
    pub value: u64,
    /// How long the event was enabled, in nanoseconds, summed over all threads.
    pub enabled_ns: u64,
    /// The part of `enabled_ns` in which the event was counted. It is shorter where more events are
    /// enabled than the processor's unit has counters.
    pub running_ns: u64,
}

impl Reading {
    /// The count so far of the event behind a descriptor of [`open_here`].
    ///
    /// # Async-signal-safety
    ///
    /// One system call, nothing else.
    pub fn of(event: BorrowedFd<'_>) -> io::Result<Self> {
        let mut bytes = [0; 3 * size_of::<u64>()];
        // One read is all or nothing: of an event that the kernel gave up it is nothing.
        if rustix::io::read(event, &mut bytes)? != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let [value, enabled_ns, running_ns] =
            std::array::from_fn(|word| u64::from_ne_bytes(bytes.as_chunks().0[word]));
        Ok(Self { value, enabled_ns, running_ns })
    }

    /// The count scaled up to the whole enabled time; `None` if it was never counted.
    pub fn scaled(self) -> Option<u64> {
        if self.enabled_ns == self.running_ns {
            return Some(self.value);
        }
        let whole = u128::from(self.value) * u128::from(self.enabled_ns);
        let scaled = whole.checked_div(u128::from(self.running_ns))?;
        Some(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

/// The system call alone, which allocates nothing, also not for an error.
pub(super) fn open_raw(attr: &Attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    const NO_GROUP: libc::c_long = -1;
    if attr.is_trapping() && !can_traps_wait() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let (pid, cpu) = (libc::c_long::from(pid), libc::c_long::from(cpu));
    // A copy: a kernel whose structure is shorter writes how long it is.
    let mut raw = attr.raw;
    // SAFETY: `raw` lives longer than the call, and has the length in its `size`.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw mut raw, pid, cpu, NO_GROUP, CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Whether the trap of an event waits while a thread blocks SIGTRAP. Before Linux 5.19 the kernel
/// forces the signal, which ends the process, and a C library blocks all signals while it starts a
/// thread. (Commit 78ed93d72ded. A distribution may have backported it to an older kernel, which
/// cannot be detected.)
fn can_traps_wait() -> bool {
    kernel() >= TRAPPING.1
}

/// The version of the kernel, by its first two numbers; zeros if it does not say.
fn kernel() -> Release {
    // SAFETY: only bytes, which the kernel fills in.
    let mut names: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place.
    let known = unsafe { libc::uname(&raw mut names) } == 0;
    if known { version(names.release.iter().map(|&byte| byte as u8)) } else { Release::default() }
}

/// The refusal of a breakpoint with a signal, if this kernel is too old for any.
pub fn traps_refused() -> Option<Error> {
    let (what, release) = TRAPPING;
    (!can_traps_wait()).then_some(Error::TooOld { name: BREAKPOINT, what, release })
}

fn version(release: impl Iterator<Item = u8>) -> Release {
    let mut version = [0_u32; 2];
    let mut part = 0;
    for byte in release {
        match (byte, version.get_mut(part)) {
            (b'0'..=b'9', Some(number)) => {
                *number = number.saturating_mul(10).saturating_add(u32::from(byte - b'0'));
            }
            (b'.', Some(_)) => part += 1,
            _ => break,
        }
    }
    version.into()
}

/// Opens an event of the calling thread as a bare descriptor: for code that must not allocate.
///
/// # Errors
///
/// The kernel's error.
///
/// # Async-signal-safety
///
/// One system call, nothing else.
pub fn open_here(attr: &Attr) -> io::Result<OwnedFd> {
    const THIS_THREAD: i32 = 0;
    const ANY_CPU: i32 = -1;
    open_raw(attr, THIS_THREAD, ANY_CPU)
}

/// Whether this kernel supports [`Attr::apart`].
///
/// # Cost
///
/// A system call, and a descriptor for a moment.
pub fn keeps_apart() -> bool {
    open_here(&Attr::count(KernelEvent::Dummy).user_only().disabled().inherited().apart()).is_ok()
}

/// An open event; closed when dropped.
#[derive(Debug)]
pub struct OpenEvent {
    file: File,
    name: &'static str,
    user_only: bool,
}

impl OpenEvent {
    /// Opens an event.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] if it is not allowed, [`Error::NoPmu`] if nothing counts it,
    /// [`Error::NoSlot`] if no debug register is free for a breakpoint; otherwise the kernel's
    /// error.
    pub fn open(attr: &Attr, subject: Subject) -> Result<Self, Error> {
        let (pid, cpu) = subject.raw()?;
        let fd = open_raw(attr, pid, cpu).map_err(|source| refusal(kernel(), attr, subject, source))?;
        Ok(Self { file: File::from(fd), name: attr.name, user_only: attr.is_user_only() })
    }

    /// [`OpenEvent::open`], but in user mode only where no more is allowed.
    ///
    /// # Errors
    ///
    /// See [`OpenEvent::open`].
    pub fn open_allowed(attr: &Attr, subject: Subject) -> Result<Self, Error> {
        match Self::open(attr, subject) {
            Err(Error::Denied { .. }) if !attr.is_user_only() => Self::open(&attr.user_only(), subject),
            result => result,
        }
    }

    /// Whether the event does not count while the kernel runs.
    pub fn is_user_only(&self) -> bool {
        self.user_only
    }

    /// Counts from now on, in inheriting threads too.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn enable(&self) -> Result<(), Error> {
        self.control(ENABLE, 0, "enable")
    }

    /// Stops counting, in inheriting threads too.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn disable(&self) -> Result<(), Error> {
        self.control(DISABLE, 0, "disable")
    }

    /// Makes a breakpoint watch another address, in inheriting threads too, with the new data in
    /// its traps. It is enabled afterwards, unless `attr` is disabled. The count goes on.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], also if `attr` differs from the event's own request in anything else.
    pub fn retarget(&self, attr: &Attr) -> Result<(), Error> {
        let mut raw = attr.raw;
        // SAFETY: `raw` lives longer than the call, and has the length in its `size`.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), MODIFY, &raw mut raw) } {
            0 => Ok(()),
            _ => Err(self.failed("retarget", io::Error::last_os_error())),
        }
    }

    /// The count so far.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn read(&self) -> Result<Reading, Error> {
        Reading::of(self.as_fd()).map_err(|source| self.failed("read", source))
    }

    /// Records into the ring of another event.
    pub(super) fn record_into(&self, owner: &Self) -> Result<(), Error> {
        self.control(SET_OUTPUT, owner.file.as_raw_fd(), "give a ring to")
    }

    pub(super) fn failed(&self, what: &'static str, source: io::Error) -> Error {
        Error::Kernel { what, name: self.name, source }
    }

    fn control(&self, request: libc::Ioctl, number: i32, what: &'static str) -> Result<(), Error> {
        // SAFETY: these three take a number, not a pointer.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), request, number) } {
            0 => Ok(()),
            _ => Err(self.failed(what, io::Error::last_os_error())),
        }
    }
}

impl AsFd for OpenEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;
    use crate::perf::{Access, Breakpoint, WatchLen};

    #[test]
    fn releases_are_told_apart() {
        for (release, expected) in [
            ("6.18.44-fc", (6, 18)),
            ("5.19", (5, 19)),
            ("5.19-rc1", (5, 19)),
            ("10.0", (10, 0)),
            ("5.15.0-91-generic", (5, 15)),
            ("5.9.1", (5, 9)),
            ("", (0, 0)),
        ] {
            assert_eq!(version(release.bytes()), expected, "{release}");
        }
        assert!((5, 9) < TRAPPING.1 && TRAPPING.1 <= (10, 0));
    }

    /// Counts in the calling thread alone, so other tests may run.
    #[test]
    fn a_watched_variable_counts_accesses_while_on() {
        let mut value = 0_u64;
        let at = &raw mut value;
        let watch = Breakpoint::watch(at.addr(), WatchLen::Eight, Access::ReadWrite).unwrap();
        let event = match OpenEvent::open(&Attr::breakpoint(watch).disabled(), Subject::ThisThread) {
            Ok(event) => event,
            Err(error) => return dormouse_testkit::skip(format!("no breakpoints here: {error}")),
        };
        // SAFETY: `at` points to a local that lives on.
        let touch = || unsafe { black_box(at).write_volatile(1) };
        touch();
        event.enable().unwrap();
        touch();
        touch();
        event.disable().unwrap();
        touch();
        assert_eq!(event.read().unwrap().value, 2);
    }

    #[test]
    fn the_count_of_an_ended_inheritor_stays() {
        let clock = Attr::count(KernelEvent::TaskClock).user_only().inherited();
        let event = match OpenEvent::open(&clock, Subject::ThisThread) {
            Ok(event) => event,
            Err(error) => return dormouse_testkit::skip(format!("no task clock here: {error}")),
        };
        let begun = event.read().unwrap();
        let cpu_ns = || crate::clock::ask(libc::CLOCK_THREAD_CPUTIME_ID).unwrap();
        std::thread::spawn(move || while cpu_ns() < 2_000_000 {}).join().unwrap();
        let reading = event.read().unwrap();
        // The two clocks differ a little.
        assert!(reading.value - begun.value > 1_000_000 && reading.enabled_ns > 1_000_000, "{reading:?}");
        assert_eq!(reading.scaled(), Some(reading.value));
    }

    #[test]
    fn a_count_is_scaled_by_its_running_time() {
        let reading = |value, enabled_ns, running_ns| Reading { value, enabled_ns, running_ns }.scaled();
        assert_eq!(reading(10, 100, 100), Some(10));
        assert_eq!(reading(10, 100, 25), Some(40));
        assert_eq!(reading(0, 100, 0), None, "never counted is not nothing happened");
        assert_eq!(reading(u64::MAX, u64::MAX, 1), Some(u64::MAX));
    }

    #[test]
    fn numbers_with_a_special_meaning_are_refused() {
        for tid in [0, 1 << 31, u32::MAX] {
            let refused = OpenEvent::open(&Attr::count(KernelEvent::TaskClock), Subject::Thread(tid));
            assert!(matches!(refused, Err(Error::NoSuchThread { tid: t }) if t == tid), "{refused:?}");
        }
        let refused = OpenEvent::open(&Attr::count(KernelEvent::TaskClock), Subject::Cpu(u32::MAX));
        assert!(matches!(refused, Err(Error::NoSuchCpu(u32::MAX))), "{refused:?}");
    }

    #[test]
    fn a_breakpoint_too_many_is_refused() {
        static WATCHED: [u64; 8] = [0; 8];
        let open = |word: &u64| {
            let addr = std::ptr::from_ref(word).addr();
            let watch = Breakpoint::watch(addr, WatchLen::Eight, Access::Write)?;
            OpenEvent::open(&Attr::breakpoint(watch), Subject::ThisThread)
        };
        let opened: Vec<_> = WATCHED.iter().map(open).collect();
        match opened.iter().find_map(|result| result.as_ref().err()) {
            Some(Error::NoSlot { .. }) => {}
            Some(other) => dormouse_testkit::skip(format!("no breakpoints here: {other}")),
            None if crate::arch::WATCH_REGISTERS < 8 => panic!("more breakpoints than registers"),
            None => dormouse_testkit::skip("this processor has more than 8 registers"),
        }
    }

    /// Tests as a user without rights, who may only count user mode. In a child, because a process
    /// cannot take rights back.
    #[test]
    fn without_rights_user_mode_is_counted() {
        dormouse_testkit::in_child(without_rights);
    }

    fn without_rights() {
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: numbers only.
        unsafe { libc::setuid(NOBODY) };
        let clock = Attr::count(KernelEvent::TaskClock);
        let message = match OpenEvent::open(&clock, Subject::ThisThread) {
            Err(Error::Denied { .. })
                if OpenEvent::open(&clock.user_only(), Subject::ThisThread).is_err() =>
            {
                return dormouse_testkit::skip("not even user mode may be counted here");
            }
            Err(error @ Error::Denied { .. }) => error.to_string(),
            other => {
                return dormouse_testkit::skip(format!("everybody may count the kernel here: {other:?}"));
            }
        };
        assert!(
            message.contains("task-clock") && message.contains("kernel.perf_event_paranoid"),
            "{message}"
        );
        let allowed = OpenEvent::open_allowed(&clock, Subject::ThisThread).unwrap();
        assert!(allowed.is_user_only());
    }
}
