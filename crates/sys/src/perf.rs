//! Events of the kernel: `perf_event_open` and what is done with what it gives.
//!
//! Raw numbers are made from types that cannot be confused, so that what the kernel answers with a bare
//! `EINVAL` does not compile.
//!
//! # Safety
//!
//! The unsafe code is one system call with a pointer to an [`Attr`], which the kernel only reads, `size`
//! bytes of it, and the descriptor that it returns, which nobody else owns.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// `PERF_TYPE_BREAKPOINT` of `linux/perf_event.h`.
const TYPE_BREAKPOINT: u32 = 5;
/// `HW_BREAKPOINT_RW` and `HW_BREAKPOINT_X` of `linux/hw_breakpoint.h`.
const READ_WRITE: u32 = 3;
const EXECUTE: u32 = 4;
/// Bits of the flags word of `struct perf_event_attr`.
const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 1 << 3;
/// `PERF_EVENT_IOC_ENABLE` and `PERF_EVENT_IOC_DISABLE`.
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;

/// What to count: `struct perf_event_attr` as of Linux 5.13.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    bp_addr: u64,
    bp_len: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved_2: u16,
    aux_sample_size: u32,
    reserved_3: u32,
    sig_data: u64,
}

const _: () = {
    assert!(size_of::<Attr>() == 128);
    assert!(std::mem::offset_of!(Attr, flags) == 40);
    assert!(std::mem::offset_of!(Attr, bp_type) == 52);
    assert!(std::mem::offset_of!(Attr, sig_data) == 120);
};

/// Whom to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// The calling thread, wherever it runs.
    ThisThread,
    /// The thread of this id, wherever it runs.
    Thread(u32),
    /// The thread of this id while it runs on this processor.
    ThreadOnCpu(u32, u32),
    /// Whatever runs on this processor.
    Cpu(u32),
}

impl Attr {
    /// Reads and writes of `len` bytes (1, 2, 4 or 8, aligned) by user code.
    pub fn watch(addr: u64, len: u64) -> Self {
        Self::breakpoint(READ_WRITE, addr, len)
    }

    /// Executions of the instruction at `addr` by user code.
    pub fn stop_at(addr: u64) -> Self {
        // The one length that the kernel takes for instructions.
        Self::breakpoint(EXECUTE, addr, size_of::<libc::c_long>() as u64)
    }

    fn breakpoint(bp_type: u32, bp_addr: u64, bp_len: u64) -> Self {
        Self {
            kind: TYPE_BREAKPOINT,
            size: size_of::<Self>() as u32,
            flags: EXCLUDE_KERNEL,
            bp_type,
            bp_addr,
            bp_len,
            ..Self::default()
        }
    }

    /// Not counting until [`Event::enable`].
    #[must_use]
    pub fn disabled(self) -> Self {
        Self { flags: self.flags | DISABLED, ..self }
    }

    /// Also in the threads and processes that the subject starts from now on.
    #[must_use]
    pub fn inherited(self) -> Self {
        Self { flags: self.flags | INHERIT, ..self }
    }
}

impl Subject {
    /// `pid` and `cpu` of the system call.
    fn raw(self) -> (libc::c_long, libc::c_long) {
        match self {
            Self::ThisThread => (0, -1),
            Self::Thread(tid) => (libc::c_long::from(tid), -1),
            Self::ThreadOnCpu(tid, cpu) => (libc::c_long::from(tid), libc::c_long::from(cpu)),
            Self::Cpu(cpu) => (-1, libc::c_long::from(cpu)),
        }
    }
}

/// An open event; closed when dropped.
#[derive(Debug)]
pub struct Event {
    file: File,
}

impl Event {
    /// Opens an event.
    ///
    /// # Errors
    ///
    /// What the kernel says: `EACCES` or `EPERM` where it is not allowed (`kernel.perf_event_paranoid`,
    /// seccomp), `ENOSPC` when a breakpoint finds no register, `ENOSYS` in a kernel without events.
    pub fn open(attr: &Attr, subject: Subject) -> io::Result<Self> {
        const NO_GROUP: libc::c_long = -1;
        let (pid, cpu) = subject.raw();
        let attr: *const Attr = attr;
        // SAFETY: `attr` points to as many bytes as its `size` says, for the time of the call.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr, pid, cpu, NO_GROUP, CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, so nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        Ok(Self { file: File::from(fd) })
    }

    /// Counts from now on.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn enable(&self) -> io::Result<()> {
        self.control(ENABLE)
    }

    /// Does not count any more.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn disable(&self) -> io::Result<()> {
        self.control(DISABLE)
    }

    /// What was counted, inheritors included.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn count(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        (&self.file).read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn control(&self, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: these two take a number, not a pointer.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), request, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// Counts in the calling thread alone, so other tests may run.
    #[test]
    fn a_watched_variable_counts_its_reads_and_writes_while_it_is_on() {
        let mut value = 0_u64;
        let at = &raw mut value;
        let event = match Event::open(&Attr::watch(at as u64, 8).disabled(), Subject::ThisThread) {
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
        assert_eq!(event.count().unwrap(), 2);
    }

    #[test]
    fn a_refusal_is_the_kernels_own() {
        let unaligned = Attr::watch(1, 8);
        assert!(Event::open(&unaligned, Subject::ThisThread).is_err());
    }
}
