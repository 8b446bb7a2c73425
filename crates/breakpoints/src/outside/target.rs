//! The process that is watched: its threads, its memory, its end. It is only read.
//!
//! # References
//!
//! `pidfd_open(2)`, `proc_pid_task(5)`, `proc_pid_mem(5)`.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use dormouse_sys::perf::Error as Refusal;
use dormouse_sys::process::threads::{is_alive_in, list_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::Error;

/// How a target, and so its watches, ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetEnd {
    /// The process ended.
    Exit,
    /// It executed another program: the addresses mean something else now. The kernel removed the
    /// breakpoints at that moment.
    Exec,
}

/// A process, by a descriptor: its number may be given to another one meanwhile.
#[derive(Debug)]
pub(super) struct TargetProcess {
    pid: u32,
    process: OwnedFd,
    /// The memory of the program that ran at the opening. Not everybody who may watch may read it.
    memory: Option<File>,
}

impl TargetProcess {
    pub(super) fn open(pid: u32) -> Result<Self, Error> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::NoProcess { pid })?;
        let process = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => Error::NoProcess { pid },
            errno => Error::Process { pid, source: errno.into() },
        })?;
        let mut target = Self { pid, process, memory: None };
        target.memory = target.open_memory().ok();
        // An answer shows that the number was the process's until now, so the memory is its, too.
        if target.has_exited() { Err(Error::NoProcess { pid }) } else { Ok(target) }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The threads that are listed now, and whether the list is complete.
    pub(super) fn tids(&self) -> Result<(Vec<u32>, bool), Error> {
        let mut tids = Vec::new();
        let pid = self.pid;
        let is_complete = list_of(pid, &mut tids).map_err(|source| {
            if self.has_exited() { Error::NoProcess { pid } } else { Error::Process { pid, source } }
        })?;
        Ok((tids, is_complete))
    }

    /// Whether this is a thread of the process, which may have begun to end.
    pub(super) fn has(&self, tid: u32) -> bool {
        is_alive_in(self.pid, tid)
    }

    /// The name of a thread; empty where it has ended.
    pub(super) fn name(&self, tid: u32) -> String {
        let name = fs::read(format!("/proc/{}/task/{tid}/comm", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
    }

    /// The kernel's refusal of a thread.
    pub(super) fn refused(&self, tid: u32, source: Refusal) -> Error {
        Error::Thread { tid, thread: self.name(tid), source }
    }

    /// The value of `len` bytes (at most 8) at `addr`; `None` for memory that is not mapped or not
    /// readable.
    pub(super) fn value(&self, addr: usize, len: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let part = bytes.get_mut(..len)?;
        self.memory.as_ref()?.read_exact_at(part, addr as u64).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Whether it is over, and why. An exec is not noticed where the memory may not be read.
    pub(super) fn end(&self) -> Option<TargetEnd> {
        if self.has_exited() {
            return Some(TargetEnd::Exit);
        }
        if !is_gone(self.memory.as_ref()?) {
            return None;
        }
        // A process that exits releases its memory a little before its exit is visible; one that
        // executes another program has new memory by then.
        match self.open_memory() {
            Ok(new) if is_gone(&new) => None,
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => None,
            _ => Some(TargetEnd::Exec),
        }
    }

    fn has_exited(&self) -> bool {
        let mut asked = [PollFd::new(&self.process, PollFlags::IN)];
        // After an error the next pass asks again.
        matches!(poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(ready) if ready > 0)
    }

    fn open_memory(&self) -> io::Result<File> {
        File::open(format!("/proc/{}/mem", self.pid))
    }
}

/// Whether no program has this memory any more: a read has no error then, and no byte.
fn is_gone(memory: &File) -> bool {
    matches!(memory.read_at(&mut [0], 0), Ok(0))
}
