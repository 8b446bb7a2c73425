//! arm64.

use std::arch::global_asm;

/// The bytes of each of the strangers.
pub(crate) const STRANGER: usize = 16;

global_asm!(
    ".pushsection .text.hogs, \"ax\", @progbits",
    ".globl hog_caller, hog_caller_end, hog_leaf, hog_leaf_end, hog_on, hog_on_end",
    "hog_caller:",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "bl hog_leaf",
    "nop",
    "ldp x29, x30, [sp], #16",
    "ret",
    "hog_caller_end:",
    "hog_leaf:",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "2: subs x0, x0, #1",
    "b.ne 2b",
    "ldp x29, x30, [sp], #16",
    "ret",
    "hog_leaf_end:",
    "hog_on:",
    "stp x29, x30, [sp, #-16]!",
    "mov x9, sp",
    // Its caller is on the other stack.
    "mov x30, xzr",
    "mov sp, x1",
    "mov x29, x2",
    "3: subs x0, x0, #1",
    "b.ne 3b",
    "mov sp, x9",
    "ldp x29, x30, [sp], #16",
    "ret",
    "hog_on_end:",
    ".popsection",
);

global_asm!(
    ".pushsection .text.libraries, \"ax\", @progbits",
    ".globl library_outer, library_outer_end, library_caller_end",
    ".hidden library_outer, library_outer_end, library_caller_end",
    "library_outer:",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "cbz x2, 2f",
    "mov sp, x2",
    "2: bl library_caller",
    "nop",
    "mov sp, x29",
    "ldp x29, x30, [sp], #16",
    "ret",
    "library_outer_end:",
    "library_caller:",
    "stp x29, x30, [sp, #-48]!",
    "mov x29, sp",
    "stp x19, x20, [sp, #16]",
    "str x21, [sp, #32]",
    "mov x19, x0",
    "mov x20, x1",
    "mov w21, #20000",
    "3: ldp x0, x1, [x20]",
    "ldp x2, x3, [x20, #16]",
    "blr x19",
    "subs w21, w21, #1",
    "b.ne 3b",
    "ldr x21, [sp, #32]",
    "ldp x19, x20, [sp, #16]",
    "ldp x29, x30, [sp], #48",
    "ret",
    "library_caller_end:",
    ".popsection",
);

macro_rules! bare {
    ($(($name:literal, $next:literal, $bytes:literal)),*) => {
        global_asm!(
            ".pushsection .text.bare, \"ax\", @progbits",
            ".globl bare_11",
            $(
                concat!(".type ", $name, ", @function"),
                concat!($name, ":"),
                ".cfi_startproc",
                "stp x29, x30, [sp, #-16]!",
                ".cfi_adjust_cfa_offset 16",
                ".cfi_rel_offset x29, 0",
                ".cfi_rel_offset x30, 8",
                "mov x29, #5",
                concat!("sub sp, sp, #", $bytes),
                concat!(".cfi_adjust_cfa_offset ", $bytes),
                concat!("bl ", $next),
                concat!("add sp, sp, #", $bytes),
                concat!(".cfi_adjust_cfa_offset -", $bytes),
                "ldp x29, x30, [sp], #16",
                ".cfi_adjust_cfa_offset -16",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
            )*
            // A leaf: its return address stays in its register.
            ".type bare_00, @function",
            "bare_00:",
            ".cfi_startproc",
            "str x19, [sp, #-16]!",
            ".cfi_adjust_cfa_offset 16",
            ".cfi_rel_offset x19, 0",
            "2: subs x0, x0, #1",
            "b.ne 2b",
            "ldr x19, [sp], #16",
            ".cfi_adjust_cfa_offset -16",
            ".cfi_restore x19",
            "ret",
            ".cfi_endproc",
            ".size bare_00, . - bare_00",
            ".popsection",
        );
    };
}

super::chain!(bare);

global_asm!(
    ".pushsection .text.strangers, \"ax\", @progbits",
    ".balign {bytes}",
    ".globl strangers",
    "strangers:",
    ".rept {count}",
    ".balign {bytes}",
    ".cfi_startproc",
    "mov x8, #{call}",
    "svc #0",
    "ret",
    ".cfi_endproc",
    ".endr",
    ".popsection",
    bytes = const STRANGER,
    count = const super::STRANGERS,
    call = const libc::SYS_rt_tgsigqueueinfo,
);

global_asm!(
    ".pushsection .text, \"ax\", @progbits",
    ".globl deep",
    "deep:",
    "stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "cbz x0, 2f",
    "sub x0, x0, #1",
    "bl deep",
    "b 3f",
    "2: subs x1, x1, #1",
    "b.ne 2b",
    "3: ldp x29, x30, [sp], #16",
    "ret",
    ".popsection",
);

/// Makes a trap, behind which the thread goes on. A breakpoint would be met again.
pub(crate) fn trap() {
    // SAFETY: the caller's handler returns.
    assert_eq!(unsafe { libc::raise(libc::SIGTRAP) }, 0);
}

/// Gives the second argument of an interrupted system call, and takes the answer.
pub(crate) fn answer_call(registers: &mut libc::mcontext_t, answer: impl FnOnce(usize) -> i64) {
    registers.regs[0] = answer(registers.regs[1] as usize) as u64;
}

global_asm!(
    ".globl sparse",
    "sparse:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "sub sp, sp, #49152",
    ".cfi_def_cfa_offset 49168",
    "str x0, [sp]",
    "mov x29, xzr",
    "2: subs x0, x0, #1",
    "b.ne 2b",
    "add sp, sp, #49152",
    ".cfi_def_cfa_offset 16",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
);
