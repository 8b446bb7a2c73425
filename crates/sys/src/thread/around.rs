//! The tasks around the one that a thread runs. Another crate has their stack, and is asked.
//!
//! # Safety
//!
//! The unsafe code calls the function in the one place for it.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The numbers of the tasks in whose polls a thread runs another task, from the nearest one on; 0:
/// none. Further ones are left out.
pub type TasksAround = [u64; 2];

/// The function that returns them. It stays.
static AROUND: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Sets the function by which [`tasks_around`] finds them, on the thread itself. A second one
/// replaces the first.
pub fn find_tasks_around(by: fn() -> TasksAround) {
    // Pairs with the load in `tasks_around`.
    AROUND.store(by as *mut (), Ordering::Release);
}

/// The tasks around the one that the calling thread runs. A scope is none of them: it does not wait
/// for the tasks that are polled inside of it.
pub fn tasks_around() -> TasksAround {
    // Pairs with the store in `find_tasks_around`.
    let by = AROUND.load(Ordering::Acquire);
    if by.is_null() {
        return TasksAround::default();
    }
    // SAFETY: only `find_tasks_around` fills the place, with such a function.
    unsafe { std::mem::transmute::<*mut (), fn() -> TasksAround>(by)() }
}
