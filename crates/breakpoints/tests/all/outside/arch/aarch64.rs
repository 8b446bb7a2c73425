//! arm64: a watch stops before the access.

std::arch::global_asm!(
    ".globl dormouse_test_outer, dormouse_test_returned, dormouse_test_stopped",
    "dormouse_test_outer: stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "bl dormouse_test_inner",
    "dormouse_test_returned: ldp x29, x30, [sp], #16",
    "ret",
    "dormouse_test_inner: stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "dormouse_test_stopped: str x1, [x0]",
    "ldp x29, x30, [sp], #16",
    "ret",
);
