//! Which process this is: a number that is another one in every fork child, whatever made it.
//!
//! Handlers of `pthread_atfork` do not run after `_Fork` or a bare `clone`, and where they do, a signal may
//! come before them. Memory that the kernel empties in the child (`MADV_WIPEONFORK`, Linux 4.14) is right
//! from the child's first instruction on. It is for what a child must not touch at all, as a mapping that
//! it does not inherit; what merely has to begin again waits for [`crate::thread::on_fork_child`].
//!
//! # Async-signal-safety
//!
//! [`number`] is signal-safe.
//!
//! # Safety
//!
//! The unsafe code makes one page that is never unmapped, and looks at its first word.
#![allow(unsafe_code)]

use std::num::NonZeroU64;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The word that the kernel empties, in a page of its own; null before the first call.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The last number given. A child inherits it and counts on.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The number of this process among its forebears; `None` where the kernel cannot empty memory in a child.
#[inline]
pub fn number() -> Option<NonZeroU64> {
    // Pairs with the exchange in `make`.
    let word = WORD.load(Ordering::Acquire);
    if word.is_null() {
        return make().and_then(numbered);
    }
    // SAFETY: what `make` has published is never unmapped.
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
    // SAFETY: our own page.
    let wiped = unsafe { madvise(page, size, Advice::LinuxWipeOnFork) }.is_ok();
    let word = page.cast::<AtomicU64>();
    let published = if wiped {
        WORD.compare_exchange(ptr::null_mut(), word, Ordering::AcqRel, Ordering::Acquire)
    } else {
        Err(ptr::null_mut())
    };
    let word = published.map_or_else(
        |other| {
            // SAFETY: ours, and nobody has seen it.
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
    fn the_number_stays_the_same_in_a_process_and_on_all_its_threads() {
        let Some(own) = number() else { return println!("1 skipped: no MADV_WIPEONFORK") };
        assert_eq!(std::thread::spawn(number).join().unwrap(), Some(own));
        assert_eq!(number(), Some(own));
    }

    #[test]
    fn a_child_that_no_handler_has_prepared_has_another_number_and_keeps_it() {
        let Some(own) = number() else { return println!("1 skipped: no MADV_WIPEONFORK") };
        // SAFETY: a fork without handlers; the child makes system calls and reads atomics until its end.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let first = number();
            let right = first.is_some() && first != Some(own) && number() == first;
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place.
        let waited = unsafe { libc::waitpid(child as libc::pid_t, &raw mut status, 0) };
        assert_eq!((i64::from(waited), status), (child, 0));
        assert_eq!(number(), Some(own));
    }
}
