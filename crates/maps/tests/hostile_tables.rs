//! Tables of exceptions that would hold their reader for ever.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use std::arch::{asm, global_asm};
use std::sync::Mutex;

use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::StackUnwinder;

// The frame of the function is where an expression says that jumps back to its own beginning.
global_asm!(
    ".globl dormouse_endless, dormouse_in_endless",
    "dormouse_endless:",
    ".cfi_startproc",
    // DW_CFA_def_cfa_expression of three bytes: DW_OP_skip -3.
    ".cfi_escape 0x0f, 3, 0x2f, 0xfd, 0xff",
    "push rbp",
    "mov rbp, rsp",
    "call rdi",
    "dormouse_in_endless: pop rbp",
    "ret",
    ".cfi_endproc",
);

unsafe extern "C" {
    fn dormouse_endless(call: unsafe extern "C" fn());
    fn dormouse_in_endless();
}

/// Registers and stack, as `look` found them.
static SEEN: Mutex<Option<([u64; 4], Vec<u8>)>> = Mutex::new(None);

/// Copies the stack of its caller.
unsafe extern "C" fn look() {
    let [frame, end]: [u64; 2];
    // SAFETY: reads a register, and the thread pointer from where it points to.
    unsafe { asm!("mov {}, rbp", "mov {}, fs:0", out(reg) frame, out(reg) end) };
    let mut stack = vec![0; (end - frame) as usize];
    // SAFETY: the C library puts the data to which the thread pointer points above the stack.
    unsafe { stack.as_mut_ptr().copy_from_nonoverlapping(frame as *const u8, stack.len()) };
    *SEEN.lock().unwrap() = Some(([dormouse_in_endless as *const () as u64, frame, frame, 0], stack));
}

#[test]
fn expressions_that_jump_hold_nobody() {
    // SAFETY: `look` is of the right kind, and returns.
    std::thread::spawn(|| unsafe { dormouse_endless(look) }).join().unwrap();
    let (registers, stack) = SEEN.lock().unwrap().take().unwrap();
    let mut unwinder = StackUnwinder::new(&AddressSpace::own().unwrap());
    // This program's tables are not used, so its functions are followed by frame pointers.
    assert!(!unwinder.callers(registers, &stack).is_empty());
}
