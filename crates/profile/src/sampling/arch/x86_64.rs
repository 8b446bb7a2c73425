//! x86-64.
//!
//! # Safety
//!
//! The unsafe code is an instruction that copies, and a handler, which the kernel calls.
#![allow(unsafe_code)]

/// The longest call has this many bytes.
pub(in crate::sampling) const CALL: usize = 7;

/// Whether code that ends with these bytes ends with a call.
///
/// # References
///
/// Intel SDM, volume 2, `CALL`: `E8` with a distance, `FF /2` with a register or an address.
pub(in crate::sampling) fn ends_with_call(code: &[u8]) -> bool {
    let at = |back: usize| code.len().checked_sub(back).map(|at| code[at]);
    if at(5) == Some(0xe8) {
        return true;
    }
    // By the length of the whole: the byte after `FF` determines the kind of call, and what
    // follows.
    (2..=7).any(|length| {
        let (Some(0xff), Some(form)) = (at(length), at(length - 1)) else { return false };
        let (mode, operation, base) = (form >> 6, form >> 3 & 7, form & 7);
        let scaled = usize::from(mode != 3 && base == 4);
        let distance = match (mode, base) {
            (0, 5) | (2, _) => 4,
            (1, _) => 1,
            _ => 0,
        };
        operation == 2 && length == 2 + scaled + distance
    })
}

/// `None`: the stack pointer of a thread that sleeps leads to each caller.
pub(in crate::sampling) fn record_of_callee(_: u64, _: impl FnMut(u64, &mut [u8]) -> usize) -> Option<u64> {
    None
}

/// Copies memory by one instruction: neither a checker that has replaced `memcpy` nor the dynamic
/// linker is involved.
///
/// # Safety
///
/// The bytes can be read, and there is room for them. In a handler the kernel has cleared the
/// direction flag, as the ABI requires.
#[inline(always)]
pub(in crate::sampling) unsafe fn copy(from: usize, into: *mut u8, length: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rsi") from => _,
            inout("rdi") into => _,
            options(nostack, preserves_flags),
        );
    }
}

/// The instructions of [`marking_entry!`](super::marking_entry).
macro_rules! marking_code {
    () => {
        dormouse_sys::assembly!(
            "cmp dword ptr [rsi + {code}], {timer}",
            "jne {go_on}",
            "mov eax, dword ptr [rsi + {value}]",
            "mov ecx, dword ptr [rsi + {value} + 4]",
            "cmp eax, {last}",
            "ja {go_on}",
            "cmp ecx, {first}",
            "jb {go_on}",
            "shl rax, {shift}",
            "lea r8, [rip + {table}]",
            "add rax, r8",
            // A timer that has ended meanwhile had another generation.
            "cmp ecx, dword ptr [rax + {generation}]",
            "jne 2f",
            "mov byte ptr [rax + {mark}], 1",
            "lock inc dword ptr [rip + {count}]",
            "2:",
            "ret",
        )
    };
}
pub(in crate::sampling) use marking_code;

#[cfg(test)]
mod tests {
    use super::ends_with_call;

    #[test]
    fn calls_are_told_from_other_code() {
        let calls: [&[u8]; 8] = [
            &[0xe8, 1, 2, 3, 4],
            &[0xff, 0xd0],
            &[0x41, 0xff, 0xd3],
            &[0xff, 0x15, 1, 2, 3, 4],
            &[0xff, 0x50, 0x18],
            &[0xff, 0x54, 0x24, 8],
            &[0xff, 0x90, 1, 2, 3, 4],
            &[0xff, 0x14, 0xc8],
        ];
        for call in calls {
            let code = [&[0x90; 7], call].concat();
            assert!(ends_with_call(&code), "{call:x?}");
            assert!(!ends_with_call(&[&code[..], &[0x90]].concat()) || call.len() == 2, "{call:x?}");
        }
        for other in [&[0x90; 8][..], &[0xff, 0xe0], &[0xff, 0x25, 1, 2, 3, 4], &[0xff], &[]] {
            assert!(!ends_with_call(other), "{other:x?}");
        }
    }
}
