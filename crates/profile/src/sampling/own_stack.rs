//! The stack of the calling thread, for code that runs on it and is no signal handler.
//!
//! The C library puts a thread's control block, to which the thread pointer points, at the upper
//! end of its stack; the first thread's stack has the kernel's random bytes above all frames. So
//! from the stack pointer up to that address memory is the thread's stack, unless the thread is on
//! a stack that the host has made itself: then there is a hole, or a page that cannot be read,
//! which the kernel is asked about. Its answer is remembered: a stack does not go while its thread
//! is on it.
//!
//! # Safety
//!
//! The unsafe code reads the kernel's list of addresses.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;

use dormouse_sys::process::identity;
use dormouse_sys::readable::is_readable;
use dormouse_sys::rseq::thread_pointer;

/// The deepest stack that is asked about. The others are walked by the kernel's help.
const DEEPEST: usize = 1 << 20;

thread_local! {
    static KNOWN: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The memory of the thread's own stack that can be read from `stack` on, its stack pointer; empty
/// if it is on another one, or very deep.
///
/// # Cost
///
/// A system call for each page of the stack that no call before has found.
pub(super) fn from(stack: usize) -> Range<usize> {
    let (low, high) = KNOWN.get();
    if (low..high).contains(&stack) {
        return stack..high;
    }
    let end = if high == 0 { end() } else { high };
    if stack >= end || end - stack > DEEPEST {
        return 0..0;
    }
    // The part above was found before.
    let unknown = stack..if stack < low { low } else { end };
    if !is_readable(unknown) {
        return 0..0;
    }
    KNOWN.set((stack, end));
    stack..end
}

/// An address above all frames of the calling thread.
fn end() -> usize {
    if identity::tid() != identity::pid() {
        return thread_pointer() as usize;
    }
    // SAFETY: looks up a list that the kernel has made.
    unsafe { libc::getauxval(libc::AT_RANDOM) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That of a frame below the caller's.
    #[inline(never)]
    fn deep() -> Range<usize> {
        // A frame of its own, wherever the caller keeps its locals.
        let bytes = std::hint::black_box([0_u8; 16_000]);
        from((&raw const bytes[0]).addr())
    }

    #[test]
    fn own_stacks_are_known_up_to_their_ends() {
        std::thread::spawn(|| {
            let local = 0_u8;
            let here = (&raw const local).addr();
            let own = from(here);
            assert_eq!(own.start, here);
            let deeper = deep();
            assert!(deeper.start < here && deeper.end == own.end, "{deeper:?} {own:?}");
            assert_eq!(from(here), own);
            assert!(from(own.end).is_empty());
        })
        .join()
        .unwrap();
    }
}
