//! x86-64.

use dormouse_unwind::CallFrame;

/// The registers of interrupted code.
pub(crate) fn interrupted(registers: &libc::mcontext_t) -> CallFrame {
    let word = |register: libc::c_int| registers.gregs[register as usize] as usize;
    let (instruction, stack, frame) = (word(libc::REG_RIP), word(libc::REG_RSP), word(libc::REG_RBP));
    CallFrame { instruction, stack, frame, link: 0 }
}

/// Counts down from 4,000,000.
pub(crate) const COUNTS: &[u8] = &[0xb9, 0x00, 0x09, 0x3d, 0x00, 0xff, 0xc9, 0x75, 0xfc];

/// The instructions around the body of a function without a frame pointer, and of one with it.
pub(crate) const FRAME: [[&[u8]; 2]; 2] = [[&[], &[0xc3]], [&[0x55, 0x48, 0x89, 0xe5], &[0x5d, 0xc3]]];

/// Its caller would be left out.
pub(crate) const UNCOVERED: Option<super::Uncovered> = None;

/// Code that was written may run.
pub(crate) fn written(_code: &[u8]) {}
