//! The identity of this process and thread, for all crates.
//!
//! | the question | the answer | a fork child that has another answer |
//! |---|---|---|
//! | which number has the kernel given it? | [`pid`], [`tid`] | each, but for a child in a PID namespace of its own |
//! | is this the process that made a thing? | [`number`], [`id`] | each, from its first instruction on |
//! | is this a child that has begun again? | [`forks`] | those of the C library's `fork`, once its handlers run |
//! | do leases of all copies still count? | [`crate::rendezvous::forks`] | those of the C library's `fork` |
//!
//! The handlers of `pthread_atfork` do not run after `_Fork` or a bare `clone`, and a signal may
//! come before them where they do. So a thing that a child must not touch at all, such as a mapping
//! that it does not inherit, is stored with its process's [`number`]. State that a child only has
//! to reset belongs to a phase of [`super::fork`].
//!
//! # Async-signal-safety
//!
//! All functions are signal-safe.
//!
//! # References
//!
//! `madvise(2)`, `MADV_WIPEONFORK` (Linux 4.14): memory that the kernel clears in a child.
//!
//! # Safety
//!
//! The unsafe code maps one page that is never unmapped, and reads its first word.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::num::NonZeroU64;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The word that the kernel empties, in a page of its own; null before the first call.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The last number given. A child inherits it and counts on.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The handlers of forks that have run in this process and its forebears.
static FORKS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The thread's id when the fork began that it is in the middle of; 0 outside of forks.
    static FORKER: Cell<u32> = const { Cell::new(0) };
}

/// The process id.
pub fn pid() -> u32 {
    rustix::process::getpid().as_raw_pid().cast_unsigned()
}

/// The thread id of the calling thread.
pub fn tid() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

/// The number of forks between this process and its first ancestor with this copy of dormouse. It
/// identifies children of the C library's `fork` as [`number`] does, for one relaxed load.
#[inline]
pub fn forks() -> u32 {
    // It changes while the process has one thread, which has just been made.
    FORKS.load(Ordering::Relaxed)
}

/// In a fork child, before everything else there.
pub(super) fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The calling thread's id as it was when the fork began that the thread is in the middle of; 0
/// outside of forks. In the child that is the id of the parent's thread.
pub(super) fn forker() -> u32 {
    FORKER.get()
}

/// Sets [`forker`], and gives the value before.
pub(super) fn set_forker(tid: u32) -> u32 {
    FORKER.replace(tid)
}

/// [`number`], or, where the kernel cannot detect a child that no handler has prepared, a number
/// made from the process id.
pub fn id() -> u64 {
    number().map_or_else(|| u64::MAX - u64::from(pid()), NonZeroU64::get)
}

/// The number of this process among its ancestors; `None` where the kernel cannot clear memory in a
/// child.
#[inline]
pub fn number() -> Option<NonZeroU64> {
    // Pairs with the exchange in `make`: the page is mapped.
    let word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        return make().and_then(numbered);
    }
    // SAFETY: a word that `make` has published is never unmapped.
    let word = unsafe { &*word };
    NonZeroU64::new(word.load(Ordering::Relaxed)).or_else(|| numbered(word))
}

/// The number in `word`; a new one if it has none yet.
#[cold]
fn numbered(word: &AtomicU64) -> Option<NonZeroU64> {
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => NonZeroU64::new(next),
        Err(there) => NonZeroU64::new(there),
    }
}

#[cold]
fn make() -> Option<&'static AtomicU64> {
    let size = rustix::param::page_size();
    // SAFETY: a new mapping, wherever the kernel likes.
    let page = unsafe {
        mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    let page = page.ok()?;
    // SAFETY: our own page. (Miri has no forks, and no such advice.)
    let wiped = cfg!(miri) || unsafe { madvise(page, size, Advice::LinuxWipeOnFork) }.is_ok();
    let word = page.cast::<AtomicU64>();
    let published = if wiped {
        // Pairs with the load in `number`, and with itself on another thread.
        WORD.compare_exchange(ptr::null_mut(), word, Ordering::AcqRel, Ordering::Acquire)
    } else {
        Err(ptr::null_mut())
    };
    let word = published.map_or_else(
        |other| {
            // SAFETY: ours, and no other thread has seen it.
            let _freed = unsafe { munmap(page, size) };
            other
        },
        |_| word,
    );
    // SAFETY: null, or published and so never unmapped.
    unsafe { word.as_ref() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_a_process_see_one_number() {
        let Some(own) = number() else { return dormouse_testkit::skip("no MADV_WIPEONFORK") };
        assert_eq!(std::thread::spawn(number).join().unwrap(), Some(own));
        assert_eq!(number(), Some(own));
    }

    #[test]
    fn a_child_without_handlers_has_another_number() {
        let Some(own) = number() else { return dormouse_testkit::skip("no MADV_WIPEONFORK") };
        // SAFETY: a fork without handlers; the child makes system calls and reads atomics until its
        // end.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let first = number();
            let right = first.is_some() && first != Some(own) && number() == first;
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        assert!(dormouse_testkit::join(child as libc::pid_t).success());
        assert_eq!(number(), Some(own));
    }
}
