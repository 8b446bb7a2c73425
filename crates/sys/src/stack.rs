//! The registers of running code from which its callers are found.
//!
//! # Safety
//!
//! The unsafe code reads three registers.
#![allow(unsafe_code)]

/// The registers of a function that runs or has called another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFrame {
    /// An address inside of an instruction: the next one of code that was interrupted; for a
    /// caller, its call (one less than the return address).
    pub instruction: usize,
    /// The stack pointer.
    pub stack: usize,
    /// The register of the frame pointer, whatever the function uses it for.
    pub frame: usize,
}

/// The registers of the function into which this is inlined. (Zeros on other processors.)
#[inline(always)]
pub fn here() -> CallFrame {
    #[cfg(target_arch = "x86_64")]
    {
        let (instruction, stack, frame);
        // SAFETY: copies three registers.
        unsafe {
            std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp",
                out(reg) instruction, out(reg) stack, out(reg) frame,
                options(nomem, nostack, preserves_flags));
        }
        CallFrame { instruction, stack, frame }
    }
    #[cfg(not(target_arch = "x86_64"))]
    CallFrame { instruction: 0, stack: 0, frame: 0 }
}
