//! x86-64: `jmp rel32` and `test eax, imm32`, which differ in the first byte alone.
//!
//! # Safety
//!
//! The unsafe code is a function of two instructions, which returns a number.
#![allow(unsafe_code)]

use dormouse_sys::Capability;

/// Bytes of a site.
pub(crate) const LENGTH: usize = 5;

/// All in which the two instructions of a site differ; exchanged at once.
pub(crate) type Unit = u8;
pub(crate) type AtomicUnit = std::sync::atomic::AtomicU8;

/// Whether a site at `code` can jump to `target`.
#[inline]
pub(crate) fn reaches(code: usize, target: usize) -> bool {
    i32::try_from(target.wrapping_sub(code + LENGTH).cast_signed()).is_ok()
}

/// The bytes of a site at `code` that jumps to `target` (`jmp rel32`) or falls through
/// (`test eax, imm32`).
pub(crate) fn encode(code: usize, target: usize, jump: bool) -> [u8; LENGTH] {
    const TEST_EAX_IMM32: u8 = 0xa9;
    const JMP_REL32: u8 = 0xe9;
    let displacement = target.wrapping_sub(code + LENGTH) as u32;
    let [a, b, c, d] = displacement.to_le_bytes();
    [if jump { JMP_REL32 } else { TEST_EAX_IMM32 }, a, b, c, d]
}

/// Has processors fetch again what was stored at these addresses. Here they notice it themselves.
#[inline(always)]
pub(crate) fn fetch_again(_: impl Iterator<Item = usize> + Clone) {}

/// The wait in place of a barrier covers all cases.
pub(crate) const UNSETTLED: Option<&str> = None;

/// Returns [`SUBJECT`]'s number, which stands in its code.
#[unsafe(naked)]
pub(crate) extern "C" fn subject() -> u32 {
    std::arch::naked_asm!(".byte 0xb8, 1, 0, 0, 0", "ret")
}

/// The byte of [`subject`] that has the number, and what turns a 1 in it into a 2.
pub(crate) const SUBJECT: (usize, u8) = (1, 3);

/// The usual writer of a site's first byte, if that is a breakpoint instruction.
pub(crate) fn suspect(found: [u8; LENGTH]) -> Option<&'static str> {
    match found[0] {
        0xcc => {
            Some("cc is a breakpoint: a debugger's, a uprobe's (perf probe, bpftrace) or another patcher's")
        }
        0xe8 => Some("a call: the kernel's form of a uprobe on a nop, or a hook of another patcher"),
        _ => None,
    }
}

/// The emulator, where the processor that it shows has its name.
pub(crate) fn emulator() -> Option<&'static str> {
    let bytes = |leaf: u32| {
        let found = dormouse_sys::arch::cpuid(leaf);
        [found.eax, found.ebx, found.ecx, found.edx].map(u32::to_le_bytes).concat()
    };
    if bytes(0x4000_0000)[4..] == *b"TCGTCGTCGTCG" {
        return Some("qemu");
    }
    let has_brand = dormouse_sys::arch::cpuid(0x8000_0000).eax >= 0x8000_0002;
    (has_brand && bytes(0x8000_0002).starts_with(b"VirtualApple")).then_some("Rosetta")
}

/// The report on this processor.
pub(crate) fn processor() -> Capability {
    of(cpuid())
}

/// This processor's vendor and signature, as `cpuid` gives them.
fn cpuid() -> ([u8; 12], u32) {
    let (leaf, mut vendor) = (dormouse_sys::arch::cpuid(0), [0; 12]);
    for (part, register) in vendor.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
        part.copy_from_slice(&register.to_le_bytes());
    }
    (vendor, dormouse_sys::arch::cpuid(1).eax)
}

/// Family and model, as the vendors count them.
fn family_and_model(signature: u32) -> (u32, u32) {
    let bits = |from: u32, count: u32| signature >> from & ((1 << count) - 1);
    let base = bits(8, 4);
    let family = if base == 15 { base + bits(20, 8) } else { base };
    (family, if matches!(base, 6 | 15) { bits(16, 4) << 4 | bits(4, 4) } else { bits(4, 4) })
}

/// The word of a processor's vendor and of our tests on storing one byte of an instruction that
/// others run.
fn of((vendor, signature): ([u8; 12], u32)) -> Capability {
    let known = match &vendor {
        b"AuthenticAMD" | b"HygonGenuine" => "flip has run its stress tests on processors of this kind",
        b"GenuineIntel" => {
            "its architects have called the store of an int3 safe (DORMOUSE_KEYS=int3); flip relies on the behaviour that just-in-time compilers rely on"
        }
        _ => "flip has not been run on it; DORMOUSE_KEYS=int3 is the kernel's way",
    };
    let (vendor, (family, model)) = (vendor.escape_ascii(), family_and_model(signature));
    Capability::ok("keys.processor", format!("{vendor}, family {family:#x}, model {model:#x}: {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_reach_two_gigabytes() {
        let (code, end) = (1 << 40, (1 << 40) + LENGTH);
        for (target, is_reached) in [
            (end + 0x7fff_ffff, true),
            (end + 0x8000_0000, false),
            (end - 0x8000_0000, true),
            (end - 0x8000_0001, false),
        ] {
            assert_eq!(reaches(code, target), is_reached, "{target:#x}");
        }
    }

    #[test]
    fn a_signature_tells_family_and_model() {
        for (vendor, signature, family, model, said) in [
            (b"GenuineIntel", 0x000c_06f2, 6, 0xcf, "DORMOUSE_KEYS=int3"),
            (b"GenuineIntel", 0x0000_0f4a, 15, 4, "DORMOUSE_KEYS=int3"),
            (b"AuthenticAMD", 0x00a0_0f11, 0x19, 1, "stress tests"),
            (b"CentaurHauls", 0x0000_06fe, 6, 15, "not been run"),
        ] {
            assert_eq!(family_and_model(signature), (family, model));
            assert!(of((*vendor, signature)).detail.contains(said));
        }
    }

    #[test]
    fn this_processor_is_known_by_name() {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.split('\t').next() == Some(name)).unwrap();
            line.split(": ").nth(1).unwrap().to_owned()
        };
        let (vendor, signature) = cpuid();
        let (family, model) = family_and_model(signature);
        assert_eq!(vendor.escape_ascii().to_string(), field("vendor_id"));
        assert_eq!((family.to_string(), model.to_string()), (field("cpu family"), field("model")));
    }
}
