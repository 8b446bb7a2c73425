//! The agent.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use crate::call::{answer, memory_for};
use crate::error::{Code, Error, Refusal};

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_init(error: *mut Error) -> Code {
    // SAFETY: promise 3.
    unsafe {
        answer(error, || {
            memory_for(0)?;
            dormouse::init().map(drop).map_err(Refusal::Agent)
        })
    }
}
