//! arm64.
//!
//! # Safety
//!
//! The unsafe code is a single instruction.
#![allow(unsafe_code)]

use std::arch::asm;

use dormouse_sys::stack::CallFrame;

use super::SignalFrame;
use crate::rule::SavedAt;

/// The frame pointer, `x29`.
pub const FRAME: u64 = 29;

/// The stack pointer.
pub const STACK: u64 = 31;

/// The return address, `x30`.
pub const RETURN: u64 = 30;

/// Whether a call leaves the return address in a register.
pub const HAS_LINK: bool = true;

/// The bytes below its stack pointer that a function may use, and that signal handlers leave alone.
pub const RED_ZONE: usize = 0;

/// The address of code that a word on the stack stands for. Functions that sign their return
/// address (`paciasp`) keep the signature in bits that no address uses. How many these are depends
/// on the kernel, and the processor knows it. Bit 55 is the kernel's half of all addresses.
#[inline(always)]
pub fn code_address(word: usize) -> Option<usize> {
    let stripped;
    // SAFETY: `xpaclri`: changes the one register, and nothing where there are no signatures.
    unsafe {
        asm!("hint #7", inout("x30") word => stripped, options(pure, nomem, nostack, preserves_flags));
    }
    let stripped: usize = stripped;
    (word & 1 << 55 == 0).then_some(stripped & ((1 << 48) - 1))
}

/// The places of the interrupted registers above the stack pointer of code with these bytes, if it
/// is the kernel's and ends a signal handler: `mov x8, #139` and `svc #0`. It has no table.
pub(crate) fn ends_handlers(code: [u8; 8]) -> Option<SignalFrame> {
    const END: u64 = 0xd400_0001_d280_1168;
    // `siginfo_t`, then the head of `ucontext_t`, the address of a fault, and the registers.
    const REGISTERS: i32 = 128 + 176 + 8;
    let frame =
        SignalFrame { frame: REGISTERS + 29 * 8, stack: REGISTERS + 31 * 8, instruction: REGISTERS + 32 * 8 };
    (code == END.to_le_bytes()).then_some(frame)
}

/// Where a function that has been called has kept its return address, if it is where it usually is;
/// `caller` is its caller.
#[inline(always)]
pub fn return_place(of: CallFrame, caller: CallFrame) -> usize {
    // Behind the caller's frame pointer, to which its own one points.
    let place = of.frame.wrapping_add(size_of::<usize>());
    if (of.stack..caller.stack).contains(&place) { place } else { caller.stack - size_of::<usize>() }
}

/// Where the return address and the caller's frame pointer are, by a number from 0 to 15, in a
/// function whose frame has this length: both in their registers, the return address above the
/// frame pointer, or the return address alone.
#[inline(always)]
pub(crate) fn shape(shape: u16, distance: i32) -> (SavedAt, Option<SavedAt>) {
    let pair = |at: i32| (SavedAt::Caller(at + 8), Some(SavedAt::Caller(at)));
    match i32::from(shape) {
        0 => (SavedAt::Link, None),
        1 => pair(-distance),
        alone @ 2..4 => (SavedAt::Caller(-8 * (alone - 1)), None),
        pairs => pair(-16 * (pairs - 3)),
    }
}

/// The number of a shape, if it has one.
#[inline(always)]
pub(crate) fn shape_of(returns_to: SavedAt, frame: Option<SavedAt>, distance: i32) -> Option<u16> {
    match (returns_to, frame) {
        (SavedAt::Link, None) => Some(0),
        (SavedAt::Caller(above), Some(SavedAt::Caller(at))) if above == at + 8 => match at {
            _ if at == -distance => Some(1),
            _ if at % 16 == 0 && (-192..0).contains(&at) => Some((-at / 16 + 3) as u16),
            _ => None,
        },
        (SavedAt::Caller(-8), None) => Some(2),
        (SavedAt::Caller(-16), None) => Some(3),
        _ => None,
    }
}
