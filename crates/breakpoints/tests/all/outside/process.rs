//! A process to watch: a fork of the test, which knows nothing of it but some shared memory.

use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};

use dormouse_testkit::eventually;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Memory of both processes.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Set by the process: it is where the test wants it.
    pub(crate) ready: AtomicU32,
    /// Set by the test.
    pub(crate) go: AtomicU32,
    /// Set by the process: it has made all its writes.
    pub(crate) done: AtomicU32,
    /// The writes that it has made.
    pub(crate) writes: AtomicU64,
}

impl Shared {
    pub(crate) fn new() -> &'static Self {
        let (protection, len) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Self>());
        // SAFETY: a new mapping, of zeros, which are a `Shared`. It stays.
        unsafe { &*mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::SHARED).unwrap().cast() }
    }

    pub(crate) fn await_ready(&self) {
        eventually(|| self.ready.load(SeqCst) > 0);
    }

    pub(crate) fn await_go(&self) {
        eventually(|| self.go.load(SeqCst) > 0);
    }
}

/// A forked process, without a handler for any signal; killed when dropped.
pub(crate) struct Process(Pid);

impl Process {
    /// Runs `body` in a fork, which ends with code 0 unless it panics.
    pub(crate) fn start(body: impl FnOnce()) -> Self {
        // SAFETY: a fork, which leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let ended = catch_unwind(AssertUnwindSafe(body));
            // SAFETY: ends the child without the exit handlers of its parent.
            unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) };
        }
        Self(Pid::from_raw(child).unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.as_raw_pid().cast_unsigned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).unwrap();
    }

    pub(crate) fn threads(&self) -> Vec<u32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    pub(crate) fn wait(self) -> ExitStatus {
        let (_, status) = waitpid(Some(self.0), WaitOptions::empty()).unwrap().unwrap();
        std::mem::forget(self);
        ExitStatus::from_raw(status.as_raw())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::KILL);
        let _ = waitpid(Some(self.0), WaitOptions::empty());
    }
}
