//! arm64.

/// The address behind the instruction that reads it.
macro_rules! behind_here {
    () => {{
        let here: u64;
        // SAFETY: reads the address of the next instruction.
        unsafe { std::arch::asm!("adr {}, . + 4", out(reg) here, options(nomem, nostack, preserves_flags)) };
        here
    }};
}
pub(crate) use behind_here;
