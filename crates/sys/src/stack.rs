//! The stack of the calling thread by frame pointers, for signal handlers.
//!
//! A function that keeps a frame pointer stores its caller's at `[fp]`, and its return address
//! behind that. Code that keeps none leaves any value in the register. So every address is checked
//! before it is followed: it must be aligned, lie above the last one, and be no further from the
//! stack pointer than a stack is long. Memory is read by [`crate::peek`], so a wrong address that
//! passes the checks ends the walk and not the process.
//!
//! # Cost
//!
//! Frames are read in windows of half a kilobyte: a few system calls for a usual stack.
//!
//! # Async-signal-safety
//!
//! The same as [`crate::peek`]. Takes less than a kilobyte of the stack.
//!
//! # References
//!
//! System V ABI for x86-64, 3.2.2.
//!
//! # Safety
//!
//! The unsafe code reads two registers.
#![allow(unsafe_code)]

use crate::peek;

/// The bytes that are read at once.
const WINDOW: usize = 512;

/// The longest stack: that of a main thread without a limit may be longer, and is cut.
const LONGEST: usize = 64 << 20;

/// One frame: the caller's frame pointer, and the return address.
const FRAME: usize = 2 * size_of::<usize>();

/// The lowest address that code may have.
const FIRST_PAGE: usize = 4096;

/// The frame pointer and the stack pointer of the calling function. The first address of a [`walk`]
/// from them is the function's return address. If it keeps no frame pointer the walk begins with
/// the next caller that does, or finds nothing.
#[inline(always)]
pub fn here() -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    {
        let (frame, stack);
        // SAFETY: copies two registers.
        unsafe {
            std::arch::asm!("mov {}, rbp", "mov {}, rsp", out(reg) frame, out(reg) stack,
                options(nomem, nostack, preserves_flags));
        }
        (frame, stack)
    }
    #[cfg(not(target_arch = "x86_64"))]
    (0, 0)
}

/// Writes return addresses, the caller's first, from the frame and the stack pointer of the code
/// that a signal has interrupted. Returns their number. If a function has not set up its frame yet,
/// or has left it already, its caller is missing.
pub fn walk(frame: usize, stack: usize, into: &mut [usize]) -> usize {
    let mut window = [0; WINDOW];
    let (mut begins, mut filled) = (0, 0);
    let (mut at, mut above) = (frame, stack);
    for (found, place) in into.iter_mut().enumerate() {
        let is_frame = at.is_multiple_of(size_of::<usize>()) && at >= above && at - stack <= LONGEST;
        if !is_frame {
            return found;
        }
        if at < begins || at + FRAME > begins + filled {
            begins = at;
            filled = peek::copy_some(at, &mut window);
            if filled < FRAME {
                return found;
            }
        }
        let word = |offset: usize| {
            let bytes = window[at - begins + offset..].first_chunk().copied().unwrap_or_default();
            usize::from_ne_bytes(bytes)
        };
        let (next, returns_to) = (word(0), word(size_of::<usize>()));
        if returns_to < FIRST_PAGE {
            return found;
        }
        *place = returns_to;
        above = at + FRAME;
        at = next;
    }
    into.len()
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64", not(miri)))]
mod tests {
    use super::*;

    /// Frames in an array, linked as the compiler links them.
    fn frames(words: usize, links: &[(usize, usize, usize)]) -> Vec<usize> {
        let mut stack = vec![0; words];
        let base = stack.as_ptr() as usize;
        for &(at, next, returns_to) in links {
            stack[at] = base + 8 * next;
            stack[at + 1] = returns_to;
        }
        stack
    }

    fn walked(stack: &[usize], first: usize) -> Vec<usize> {
        let base = stack.as_ptr() as usize;
        let mut found = [0; 16];
        let count = walk(base + 8 * first, base, &mut found);
        found[..count].to_vec()
    }

    #[test]
    fn linked_frames_are_followed_to_the_end() {
        let stack = frames(512, &[(2, 10, 0x1111), (10, 300, 0x2222), (300, 400, 0x3333), (400, 0, 0)]);
        assert_eq!(walked(&stack, 2), [0x1111, 0x2222, 0x3333]);
    }

    #[test]
    fn no_link_leads_back_or_far() {
        for bad in [(2, 2, 0x1111), (2, 0, 0x1111), (2, 1 << 30, 0x1111)] {
            assert_eq!(walked(&frames(16, &[bad]), 2), [0x1111]);
        }
        let stack = frames(16, &[(2, 6, 0x1111)]);
        assert_eq!(walk(stack.as_ptr() as usize + 20, stack.as_ptr() as usize, &mut [0; 4]), 0, "unaligned");
        assert_eq!(walk(8, 0, &mut [0; 4]), 0, "unmapped");
    }

    #[test]
    fn a_short_list_is_filled() {
        let links: Vec<_> = (0..20).map(|n| (4 * n, 4 * (n + 1), 0x5000 + n)).collect();
        assert_eq!(walked(&frames(100, &links), 0).len(), 16);
    }
}
