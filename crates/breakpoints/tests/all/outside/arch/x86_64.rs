//! x86-64: a watch stops behind the access.

std::arch::global_asm!(
    ".globl dormouse_test_outer, dormouse_test_returned, dormouse_test_stopped",
    "dormouse_test_outer: push rbp",
    "mov rbp, rsp",
    "call dormouse_test_inner",
    "dormouse_test_returned: pop rbp",
    "ret",
    "dormouse_test_inner: push rbp",
    "mov rbp, rsp",
    "mov [rdi], rsi",
    "dormouse_test_stopped: pop rbp",
    "ret",
);
