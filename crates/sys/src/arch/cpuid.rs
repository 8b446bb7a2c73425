//! The processor's report about itself.
//!
//! # Safety
//!
//! The unsafe code is an instruction that every processor of this architecture has.
#![allow(unsafe_code)]

use std::arch::x86_64::CpuidResult;

/// The result of `cpuid` for a leaf. Beyond the highest leaf it means nothing.
#[allow(unused_unsafe, reason = "the oldest compilers want it")]
pub fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: see the module.
    unsafe { std::arch::x86_64::__cpuid(leaf) }
}
