//! x86-64.

use std::arch::{asm, global_asm};

/// The bytes of each of the strangers.
pub(crate) const STRANGER: usize = 16;

global_asm!(
    ".pushsection .text.hogs, \"ax\", @progbits",
    ".globl hog_caller, hog_caller_end, hog_leaf, hog_leaf_end, hog_on, hog_on_end",
    "hog_caller:",
    "push rbp",
    "mov rbp, rsp",
    "call hog_leaf",
    "nop",
    "pop rbp",
    "ret",
    "hog_caller_end:",
    "hog_leaf:",
    "push rbp",
    "mov rbp, rsp",
    "2: dec rdi",
    "jnz 2b",
    "pop rbp",
    "ret",
    "hog_leaf_end:",
    "hog_on:",
    "push rbp",
    "push rbx",
    "mov rbx, rsp",
    "mov rsp, rsi",
    "mov rbp, rdx",
    "3: dec rdi",
    "jnz 3b",
    "mov rsp, rbx",
    "pop rbx",
    "pop rbp",
    "ret",
    "hog_on_end:",
    ".popsection",
);

global_asm!(
    ".pushsection .text.libraries, \"ax\", @progbits",
    ".globl library_outer, library_outer_end, library_caller_end",
    ".hidden library_outer, library_outer_end, library_caller_end",
    "library_outer:",
    "push rbp",
    "mov rbp, rsp",
    "test rdx, rdx",
    "jz 2f",
    "mov rsp, rdx",
    "2: call library_caller",
    "nop",
    "mov rsp, rbp",
    "pop rbp",
    "ret",
    "library_outer_end:",
    "library_caller:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "mov r12, rdi",
    "mov r13, rsi",
    "mov ebx, 20000",
    "3: mov rdi, [r13]",
    "mov rsi, [r13 + 8]",
    "mov rdx, [r13 + 16]",
    "mov rcx, [r13 + 24]",
    "call r12",
    "dec ebx",
    "jnz 3b",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
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
                "push rbp",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rbp, 0",
                "mov ebp, 5",
                concat!("sub rsp, ", $bytes),
                concat!(".cfi_adjust_cfa_offset ", $bytes),
                concat!("call ", $next),
                concat!("add rsp, ", $bytes),
                concat!(".cfi_adjust_cfa_offset -", $bytes),
                "pop rbp",
                ".cfi_adjust_cfa_offset -8",
                "ret",
                ".cfi_endproc",
                concat!(".size ", $name, ", . - ", $name),
            )*
            ".type bare_00, @function",
            "bare_00:",
            ".cfi_startproc",
            "push rbp",
            ".cfi_adjust_cfa_offset 8",
            ".cfi_rel_offset rbp, 0",
            "xor ebp, ebp",
            "not rbp",
            "2: dec rdi",
            "jnz 2b",
            "pop rbp",
            ".cfi_adjust_cfa_offset -8",
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
    "mov r10, rcx",
    "mov eax, {call}",
    "syscall",
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
    "push rbp",
    "mov rbp, rsp",
    "test rdi, rdi",
    "jz 2f",
    "dec rdi",
    "call deep",
    "jmp 3f",
    "2: dec rsi",
    "jnz 2b",
    "3: pop rbp",
    "ret",
    ".popsection",
);

/// Makes a trap, behind which the thread goes on.
pub(crate) fn trap() {
    // SAFETY: the caller's handler goes on behind it.
    unsafe { asm!("int3") };
}

/// Gives the second argument of an interrupted system call, and takes the answer.
pub(crate) fn answer_call(registers: &mut libc::mcontext_t, answer: impl FnOnce(usize) -> i64) {
    let second = registers.gregs[libc::REG_RSI as usize] as usize;
    registers.gregs[libc::REG_RAX as usize] = answer(second);
}

global_asm!(
    ".globl sparse",
    "sparse:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "sub rsp, 49152",
    ".cfi_def_cfa_offset 49168",
    "mov [rsp], rdi",
    "xor ebp, ebp",
    "2: dec rdi",
    "jnz 2b",
    "add rsp, 49152",
    ".cfi_def_cfa_offset 16",
    "pop rbp",
    ".cfi_def_cfa_offset 8",
    "ret",
    ".cfi_endproc",
);
