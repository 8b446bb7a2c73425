//! arm64.

use dormouse_unwind::CallFrame;

/// The registers of interrupted code.
pub(crate) fn interrupted(registers: &libc::mcontext_t) -> CallFrame {
    let word = |word: u64| word as usize;
    CallFrame {
        instruction: word(registers.pc),
        stack: word(registers.sp),
        frame: word(registers.regs[29]),
        link: word(registers.regs[30]),
    }
}

/// Counts down from 4,000,000.
pub(crate) const COUNTS: &[u8] =
    &[0x09, 0x20, 0x81, 0x52, 0xa9, 0x07, 0xa0, 0x72, 0x29, 0x05, 0x00, 0x71, 0xe1, 0xff, 0xff, 0x54];

/// `ret`.
const RETURN: [u8; 4] = [0xc0, 0x03, 0x5f, 0xd6];

/// The instructions around the body of a function without a frame pointer, and of one with it.
pub(crate) const FRAME: [[&[u8]; 2]; 2] = [
    [&[], &RETURN],
    [
        &[0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91],
        &[0xfd, 0x7b, 0xc1, 0xa8, RETURN[0], RETURN[1], RETURN[2], RETURN[3]],
    ],
];

std::arch::global_asm!(
    ".pushsection .text.uncovered, \"ax\", @progbits",
    ".balign 16",
    ".globl uncovered",
    ".hidden uncovered",
    "uncovered:",
    "mov x8, #131",
    "svc #0",
    "nop",
    "nop",
    "nop",
    "nop",
    "nop",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn uncovered(process: libc::c_int, thread: libc::c_int, signal: libc::c_int) -> libc::c_int;
}

/// A leaf that keeps no frame pointer.
pub(crate) const UNCOVERED: Option<super::Uncovered> = Some(uncovered);

/// Code that was written may run: processors fetch it again.
pub(crate) fn written(code: &[u8]) {
    for line in code.chunks(16) {
        // SAFETY: the lines are mapped, and no memory changes.
        unsafe {
            std::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", "dsb ish", "isb",
                in(reg) line.as_ptr(), options(nostack, preserves_flags));
        }
    }
}
