//! An open event: the system call, the switch, the count.
//!
//! # Safety
//!
//! The unsafe code is `perf_event_open` with a pointer to a copy of the request, the descriptor that it returns,
//! which nobody else owns, and two `ioctl`s that take no pointer.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{Attr, Error};

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 1 << 3;
/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE`.
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;

/// Whom to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The calling thread, wherever it runs.
    ThisThread,
    /// The thread of this id, wherever it runs.
    Thread(u32),
    /// The thread of this id while it runs on this processor.
    ThreadOnCpu {
        /// The thread.
        tid: u32,
        /// The processor.
        cpu: u32,
    },
    /// Whatever runs on this processor.
    Cpu(u32),
}

impl Subject {
    /// `pid` and `cpu` of the system call, in which 0 and -1 have meanings of their own.
    fn raw(self) -> Result<(i32, i32), Error> {
        let thread = |tid| i32::try_from(tid).ok().filter(|&tid| tid > 0).ok_or(Error::NoSuchThread { tid });
        let processor = |cpu| i32::try_from(cpu).map_err(|_| Error::NoSuchCpu { cpu });
        Ok(match self {
            Self::ThisThread => (0, -1),
            Self::Thread(tid) => (thread(tid)?, -1),
            Self::ThreadOnCpu { tid, cpu } => (thread(tid)?, processor(cpu)?),
            Self::Cpu(cpu) => (-1, processor(cpu)?),
        })
    }

    pub(super) fn has_cpu(self) -> bool {
        matches!(self, Self::ThreadOnCpu { .. } | Self::Cpu(_))
    }
}

/// What an event has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// The count itself, inheritors included.
    pub value: u64,
    /// How long the event was on, in nanoseconds, of all threads together.
    pub enabled_ns: u64,
    /// How long of that it was counted: less where more events want the processor's unit than fit in it.
    pub running_ns: u64,
}

impl Reading {
    /// What the event behind a descriptor of [`open_here`] has counted so far.
    ///
    /// # Async-signal-safety
    ///
    /// A system call alone.
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

    /// What would have been counted had the event been in its unit all the time; none if it never was.
    pub fn scaled(self) -> Option<u64> {
        if self.enabled_ns == self.running_ns {
            return Some(self.value);
        }
        let whole = u128::from(self.value) * u128::from(self.enabled_ns);
        let scaled = whole.checked_div(u128::from(self.running_ns))?;
        Some(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

/// The system call alone: what the kernel answers, and nothing allocated for it.
pub(super) fn open_raw(attr: &Attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    const NO_GROUP: libc::c_long = -1;
    let (pid, cpu) = (libc::c_long::from(pid), libc::c_long::from(cpu));
    // A copy: a kernel whose structure is shorter writes how long it is.
    let mut raw = attr.raw;
    // SAFETY: `raw` lives longer than the call, and is as long as its `size` says.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw mut raw, pid, cpu, NO_GROUP, CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// An event of the calling thread, as a bare descriptor: for who must not allocate, also not for an error.
///
/// # Errors
///
/// What the kernel says.
///
/// # Async-signal-safety
///
/// A system call alone.
pub fn open_here(attr: &Attr) -> io::Result<OwnedFd> {
    const THIS_THREAD: i32 = 0;
    const ANY_CPU: i32 = -1;
    open_raw(attr, THIS_THREAD, ANY_CPU)
}

/// An open event; closed when dropped.
#[derive(Debug)]
pub struct Event {
    file: File,
    name: &'static str,
    user_only: bool,
}

impl Event {
    /// Opens an event.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] where it is not allowed, [`Error::NoPmu`] where nothing counts it, [`Error::NoSlot`] where
    /// a breakpoint finds no register; else what was wrong.
    pub fn open(attr: &Attr, subject: Subject) -> Result<Self, Error> {
        let (pid, cpu) = subject.raw()?;
        let fd = open_raw(attr, pid, cpu).map_err(|source| Error::of_open(attr, subject, source))?;
        Ok(Self { file: File::from(fd), name: attr.name, user_only: attr.is_user_only() })
    }

    /// [`Event::open`], in user mode alone where no more is allowed.
    ///
    /// # Errors
    ///
    /// As [`Event::open`].
    pub fn open_allowed(attr: &Attr, subject: Subject) -> Result<Self, Error> {
        match Self::open(attr, subject) {
            Err(Error::Denied { .. }) if !attr.is_user_only() => Self::open(&attr.user_only(), subject),
            result => result,
        }
    }

    /// Whether it does not count while the kernel runs.
    pub fn is_user_only(&self) -> bool {
        self.user_only
    }

    /// Counts from now on, for inheritors too.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn enable(&self) -> Result<(), Error> {
        self.control(ENABLE, "enable")
    }

    /// Does not count any more, for inheritors neither.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn disable(&self) -> Result<(), Error> {
        self.control(DISABLE, "disable")
    }

    /// What was counted so far.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn read(&self) -> Result<Reading, Error> {
        Reading::of(self.as_fd()).map_err(|source| self.failed("read", source))
    }

    pub(super) fn failed(&self, what: &'static str, source: io::Error) -> Error {
        Error::Kernel { what, name: self.name, source }
    }

    fn control(&self, request: libc::Ioctl, what: &'static str) -> Result<(), Error> {
        // SAFETY: these two take a number, not a pointer.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), request, 0) } {
            0 => Ok(()),
            _ => Err(self.failed(what, io::Error::last_os_error())),
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::process::Command;

    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::perf::{Access, Breakpoint, Counted, WatchLen};

    /// Counts in the calling thread alone, so other tests may run.
    #[test]
    fn a_watched_variable_counts_its_reads_and_writes_while_it_is_on() {
        let mut value = 0_u64;
        let at = &raw mut value;
        let watch = Breakpoint::watch(at.addr(), WatchLen::Eight, Access::ReadWrite).unwrap();
        let event = match Event::open(&Attr::breakpoint(watch).disabled(), Subject::ThisThread) {
            Ok(event) => event,
            Err(error) => return println!("1 skipped: no breakpoints here: {error}"),
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
    fn what_an_inheriting_thread_does_is_counted_after_its_end_too() {
        let clock = Attr::count(Counted::TaskClock).user_only().inherited();
        let event = match Event::open(&clock, Subject::ThisThread) {
            Ok(event) => event,
            Err(error) => return println!("1 skipped: no task clock here: {error}"),
        };
        let begun = event.read().unwrap();
        std::thread::spawn(|| while clock_gettime(ClockId::ThreadCPUTime).tv_nsec < 2_000_000 {})
            .join()
            .unwrap();
        let reading = event.read().unwrap();
        // The two clocks differ a little.
        assert!(reading.value - begun.value > 1_000_000 && reading.enabled_ns > 1_000_000, "{reading:?}");
        assert_eq!(reading.scaled(), Some(reading.value));
    }

    #[test]
    fn a_count_is_scaled_by_the_time_that_it_was_counted() {
        let reading = |value, enabled_ns, running_ns| Reading { value, enabled_ns, running_ns }.scaled();
        assert_eq!(reading(10, 100, 100), Some(10));
        assert_eq!(reading(10, 100, 25), Some(40));
        assert_eq!(reading(0, 100, 0), None, "never counted is not nothing happened");
        assert_eq!(reading(u64::MAX, u64::MAX, 1), Some(u64::MAX));
    }

    #[test]
    fn numbers_that_mean_something_else_to_the_kernel_never_get_there() {
        for tid in [0, 1 << 31, u32::MAX] {
            let refused = Event::open(&Attr::count(Counted::TaskClock), Subject::Thread(tid));
            assert!(matches!(refused, Err(Error::NoSuchThread { tid: t }) if t == tid), "{refused:?}");
        }
        let refused = Event::open(&Attr::count(Counted::TaskClock), Subject::Cpu(u32::MAX));
        assert!(matches!(refused, Err(Error::NoSuchCpu { cpu: u32::MAX })), "{refused:?}");
    }

    #[test]
    fn a_fifth_breakpoint_of_a_thread_is_refused_for_want_of_a_register() {
        static WATCHED: [u64; 8] = [0; 8];
        let open = |word: &u64| {
            let addr = std::ptr::from_ref(word).addr();
            let watch = Breakpoint::watch(addr, WatchLen::Eight, Access::Write)?;
            Event::open(&Attr::breakpoint(watch), Subject::ThisThread)
        };
        let opened: Vec<_> = WATCHED.iter().map(open).collect();
        match opened.iter().find_map(|result| result.as_ref().err()) {
            Some(Error::NoSlot { .. }) => {}
            Some(other) => println!("1 skipped: no breakpoints here: {other}"),
            None if cfg!(target_arch = "x86_64") => panic!("more breakpoints than registers"),
            None => println!("1 skipped: this processor has more than 8 registers"),
        }
    }

    /// As a user without rights, who sees user mode only. In a child: who gives up rights has none any more.
    #[test]
    fn who_may_not_count_the_kernel_is_told_the_setting_and_counts_user_mode() {
        const NAME: &str =
            "perf::event::tests::who_may_not_count_the_kernel_is_told_the_setting_and_counts_user_mode";
        const MARK: &str = "DORMOUSE_TEST_CHILD";
        if std::env::var_os(MARK).is_some_and(|test| test == NAME) {
            return without_rights();
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture", "--test-threads=1"])
            .env(MARK, NAME)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{}", said.lines().find(|line| line.contains("skipped: ")).unwrap_or_default());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
    }

    fn without_rights() {
        const NOBODY: libc::uid_t = 65534;
        // SAFETY: numbers only.
        unsafe { libc::setuid(NOBODY) };
        let clock = Attr::count(Counted::TaskClock);
        let message = match Event::open(&clock, Subject::ThisThread) {
            Err(Error::Denied { .. }) if Event::open(&clock.user_only(), Subject::ThisThread).is_err() => {
                return println!("1 skipped: not even user mode may be counted here");
            }
            Err(error @ Error::Denied { .. }) => error.to_string(),
            other => return println!("1 skipped: everybody may count the kernel here: {other:?}"),
        };
        assert!(
            message.contains("task-clock") && message.contains("kernel.perf_event_paranoid"),
            "{message}"
        );
        let allowed = Event::open_allowed(&clock, Subject::ThisThread).unwrap();
        assert!(allowed.is_user_only());
    }
}
