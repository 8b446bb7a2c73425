//! arm64.
//!
//! # Safety
//!
//! The unsafe code is a loop that copies, and a handler, which the kernel calls.
#![allow(unsafe_code)]

/// The longest call has this many bytes.
pub(in crate::sampling) const CALL: usize = 4;

/// Whether code that ends with these bytes ends with a call.
///
/// # References
///
/// Arm ARM, C6.2: `BL`, `BLR`; `BLRAA`, `BLRAB` and those with zero, which check a signature.
pub(in crate::sampling) fn ends_with_call(code: &[u8]) -> bool {
    let Some(word) = code.last_chunk().map(|word| u32::from_le_bytes(*word)) else { return false };
    let is = |mask: u32, bits: u32| word & mask == bits;
    is(0xfc00_0000, 0x9400_0000)
        || is(0xffff_fc1f, 0xd63f_0000)
        || is(0xffff_f81f, 0xd63f_081f)
        || is(0xffff_f800, 0xd73f_0800)
}

/// Copies memory without a function of the C library: neither a checker that has replaced `memcpy`
/// nor the dynamic linker is involved.
///
/// # Safety
///
/// The bytes can be read, and there is room for them.
#[inline(always)]
pub(in crate::sampling) unsafe fn copy(from: usize, into: *mut u8, length: usize) {
    // SAFETY: the caller's promise. The loops end at `length`.
    unsafe {
        std::arch::asm!(
            "2:",
            "subs {left}, {left}, #16",
            "b.lo 3f",
            "ldp {one}, {two}, [{from}], #16",
            "stp {one}, {two}, [{into}], #16",
            "b 2b",
            "3:",
            "adds {left}, {left}, #16",
            "b.eq 5f",
            "4:",
            "ldrb {one:w}, [{from}], #1",
            "strb {one:w}, [{into}], #1",
            "subs {left}, {left}, #1",
            "b.ne 4b",
            "5:",
            left = inout(reg) length => _,
            from = inout(reg) from => _,
            into = inout(reg) into => _,
            one = out(reg) _,
            two = out(reg) _,
            options(nostack),
        );
    }
}

/// The instructions of [`marking_entry!`](super::marking_entry).
macro_rules! marking_code {
    () => {
        dormouse_sys::assembly!(
            "ldr w9, [x1, #{code}]",
            // `SI_TIMER` is negative.
            "cmn w9, #-({timer})",
            "b.ne 4f",
            "ldp w9, w10, [x1, #{value}]",
            "mov w11, #{last}",
            "cmp w9, w11",
            "b.hi 4f",
            "movz w11, #({first} >> 16), lsl #16",
            "movk w11, #({first} & 0xffff)",
            "cmp w10, w11",
            "b.lo 4f",
            "adrp x11, {table}",
            "add x11, x11, :lo12:{table}",
            "add x9, x11, x9, lsl #{shift}",
            // A timer that has ended meanwhile had another generation.
            "ldr w11, [x9, #{generation}]",
            "cmp w10, w11",
            "b.ne 3f",
            "mov w11, #1",
            "strb w11, [x9, #{mark}]",
            "adrp x9, {count}",
            "add x9, x9, :lo12:{count}",
            "2:",
            "ldxr w10, [x9]",
            "add w10, w10, #1",
            "stxr w11, w10, [x9]",
            "cbnz w11, 2b",
            "3:",
            "ret",
            "4:",
            "b {go_on}",
        )
    };
}
pub(in crate::sampling) use marking_code;

#[cfg(test)]
mod tests {
    use super::{copy, ends_with_call};

    #[test]
    fn calls_are_told_from_other_code() {
        // `bl`, `blr x3`, `blraaz x3`, `blraa x3, x4`.
        for call in [0x9400_0010_u32, 0x97ff_ffff, 0xd63f_0060, 0xd63f_087f, 0xd73f_0864] {
            assert!(ends_with_call(&call.to_le_bytes()), "{call:x}");
        }
        // `b`, `br x3`, `ret`, `nop`.
        for other in [0x1400_0010_u32, 0xd61f_0060, 0xd65f_03c0, 0xd503_201f] {
            assert!(!ends_with_call(&other.to_le_bytes()), "{other:x}");
        }
        assert!(!ends_with_call(&[0x94, 0, 0]));
    }

    #[test]
    fn copies_have_each_byte() {
        let from: Vec<u8> = (1..=100).collect();
        for length in 0..=from.len() {
            let mut into = [0; 101];
            // SAFETY: both have room.
            unsafe { copy(from.as_ptr().addr(), into.as_mut_ptr(), length) };
            assert_eq!((&into[..length], into[length]), (&from[..length], 0));
        }
    }
}
