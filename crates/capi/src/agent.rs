//! The agent, and its warnings.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`. The agent in `AGENT` is never freed.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use dormouse::Agent;

use crate::call::{answer, contained, memory_for, step};
use crate::error::{Code, Error, Refusal};

/// Room for the agent and for what the environment requests, in keys of `memory_for`: 1 MiB.
const ROOM: usize = 2048;

/// The agent of the last `dormouse_init` that has started one. Without a lock, which a forked child
/// could find taken.
static AGENT: AtomicPtr<Agent> = AtomicPtr::new(ptr::null_mut());

fn agent() -> Option<&'static Agent> {
    // SAFETY: null, or a box that was leaked. Pairs with the store in `keep`: it is whole.
    unsafe { AGENT.load(Ordering::Acquire).as_ref() }
}

fn keep(agent_now: Agent) {
    // A later call finds the one that runs, without the fault of its place.
    if agent().is_none_or(|known| known.path() != agent_now.path()) {
        AGENT.store(Box::into_raw(Box::new(agent_now)), Ordering::Release);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_init(error: *mut Error) -> Code {
    // SAFETY: promise 3.
    unsafe {
        answer(error, || {
            memory_for(ROOM)?;
            dormouse::init().map(keep).map_err(Refusal::Agent)
        })
    }
}

/// One warning a line.
fn warnings() -> String {
    let all = agent().map(Agent::warnings).unwrap_or_default();
    all.iter().map(|warning| warning.replace('\n', " ") + "\n").collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_warnings(text: *mut c_char, length: usize) -> usize {
    contained(0, || {
        let _step = step();
        let (all, said);
        if memory_for(ROOM).is_ok() {
            all = warnings();
            said = all.as_str();
        } else {
            said = "not enough memory to say whether there are warnings\n";
        }
        if !text.is_null() && length > 0 {
            let room = said.len().min(length - 1);
            let end = (0..=room).rev().find(|&at| said.is_char_boundary(at)).unwrap_or(0);
            // SAFETY: promise 5: room for `length` bytes, of which these and a NUL are at most all.
            unsafe {
                text.copy_from_nonoverlapping(said.as_ptr().cast(), end);
                text.add(end).write(0);
            }
        }
        said.len()
    })
}
