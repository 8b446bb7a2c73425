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

/// How far above the stack pointer a function keeps its frame record (the caller's frame pointer
/// and the return address), if a direct call of it ends at `returns_to`, and it begins in the usual
/// way. `read` copies code from an address, and returns how much there was.
///
/// # References
///
/// Arm ARM, C6.2: `BL`, `SUB (immediate)`, `STP`, `STR (immediate)`; AAPCS64, 6.4.6.
pub(in crate::sampling) fn record_of_callee(
    returns_to: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> usize,
) -> Option<u64> {
    let (from, mut call) = (returns_to.checked_sub(CALL as u64)?, [0; CALL]);
    let call = (read(from, &mut call) == CALL).then(|| u32::from_le_bytes(call))?;
    let distance = (call >> 26 == 0b10_0101).then(|| signed(call, 0, 26) * CALL as i64)?;
    let mut code = [0; FIRST * CALL];
    let length = read(from.checked_add_signed(distance)?, &mut code);
    let (words, _) = code[..length].as_chunks();
    record_place(words.iter().map(|word| u32::from_le_bytes(*word)))
}

/// Instructions of a function among which it saves the frame record.
const FIRST: usize = 48;

/// That place, by the function's first instructions.
fn record_place(code: impl Iterator<Item = u32>) -> Option<u64> {
    // Both below the stack pointer that the function began with.
    let (mut depth, mut record) = (0, None);
    for word in code {
        let is = |mask: u32, bits: u32| word & mask == bits;
        // A loop that touches each page of a large frame.
        if is(0xff80_0000, 0x5480_0000) {
            return None;
        }
        let goes_elsewhere = is(0x7c00_0000, 0x1400_0000)
            || is(0xff00_0000, 0x5400_0000)
            || is(0x7c00_0000, 0x3400_0000)
            || is(0xfe00_0000, 0xd600_0000);
        if goes_elsewhere {
            break;
        }
        let pairs = signed(word, 15, 7) * 8;
        // `sub sp, sp, #n`; `stp` of other registers, and `str`, that move the pointer before.
        if is(0xff80_03ff, 0xd100_03ff) {
            depth += i64::from(word >> 10 & 0xfff) << (12 * (word >> 22 & 1));
        } else if is(0xffc0_03e0, 0xa980_03e0) || is(0xffc0_03e0, 0x6d80_03e0) {
            depth -= pairs;
        } else if is(0xffe0_0fe0, 0xf800_0fe0) || is(0xffe0_0fe0, 0xfc00_0fe0) {
            depth -= signed(word, 12, 9);
        } else if is(0x3f80_001f, 0x1100_001f)
            || is(0x3fe0_001f, 0x0b20_001f)
            || is(0x7f80_001f, 0x1200_001f)
            || is(0xffa0_f01f, 0x0420_501f)
        {
            // Rounded, by a number that is not in the code, or by the length of a vector.
            return None;
        }
        // `stp x29, x30, [sp, #n]`, and with `!` behind it.
        if is(0xffc0_7fff, 0xa900_7bfd) {
            record = Some(depth - pairs);
        } else if is(0xffc0_7fff, 0xa980_7bfd) {
            record = Some(depth);
        }
    }
    u64::try_from(depth - record?).ok()
}

/// The number in `bits` of a word from bit `from` on.
const fn signed(word: u32, from: u32, bits: u32) -> i64 {
    let top = 32 - bits;
    ((word >> from << top) as i32 >> top) as i64
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
    use super::{copy, ends_with_call, record_of_callee, record_place};

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

    #[test]
    fn a_record_is_found_by_the_first_instructions() {
        // `sub sp, sp, #96`, `stp x29, x30, [sp, #80]`, `add x29, sp, #80`, `ret`.
        let by_rust = [0xd101_83ff, 0xa905_7bfd, 0x9101_43fd, 0xd65f_03c0];
        // `paciasp`, `stp x29, x30, [sp, #-48]!`, `mov x29, sp`, `stp x19, x20, [sp, #16]`.
        let by_c = [0xd503_233f, 0xa9bd_7bfd, 0x9100_03fd, 0xa901_53f3];
        // `stp x29, x30, [sp, #-32]!`, `str x28, [sp, #16]`, `sub sp, sp, #1, lsl #12`, `sub sp,
        // sp, #16`.
        let large = [0xa9be_7bfd, 0xf900_0bfc, 0xd140_07ff, 0xd100_43ff];
        // `str x30, [sp, #-16]!`; `stp d9, d8, [sp, #-32]!`, `stp x29, x30, [sp, #16]`.
        let (none, floats) = ([0xf81f_0ffe], [0x6dbe_23e9, 0xa901_7bfd]);
        // `cbz x0, …` before it; `and sp, x9, #0xffff_ffff_ffff_ffe0` behind it.
        let (behind, rounded) = ([0xb400_0040, 0xa9bf_7bfd], [0xa9bf_7bfd, 0x927b_e93f]);
        // Behind it `addvl sp, sp, #-1`; `b.ne` to before it.
        let (vectors, probes) = ([0xa9bf_7bfd, 0x043f_57ff], [0xa9bf_7bfd, 0x54ff_ffc1]);
        for (code, right) in [
            (&by_rust[..], Some(80)),
            (&by_c, Some(0)),
            (&large, Some(4112)),
            (&none, None),
            (&floats, Some(16)),
            (&behind, None),
            (&rounded, None),
            (&vectors, None),
            (&probes, None),
        ] {
            assert_eq!(record_place(code.iter().copied()), right, "{code:x?}");
        }
    }

    #[test]
    fn a_direct_call_leads_to_a_function() {
        // `bl` one instruction back, to `stp x29, x30, [sp, #-16]!`.
        let code: Vec<u8> =
            [0xa9bf_7bfd_u32, 0x97ff_ffff].iter().flat_map(|word| word.to_le_bytes()).collect();
        let read = |at: u64, into: &mut [u8]| {
            let from = code.get(at as usize - 0x1000..).unwrap_or_default();
            let length = from.len().min(into.len());
            into[..length].copy_from_slice(&from[..length]);
            length
        };
        assert_eq!(record_of_callee(0x1008, read), Some(0));
        assert_eq!(record_of_callee(0x1004, read), None, "no call");
        assert_eq!(record_of_callee(0, read), None);
    }
}
