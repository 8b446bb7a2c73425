//! arm64: `nop` and `b`, of which the architecture says that one may be changed into the other
//! while processors run them: each runs the old or the new one. (ARM DDI 0487, B2.2.5.)
//!
//! A store does not reach instructions that were fetched before it. So the line is cleaned to the
//! point at which data and instructions are one, and the line of instructions is invalidated on all
//! processors ([`fetch_again`]). The barrier of the batch then has each processor drop what it has
//! fetched. A write through the memory file is cleaned by the kernel.
//!
//! # Safety
//!
//! The unsafe code is instructions that change no memory.
#![allow(unsafe_code)]

use std::arch::asm;

use dormouse_sys::Capability;

/// Bytes of a site.
pub(crate) const LENGTH: usize = 4;

/// All in which the two instructions of a site differ; exchanged at once.
pub(crate) type Unit = u32;
pub(crate) type AtomicUnit = std::sync::atomic::AtomicU32;

/// Whether a site at `code` can branch to `target`: 128 MB either way.
#[inline]
pub(crate) fn reaches(code: usize, target: usize) -> bool {
    let distance = target.wrapping_sub(code).cast_signed();
    (-(1 << 27)..1 << 27).contains(&distance) && distance % 4 == 0
}

/// The bytes of a site at `code` that jumps to `target` (`b`) or falls through (`nop`).
pub(crate) fn encode(code: usize, target: usize, jump: bool) -> [u8; LENGTH] {
    const NOP: u32 = 0xd503_201f;
    const B: u32 = 0x1400_0000;
    /// Instructions are counted, in 26 bits.
    const OFFSET: u32 = 0x03ff_ffff;
    let distance = (target.wrapping_sub(code) >> 2) as u32 & OFFSET;
    (if jump { B | distance } else { NOP }).to_le_bytes()
}

/// The steps by which processors fetch again what was stored. An emulator has no caches, so that
/// nothing but their order can be tested there.
trait Caches {
    /// Has a line of data reach the point at which data and instructions are one.
    fn clean(&mut self, address: usize);
    /// Has all processors forget a line of instructions.
    fn invalidate(&mut self, address: usize);
    /// Waits until both are done.
    fn wait(&mut self);
    /// Has this processor forget what it has fetched.
    fn forget(&mut self);
}

/// The processor's own.
struct Own;

impl Caches for Own {
    #[inline]
    fn clean(&mut self, address: usize) {
        // SAFETY: the line is mapped; no memory changes. Not `nomem`: the stores come before it.
        unsafe { asm!("dc cvau, {}", in(reg) address, options(nostack, preserves_flags)) };
    }

    #[inline]
    fn invalidate(&mut self, address: usize) {
        // SAFETY: as above.
        unsafe { asm!("ic ivau, {}", in(reg) address, options(nostack, preserves_flags)) };
    }

    #[inline]
    fn wait(&mut self) {
        // SAFETY: a barrier.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    }

    #[inline]
    fn forget(&mut self) {
        // SAFETY: a barrier.
        unsafe { asm!("isb", options(nostack, preserves_flags)) };
    }
}

/// Has processors fetch again what was stored at these addresses, which are mapped.
pub(crate) fn fetch_again(sites: impl Iterator<Item = usize> + Clone) {
    fetch_again_by(&mut Own, sites);
}

fn fetch_again_by(caches: &mut impl Caches, sites: impl Iterator<Item = usize> + Clone) {
    sites.clone().for_each(|site| caches.clean(site));
    caches.wait();
    sites.for_each(|site| caches.invalidate(site));
    caches.wait();
    caches.forget();
}

/// The case that the wait in place of a barrier does not cover.
pub(crate) const UNSETTLED: Option<&str> = Some(
    "on a processor without a tick (nohz_full) a thread may run old branches until it next enters the kernel",
);

/// Returns [`SUBJECT`]'s number, which stands in its code.
#[unsafe(naked)]
pub(crate) extern "C" fn subject() -> u32 {
    std::arch::naked_asm!("mov w0, #1", "ret")
}

/// The byte of [`subject`] that has the number, and what turns a 1 in it into a 2.
pub(crate) const SUBJECT: (usize, u8) = (0, 3 << 5);

/// The usual writer of a site, if the instruction there is a breakpoint.
pub(crate) fn suspect(found: [u8; LENGTH]) -> Option<&'static str> {
    /// `brk` without its number.
    const BRK: u32 = 0xd420_0000;
    let is_breakpoint = u32::from_le_bytes(found) & 0xffe0_001f == BRK;
    is_breakpoint.then_some(
        "brk is a breakpoint: a debugger's, a uprobe's (perf probe, bpftrace) or another patcher's",
    )
}

/// No emulator of this processor can be told from it.
pub(crate) fn emulator() -> Option<&'static str> {
    None
}

/// The report on this processor.
pub(crate) fn processor() -> Capability {
    Capability::ok("keys.processor", "arm64: the architecture lets nop and b change under running threads")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_cleaned_before_it_is_invalidated() {
        struct Trace(Vec<(&'static str, usize)>);
        impl Caches for Trace {
            fn clean(&mut self, address: usize) {
                self.0.push(("clean", address));
            }
            fn invalidate(&mut self, address: usize) {
                self.0.push(("invalidate", address));
            }
            fn wait(&mut self) {
                self.0.push(("wait", 0));
            }
            fn forget(&mut self) {
                self.0.push(("forget", 0));
            }
        }
        let mut trace = Trace(Vec::new());
        fetch_again_by(&mut trace, [0x1000, 0x2040].into_iter());
        let right = [
            ("clean", 0x1000),
            ("clean", 0x2040),
            ("wait", 0),
            ("invalidate", 0x1000),
            ("invalidate", 0x2040),
            ("wait", 0),
            ("forget", 0),
        ];
        assert_eq!(trace.0, right);
    }

    #[test]
    fn branches_lead_both_ways() {
        let word = |code, target| u32::from_le_bytes(encode(code, target, true));
        assert_eq!(word(0x1000, 0x1008), 0x1400_0002);
        assert_eq!(word(0x1008, 0x1000), 0x17ff_fffe);
        assert_eq!(u32::from_le_bytes(encode(0x1000, 0x1008, false)), 0xd503_201f);
    }

    #[test]
    fn branches_reach_128_megabytes() {
        let code = 1 << 40;
        for (target, word) in [(code + (1 << 27) - 4, 0x15ff_ffff_u32), (code - (1 << 27), 0x1600_0000)] {
            assert!(reaches(code, target));
            assert_eq!(u32::from_le_bytes(encode(code, target, true)), word);
        }
        for target in [code + (1 << 27), code - (1 << 27) - 4, code + (1 << 32), code + 2] {
            assert!(!reaches(code, target), "{target:#x}");
        }
    }

    #[test]
    fn breakpoints_are_told_by_their_instruction() {
        for breakpoint in [0xd420_0000_u32, 0xd420_00a0] {
            assert!(suspect(breakpoint.to_le_bytes()).is_some_and(|why| why.contains("breakpoint")));
        }
        assert_eq!(suspect(encode(0x1000, 0x1008, true)), None);
    }
}
