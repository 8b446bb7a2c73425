//! The stack of the interrupted code, by frame pointers.
//!
//! Within the bounds of the thread's own stack memory is read plainly: whatever the frame pointer
//! of code that keeps none says, an address between the stack pointer and the end of the stack can
//! be read while the thread runs. Outside of them (a fiber, an alternate stack, a thread that was
//! made without the C library) [`dormouse_sys::stack`] reads with the kernel's help.
//!
//! # Async-signal-safety
//!
//! No allocation, lock or thread-local; system calls outside of the bounds alone.
//!
//! # Safety
//!
//! The unsafe code reads words of the calling thread's own stack.
#![allow(unsafe_code)]

use std::ops::Range;

use super::registers::Registers;

/// The most frames of a stack: the interrupted function and 127 callers.
pub(super) const DEPTH: usize = 128;

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum End {
    /// At a link that is not one.
    Lost = 0,
    /// At the zero that the outermost frame has.
    Last = 1,
    /// There was no more room.
    Cut = 2,
}

/// The first address that no code of a process has.
const NO_CODE: usize = 1 << 47;

/// A frame: the caller's frame pointer, and the return address.
const FRAME: usize = 2 * size_of::<usize>();

/// Fills in the interrupted address, and for each caller one less than the return address: how
/// many, and how the walk ended.
///
/// # Safety
///
/// `own` is empty, or can be read by the calling thread from the stack pointer on, if that lies in
/// it.
pub(super) unsafe fn walk(from: Registers, own: &Range<usize>, into: &mut [usize; DEPTH]) -> (usize, End) {
    into[0] = from.instruction;
    // SAFETY: the caller's promise.
    unsafe { callers(from.frame, from.stack, own, into, 1) }
}

/// Fills in one less than the return address of each caller, from the place `first` on: how many
/// places are filled then, and how the walk ended.
///
/// # Safety
///
/// As for [`walk`].
pub(super) unsafe fn callers(
    frame: usize,
    stack: usize,
    own: &Range<usize>,
    into: &mut [usize],
    first: usize,
) -> (usize, End) {
    if !own.contains(&stack) {
        let found = first + dormouse_sys::stack::walk(frame, stack, &mut into[first..]);
        into[first..found].iter_mut().for_each(|address| *address -= 1);
        return (found, if found == into.len() { End::Cut } else { End::Lost });
    }
    let (mut frame, mut above) = (frame, stack);
    for (found, place) in into.iter_mut().enumerate().skip(first) {
        if frame == 0 {
            return (found, End::Last);
        }
        let is_frame = frame >= above && frame.is_multiple_of(size_of::<usize>()) && frame <= own.end - FRAME;
        if !is_frame {
            return (found, End::Lost);
        }
        // SAFETY: both words lie between the stack pointer and the end of the stack, by the checks
        // above and the caller's promise. Volatile: other code of the thread wrote them.
        let (next, returns_to) = unsafe {
            let frame = std::ptr::with_exposed_provenance::<usize>(frame);
            (frame.read_volatile(), frame.add(1).read_volatile())
        };
        if returns_to == 0 {
            return (found, End::Last);
        }
        if returns_to >= NO_CODE {
            return (found, End::Lost);
        }
        *place = returns_to - 1;
        above = frame + FRAME;
        frame = next;
    }
    (into.len(), End::Cut)
}
