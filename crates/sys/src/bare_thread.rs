//! A thread without std's part.
//!
//! A thread of std's, of a program that is Rust's, is in a table of stacks, for the message about
//! one that overflows: at its beginning and its end it takes the lock over that table. If another
//! thread has the lock while the process forks, it is held for ever in the child, where no thread
//! of std's begins any more. Dormouse's threads have to begin there, and must not be what keeps the
//! host's from it. If the stack of such a thread overflows, the process ends by SIGSEGV, without
//! the message.
//!
//! # References
//!
//! `std/src/sys/pal/unix/stack_overflow/thread_info.rs`, as of Rust 1.95.
//!
//! # Safety
//!
//! The unsafe code calls `pthread_create`, whose thread takes the box that it is given.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{io, iter, ptr};

struct Beginning {
    name: CString,
    run: Box<dyn FnOnce() + Send>,
}

extern "C" fn begin(beginning: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` has made it of a box, for this thread alone.
    let Beginning { name, run } = *unsafe { Box::from_raw(beginning.cast::<Beginning>()) };
    // Refused, the thread has its parent's name.
    let _ = rustix::thread::set_name(&name);
    // The hook has reported a panic, which ends this thread alone.
    let _ = catch_unwind(AssertUnwindSafe(run));
    ptr::null_mut()
}

/// Starts a thread with a stack of at least that many bytes, which runs `run` and is not joined.
pub(crate) fn spawn(name: &str, stack: usize, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let beginning = Box::into_raw(Box::new(Beginning { name: CString::new(name)?, run }));
    // The stack has the program's thread-local data, too, which the C library does not report. It
    // refuses a stack that has no room for it.
    let sizes = iter::successors(Some(stack), |size| size.checked_mul(2)).take(8);
    let mut refusal = libc::EINVAL;
    for size in sizes {
        // SAFETY: `begin` takes a pointer to this box.
        refusal = unsafe { create(size, beginning.cast()) };
        if refusal != libc::EINVAL {
            break;
        }
    }
    if refusal == 0 {
        return Ok(());
    }
    // SAFETY: there is no thread that has taken it.
    drop(unsafe { Box::from_raw(beginning) });
    Err(io::Error::from_raw_os_error(refusal))
}

/// Starts a thread in [`begin`]; returns 0 or the number of an error.
///
/// # Safety
///
/// `beginning` is a box of a [`Beginning`], which is the thread's if there is no error.
unsafe fn create(stack: usize, beginning: *mut c_void) -> c_int {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are made before they are used, and the thread is there if there is no
    // error; it is not joined.
    unsafe {
        let mut start = |attributes: *const libc::pthread_attr_t| {
            let refused = libc::pthread_create(thread.as_mut_ptr(), attributes, begin, beginning);
            if refused == 0 {
                libc::pthread_detach(thread.assume_init());
            }
            refused
        };
        if cfg!(miri) {
            // It has no attributes.
            return start(ptr::null());
        }
        let refused = libc::pthread_attr_init(attributes.as_mut_ptr());
        if refused != 0 {
            return refused;
        }
        let mut refused = libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack);
        if refused == 0 {
            refused = start(attributes.as_ptr());
        }
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        refused
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Runs `run` on a thread of ours, and returns what it returns.
    fn on_ours<T: Send + 'static>(stack: usize, run: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (tell, told) = mpsc::channel();
        spawn("ours", stack, Box::new(move || tell.send(run()).unwrap())).unwrap();
        told.recv().ok()
    }

    #[test]
    fn it_is_not_in_the_table_of_std() {
        // std enters a thread there before it gives it this stack.
        let has_signal_stack = || {
            let mut stack = MaybeUninit::<libc::stack_t>::uninit();
            // SAFETY: it writes the present stack, and changes none.
            unsafe {
                assert_eq!(libc::sigaltstack(ptr::null(), stack.as_mut_ptr()), 0);
                stack.assume_init().ss_flags & libc::SS_DISABLE == 0
            }
        };
        if !std::thread::spawn(has_signal_stack).join().unwrap() {
            return dormouse_testkit::skip("std has no table of stacks here");
        }
        assert_eq!(on_ours(64 << 10, has_signal_stack), Some(false));
    }

    #[test]
    fn a_panic_ends_the_thread_alone() {
        assert_eq!(on_ours(64 << 10, || panic!("on purpose")), None::<()>);
    }

    #[test]
    fn a_stack_that_is_too_small_grows() {
        assert_eq!(on_ours(4096, || 1), Some(1));
    }
}
