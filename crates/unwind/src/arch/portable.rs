//! All other processors: no caller is found.

use dormouse_sys::stack::CallFrame;

use super::SignalFrame;
use crate::rule::SavedAt;

/// No register has this number: each rule is unknown.
pub const FRAME: u64 = u64::MAX;

/// No register has this number, as for [`FRAME`].
pub const STACK: u64 = u64::MAX - 1;

/// No register has this number, as for [`FRAME`].
pub const RETURN: u64 = u64::MAX - 2;

/// Whether a call leaves the return address in a register.
pub const HAS_LINK: bool = false;

/// The bytes below its stack pointer that a function may use, and that signal handlers leave alone.
pub const RED_ZONE: usize = 0;

/// The address of code that a word on the stack stands for.
pub fn code_address(word: usize) -> Option<usize> {
    Some(word)
}

/// The places of the interrupted registers above the stack pointer of code with these bytes, if it
/// ends a signal handler: nothing is known of such code.
pub(crate) fn ends_handlers(_: [u8; 8]) -> Option<SignalFrame> {
    None
}

/// Where a function that has been called has kept its return address, if it is where it usually is;
/// `caller` is its caller.
#[inline(always)]
pub fn return_place(_: CallFrame, caller: CallFrame) -> usize {
    caller.stack
}

/// Where the return address and the caller's frame pointer are: nothing is known.
pub(crate) fn shape(_: u16, _: i32) -> (SavedAt, Option<SavedAt>) {
    (SavedAt::Link, None)
}

/// No shape has a number.
pub(crate) fn shape_of(_: SavedAt, _: Option<SavedAt>, _: i32) -> Option<u16> {
    None
}
