//! The agent.
//!
//! # Safety
//!
//! As the crate's; the one function trusts its argument as its declaration in the header says.
#![allow(unsafe_code)]

use crate::error::{Code, Error, Refusal, answer};

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_init(error: *mut Error) -> Code {
    // SAFETY: C's promise, passed on.
    unsafe { answer(error, || dormouse::init().map(drop).map_err(Refusal::Agent)) }
}
