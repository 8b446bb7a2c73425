//! x86-64.

use dormouse_sys::stack::CallFrame;

use super::SignalFrame;
use crate::rule::SavedAt;

/// The frame pointer.
pub const FRAME: u64 = 6;

/// The stack pointer.
pub const STACK: u64 = 7;

/// The return address.
pub const RETURN: u64 = 16;

/// Whether a call leaves the return address in a register. Here it pushes it.
pub const HAS_LINK: bool = false;

/// The bytes below its stack pointer that a function may use, and that signal handlers leave alone.
pub const RED_ZONE: usize = 128;

/// The address of code that a word on the stack stands for.
#[inline(always)]
pub fn code_address(word: usize) -> Option<usize> {
    (word <= 1 << 47).then_some(word)
}

/// The places of the interrupted registers above the stack pointer of code with these bytes, if it
/// is the kernel's and ends a signal handler. Here the C library has that code, with a table.
pub(crate) fn ends_handlers(_: [u8; 8]) -> Option<SignalFrame> {
    None
}

/// Where a function that has been called has kept its return address, if it is where it usually is;
/// `caller` is its caller.
#[inline(always)]
pub fn return_place(_: CallFrame, caller: CallFrame) -> usize {
    caller.stack.wrapping_sub(size_of::<usize>())
}

/// Where the return address and the caller's frame pointer are below the caller's frame, by a
/// number from 0 to 15: the frame pointer is in its register, or that many words below the return
/// address.
#[inline(always)]
pub(crate) fn shape(shape: u16, _: i32) -> (SavedAt, Option<SavedAt>) {
    let words = i32::from(shape);
    (SavedAt::Caller(-8), (words != 0).then_some(SavedAt::Caller(-8 - 8 * words)))
}

/// The number of a shape, if it has one.
#[inline(always)]
pub(crate) fn shape_of(returns_to: SavedAt, frame: Option<SavedAt>, _: i32) -> Option<u16> {
    match (returns_to, frame) {
        (SavedAt::Caller(-8), None) => Some(0),
        (SavedAt::Caller(-8), Some(SavedAt::Caller(at))) if at % 8 == 0 && (-128..-8).contains(&at) => {
            Some((-at / 8 - 1) as u16)
        }
        _ => None,
    }
}
