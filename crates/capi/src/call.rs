//! The frame of every function that C calls: [`answer`] or [`contained`], which leave the thread as
//! they found it.
//!
//! 1. They restore `errno`.
//! 2. The thread cannot be cancelled meanwhile. The C library cancels by unwinding the stack, from
//!    any call that may block (`open`, `read`, `close`), and it aborts the process if a frame stops
//!    that, as `catch_unwind` does. A pending cancellation takes effect at the caller's next
//!    cancellation point.
//! 3. A panic ends here.
//!
//! # Safety
//!
//! [`Out`] writes through a pointer of C's, which points to a structure that begins with its size.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use dormouse_sys::memory::{self, Reserving, Step};

use crate::error::{Code, Error, Refusal};

/// Also for the library's threads.
#[global_allocator]
static ALLOCATOR: Reserving = Reserving;

/// A structure of the caller's that may be filled.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// `None` for a structure that is shorter than its first version, or misaligned.
    ///
    /// # Safety
    ///
    /// NULL, or a `T` that begins with its size in 32 bits and stays during the call.
    pub(crate) unsafe fn new(to: *mut T) -> Option<Self> {
        // SAFETY: it is not NULL, so a size is there, by this function's own contract.
        let size = || unsafe { to.cast::<u32>().read() } as usize;
        let has_room = || to.is_aligned() && size() >= size_of::<T>();
        (to.is_null() || has_room()).then_some(Self(to))
    }

    /// Fills the structure, if there is one.
    pub(crate) fn fill(self, value: impl Into<T>) {
        if !self.0.is_null() {
            // SAFETY: `new` has seen a size with room for a `T`.
            unsafe { self.0.write(value.into()) };
        }
    }
}

/// Takes back a pointer that C was given.
///
/// # Safety
///
/// NULL, or from `Box::into_raw`, and given back once.
pub(crate) unsafe fn owned<T>(pointer: *mut T) -> Option<Box<T>> {
    // SAFETY: if it is not NULL it is a box's, by this function's own contract.
    (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
}

/// Keeps the calling thread from being cancelled; dropped, it gives back the `errno` and the state
/// of cancellation that the thread had.
struct Undisturbed {
    errno: c_int,
    cancelable: c_int,
}

/// `pthread.h`'s.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

impl Undisturbed {
    #[inline]
    fn begin() -> Self {
        let mut cancelable = 0;
        // SAFETY: the address of the thread's own `errno`; room for a state. Neither call fails or
        // sets `errno`.
        let errno = unsafe {
            pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancelable);
            *libc::__errno_location()
        };
        Self { errno, cancelable }
    }
}

impl Drop for Undisturbed {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `begin`.
        unsafe {
            *libc::__errno_location() = self.errno;
            pthread_setcancelstate(self.cancelable, std::ptr::null_mut());
        }
    }
}

/// Runs the body of a function that cannot be refused. If it panics, the result is `otherwise`.
#[inline]
pub(crate) fn contained<T>(otherwise: T, f: impl FnOnce() -> T) -> T {
    let _undisturbed = Undisturbed::begin();
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(otherwise)
}

/// Runs the body of a function, and returns its code.
///
/// # Safety
///
/// `error` as for [`Out::new`].
pub(crate) unsafe fn answer(error: *mut Error, f: impl FnOnce() -> Result<(), Refusal>) -> Code {
    let _undisturbed = Undisturbed::begin();
    let _step = step();
    // Dropped before the thread can be cancelled again, also if it does not run.
    let f = f;
    // SAFETY: this function's own contract.
    let Some(out) = (unsafe { Out::new(error) }) else { return Code::Invalid };
    let ended = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| Err(Refusal::Bug(panic)));
    let Err(refusal) = ended else { return Code::Ok };
    let code = refusal.code();
    // Formatting is not contained: it is our own errors' `Display`, which does not panic.
    out.fill(refusal);
    code
}

/// Begins the step that keeps the memory of [`memory_for`]; [`answer`] has one.
#[inline]
pub(crate) fn step() -> Step {
    ALLOCATOR.step()
}

/// Refuses if there is no memory for `keys` keys and all that a batch works out about them: an
/// allocation of Rust's that fails aborts the process. The memory is kept to the end of the
/// [`step`], for the allocations that the system refuses.
///
/// # Cost
///
/// An allocation that is given back.
pub(crate) fn memory_for(keys: usize) -> Result<(), Refusal> {
    let bytes = FIXED.saturating_add(keys.saturating_mul(PER_KEY));
    if memory::is_there(bytes) { Ok(()) } else { Err(Refusal::NoMemory) }
}

/// The most that a call takes without its keys, as measured: a list of the process's mappings,
/// messages.
const FIXED: usize = 96 * 1024;
/// For each key: the change, the key's new state, and its sites.
const PER_KEY: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn blank() -> Error {
        Error { size: 512, code: 0, os_error: 0, reserved: 0, address: 0, message: [0; 488] }
    }

    #[test]
    fn a_panic_ends_as_an_error() {
        let mut error = blank();
        // SAFETY: a structure with its size.
        let code = unsafe { answer(&raw mut error, || panic!("a bug")) };
        assert_eq!((code, error.code), (Code::Bug, Code::Bug as i32));
        assert!(String::from_utf8_lossy(&error.message).contains("a bug"));
        assert_eq!(contained(7, || panic!("another")), 7);
    }

    #[test]
    fn errno_is_as_it_was() {
        let set = |value| {
            // SAFETY: the thread's own.
            unsafe { *libc::__errno_location() = value };
        };
        set(77);
        // SAFETY: no structure.
        let code = unsafe {
            answer(std::ptr::null_mut(), || {
                set(1);
                Err(Refusal::Invalid("of no use"))
            })
        };
        assert_eq!(code, Code::Invalid);
        contained((), || set(2));
        assert_eq!(Undisturbed::begin().errno, 77);
    }

    #[test]
    fn a_thread_can_be_cancelled_as_before() {
        for state in [PTHREAD_CANCEL_DISABLE, 1 - PTHREAD_CANCEL_DISABLE] {
            // SAFETY: NULL for a result that is not needed.
            unsafe { pthread_setcancelstate(state, std::ptr::null_mut()) };
            let inside = contained(-1, || Undisturbed::begin().cancelable);
            assert_eq!((inside, Undisturbed::begin().cancelable), (PTHREAD_CANCEL_DISABLE, state));
        }
    }

    #[test]
    fn an_unknown_size_refuses_before_anything_happens() {
        let mut error = Error { size: 511, ..blank() };
        // SAFETY: a structure with its size.
        let code = unsafe { answer(&raw mut error, || panic!("must not run")) };
        assert_eq!((code, error.code), (Code::Invalid, 0));
    }
}
