//! The end of a thread, and the child of a fork; both give blocks back.
//!
//! The destructor of a pthread key is called at a thread's end. (A Rust thread-local with a
//! destructor would allocate to register it, on the record path.)
//!
//! # Safety
//!
//! The unsafe code is the pthread key, whose value is null or an element of the table of blocks,
//! and the table of hooks.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::block::{self, ThreadBlock};
use crate::loader;
use crate::process::fork::{Phase, Reset};

static THREADS: Reset = Reset::new(Phase::Threads, block::begin_in_child);

/// Functions to call at each thread's end. They stay.
static AT_EXIT: [AtomicPtr<()>; 8] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 8];

/// Sets `hook` to be called at the end of every thread that has a block, on that thread, after the
/// destructors of its Rust thread-locals. [`current`] no longer finds the block then, but the block
/// is not given back yet, so a hook may still write to it. Hooks run in the order in which they
/// were added. Returns false if the table of hooks is full.
pub fn on_thread_exit(hook: fn()) -> bool {
    let hook = hook as *mut ();
    AT_EXIT.iter().any(|place| {
        // Pairs with the load in `thread_exit`.
        match place.compare_exchange(std::ptr::null_mut(), hook, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => true,
            Err(there) => there == hook,
        }
    })
}

/// The function to call when a thread has claimed a block. It stays.
static AT_CLAIM: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Sets `hook` to be called on each thread that has claimed a block. The thread may be anywhere, in
/// a signal handler too, so the hook must be async-signal-safe. There is one hook: a second one
/// replaces the first.
pub fn on_claim(hook: fn(&'static ThreadBlock)) {
    // Pairs with the load in `claim`.
    AT_CLAIM.store(hook as *mut (), Ordering::Release);
}

extern "C" fn thread_exit(block: *mut c_void) {
    // SAFETY: the key's value is only ever set to an element of the table of blocks.
    let block = unsafe { &*block.cast_const().cast::<ThreadBlock>() };
    block::end();
    for place in &AT_EXIT {
        // Pairs with the exchange in `on_thread_exit`.
        let hook = place.load(Ordering::Acquire);
        if !hook.is_null() {
            // SAFETY: only `on_thread_exit` fills the places, with `fn()`.
            unsafe { std::mem::transmute::<*mut (), fn()>(hook)() };
        }
    }
    block::give_back(block);
}

/// The pthread key, made at the first call together with the phase that begins threads anew in a
/// fork child.
fn key() -> Option<libc::pthread_key_t> {
    /// 0: not made yet; else the key + 1.
    static KEY: AtomicU64 = AtomicU64::new(0);
    // Pairs with the exchange below.
    let known = KEY.load(Ordering::Acquire);
    if known != 0 {
        return Some((known - 1) as libc::pthread_key_t);
    }
    // Threads call the destructor at times when this object could have been unloaded.
    loader::pin_self().ok()?;
    // Before another thread can find the key: a child of a fork in between would not begin anew.
    if !THREADS.join() {
        return None;
    }
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: `key` is a valid place; the destructor is a plain function of this object.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exit)) } != 0 {
        return None;
    }
    // Pairs with the load above: the key is made, and the phase has joined.
    match KEY.compare_exchange(0, u64::from(key) + 1, Ordering::Release, Ordering::Acquire) {
        Ok(_) => Some(key),
        Err(other) => {
            // SAFETY: the key was made above, and no other thread has seen it.
            unsafe { libc::pthread_key_delete(key) };
            Some((other - 1) as libc::pthread_key_t)
        }
    }
}

/// The calling thread's block; `None` if the table is full or the thread is past its end.
#[inline]
pub fn current() -> Option<&'static ThreadBlock> {
    block::try_current().or_else(claim)
}

#[cold]
fn claim() -> Option<&'static ThreadBlock> {
    if !block::may_take() {
        return None;
    }
    let key = key()?;
    let (block, is_new) = block::take()?;
    if is_new {
        // SAFETY: `key` came from pthread_key_create and is never deleted once published.
        unsafe { libc::pthread_setspecific(key, std::ptr::from_ref(block).cast()) };
        // Pairs with the store in `on_claim`.
        let hook = AT_CLAIM.load(Ordering::Acquire);
        if !hook.is_null() {
            // SAFETY: only `on_claim` fills the place, with such a function.
            unsafe { std::mem::transmute::<*mut (), fn(&'static ThreadBlock)>(hook)(block) };
        }
    }
    Some(block)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::thread::MAX_THREADS;

    #[test]
    fn each_thread_keeps_a_block_to_itself() {
        let mine = current().unwrap();
        assert!(std::ptr::eq(mine, current().unwrap()));
        let (tid, start) = std::thread::spawn(|| {
            let block = current().unwrap();
            (block.tid(), block.start())
        })
        .join()
        .unwrap();
        assert_ne!(tid, mine.tid());
        assert_ne!(start, mine.start());
    }

    #[test]
    fn hooks_run_at_ends_of_threads_with_blocks() {
        static ENDS: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static MINE: Cell<bool> = const { Cell::new(false) };
        }
        assert!(on_thread_exit(|| _ = ENDS.fetch_add(u64::from(MINE.with(Cell::get)), Ordering::Relaxed)));
        for with_a_block in [true, false] {
            let thread = std::thread::spawn(move || {
                MINE.with(|mine| mine.set(true));
                with_a_block.then(|| current().map(ThreadBlock::tid));
            });
            thread.join().unwrap();
            assert_eq!(ENDS.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn reused_blocks_have_new_start_numbers() {
        let mut starts = Vec::new();
        for _ in 0..2 * MAX_THREADS {
            starts.push(std::thread::spawn(|| current().unwrap().start()).join().unwrap());
        }
        starts.dedup();
        assert_eq!(starts.len(), 2 * MAX_THREADS);
    }

    #[test]
    fn children_look_at_a_full_table_again() {
        // The process has a block, and with it the handler that runs in children.
        current();
        let found = std::thread::spawn(|| {
            block::find_table_full();
            dormouse_testkit::fork(|| assert!(current().is_some()))
        });
        assert!(found.join().unwrap().success());
    }
}
