//! The instructions of a site. `src/macros/` has the assembler for sites by architecture. A new
//! architecture adds a file there, and its encoding here.

/// Whether sites are patched (true) or load the key (false).
pub const PATCHING: bool = cfg!(dormouse_patching);

/// Bytes of a site.
#[cfg(dormouse_patching)]
pub(crate) const LENGTH: usize = 5;

/// The bytes of a site at `code` that jumps to `target` (`jmp rel32`) or falls through
/// (`test eax, imm32`). They differ in the first byte alone.
#[cfg(dormouse_patching)]
pub(crate) fn encode(code: usize, target: usize, jump: bool) -> [u8; LENGTH] {
    const TEST_EAX_IMM32: u8 = 0xa9;
    const JMP_REL32: u8 = 0xe9;
    let displacement = target.wrapping_sub(code + LENGTH) as u32;
    let [a, b, c, d] = displacement.to_le_bytes();
    [if jump { JMP_REL32 } else { TEST_EAX_IMM32 }, a, b, c, d]
}
