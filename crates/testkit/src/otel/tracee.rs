//! A thread of another process, stopped by ptrace(2), and the memory of that process.
//!
//! # Safety
//!
//! The unsafe code is system calls with buffers of this process for their results. Types that are
//! read consist of integers.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// A thread that is traced until this is dropped.
#[derive(Debug)]
pub struct Tracee {
    pub(super) pid: u32,
    tid: libc::pid_t,
    /// Where its thread-locals are, while it is stopped.
    pub(super) thread_pointer: u64,
    is_stopped: bool,
}

impl Tracee {
    /// Traces a thread, which runs on. Must be used and dropped on one thread.
    pub fn new(pid: u32, tid: u32) -> Self {
        let tid = libc::pid_t::try_from(tid).unwrap();
        // SAFETY: takes numbers.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0, 0) };
        assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
        Self { pid, tid, thread_pointer: 0, is_stopped: false }
    }

    /// Stops the thread while `look` reads it.
    pub fn stopped<T>(&mut self, look: impl FnOnce(&Self) -> T) -> T {
        self.stop();
        let seen = look(self);
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_CONT, self.tid, 0, 0) }, 0);
        self.is_stopped = false;
        seen
    }

    fn stop(&mut self) {
        let mut status = 0;
        let mut registers = MaybeUninit::<libc::user_regs_struct>::zeroed();
        // SAFETY: the places are valid, and registers are integers.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, self.tid, 0, 0), 0);
            assert_eq!(libc::waitpid(self.tid, &raw mut status, libc::__WALL), self.tid);
            assert!(libc::WIFSTOPPED(status), "{status:#x}");
            let read = libc::ptrace(libc::PTRACE_GETREGS, self.tid, 0, registers.as_mut_ptr());
            assert_eq!(read, 0, "{}", std::io::Error::last_os_error());
            self.is_stopped = true;
            self.thread_pointer = registers.assume_init().fs_base;
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.is_stopped {
            self.stop();
        }
        // SAFETY: takes numbers.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, 0, 0) };
    }
}

/// Some numbers from a process's memory; `None` if it cannot be read.
pub fn memory<T: Copy, const N: usize>(pid: u32, address: u64) -> Option<[T; N]> {
    let mut numbers = MaybeUninit::<[T; N]>::uninit();
    let whole = copy(pid, address, numbers.as_mut_ptr().cast(), size_of::<[T; N]>());
    // SAFETY: all of it was written, and integers have any bits.
    whole.then(|| unsafe { numbers.assume_init() })
}

pub(super) fn bytes_of(pid: u32, address: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    copy(pid, address, bytes.as_mut_ptr(), length).then_some(bytes)
}

fn copy(pid: u32, address: u64, to: *mut u8, length: usize) -> bool {
    let own = libc::iovec { iov_base: to.cast(), iov_len: length };
    let other = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(address as usize), iov_len: length };
    let pid = libc::pid_t::try_from(pid).unwrap();
    // SAFETY: `to` has room for `length` bytes; the kernel checks the other side.
    let copied = unsafe { libc::process_vm_readv(pid, &raw const own, 1, &raw const other, 1, 0) };
    usize::try_from(copied) == Ok(length)
}
