//! The agent.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use crate::call::{answer, memory_for};
use crate::error::{Code, Error, Refusal};

/// Room for the agent and for what the environment requests, in keys of `memory_for`: 1 MiB.
const ROOM: usize = 2048;

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_init(error: *mut Error) -> Code {
    // SAFETY: promise 3.
    unsafe {
        answer(error, || {
            memory_for(ROOM)?;
            dormouse::init().map(drop).map_err(Refusal::Agent)
        })
    }
}
