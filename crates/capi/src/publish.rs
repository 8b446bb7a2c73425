//! Publishing the current group of each thread for profilers.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use dormouse::Publishing;

use crate::call::{answer, contained, memory_for, owned};
use crate::error::{Code, Error, Refusal};

/// The memory that it takes, in keys of `memory_for`: the mappings of the process as text.
const LOOK: usize = 1024;

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_publish_begin(publishing: *mut *mut Publishing, error: *mut Error) -> Code {
    // SAFETY: promise 1 for the place, 3 for the error.
    unsafe {
        answer(error, || {
            let none = Refusal::Invalid("no place for the publishing: the pointer is NULL");
            let place = NonNull::new(publishing).ok_or(none)?;
            memory_for(LOOK)?;
            let begun = Publishing::start().map_err(Refusal::Publish)?;
            place.write(Box::into_raw(Box::new(begun)));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_publish_end(publishing: *mut Publishing) {
    // SAFETY: promise 4.
    contained((), || drop(unsafe { owned(publishing) }));
}
