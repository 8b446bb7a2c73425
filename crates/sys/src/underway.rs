//! A mark that a thread is in the middle of a section of code, for the signal handlers of the
//! thread.
//!
//! A handler may interrupt the section, and then must not begin it again. But a handler may also
//! never return, by `siglongjmp`, and then the interrupted section never ends. A flag would stay
//! set for good. So the mark is the stack address of the section's frame: the stack grows down, so
//! code at or above that address runs after the frame was left.
//!
//! | the code that finds the mark | is answered |
//! |---|---|
//! | code at or above the address, on the same stack | it was left: begin |
//! | code below it: a handler over it, or a deeper call after it was left | under way, `PATIENCE` times in a row; then begin |
//! | a handler on an alternate stack that lies below, or on the other side of the thread pointer | as for code below it |
//!
//! glibc and musl put the thread pointer above the stack of every thread but the first, and below
//! that of the first, which has nothing above it. So only an alternate stack that is part of the
//! thread's own stack (a local array), or lies above a stack that the host has made and switched to
//! itself, can be mistaken. Then the section and the handler may have overlapped: [`Underway::end`]
//! returns false to the interrupted one.
//!
//! # Async-signal-safety
//!
//! Everything here is signal-safe, and makes no system call.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use crate::rseq::thread_pointer;

/// The number of refusals in a row after which a mark counts as left behind. Handlers never nest
/// that deeply.
const PATIENCE: u64 = 1000;

/// The bits of an address that are compared; the refusals are counted in those above. (Addresses
/// with more bits are only where a program asks for them.)
const ADDRESS_BITS: u32 = 48;
const ADDRESS: u64 = (1 << ADDRESS_BITS) - 1;

/// The mark of one thread. No other thread may begin or end it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Underway {
    /// The address of the section's frame and the number of refusals since; 0 outside of sections.
    word: AtomicU64,
}

/// A section that [`Underway::begin`] began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun(u64);

impl Underway {
    /// A mark outside of sections.
    pub const fn new() -> Self {
        Self { word: AtomicU64::new(0) }
    }

    /// Begins a section; `None` in the middle of another one whose frame was not left.
    #[inline(always)]
    pub fn begin(&self) -> Option<Begun> {
        let frame = 0_u8;
        let here = (&raw const frame).addr() as u64 & ADDRESS;
        let word = self.word.load(Ordering::Relaxed);
        if word != 0 && !self.was_left(word, here) {
            return None;
        }
        self.word.store(here, Ordering::Relaxed);
        // Pairs with the fence in `end`, on this thread: a handler sees the mark and the section in
        // order.
        compiler_fence(Ordering::SeqCst);
        Some(Begun(here))
    }

    /// Ends the section. Returns false if a handler has taken it for one that was left.
    #[inline(always)]
    pub fn end(&self, begun: Begun) -> bool {
        compiler_fence(Ordering::SeqCst);
        let is_ours = self.is_ours(begun);
        if is_ours {
            self.word.store(0, Ordering::Relaxed);
        }
        is_ours
    }

    /// Whether the mark still belongs to this section.
    #[inline(always)]
    pub fn is_ours(&self, begun: Begun) -> bool {
        self.word.load(Ordering::Relaxed) & ADDRESS == begun.0
    }

    /// Clears the mark of a thread that has ended.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    #[cold]
    fn was_left(&self, word: u64, here: u64) -> bool {
        let (frame, refused) = (word & ADDRESS, word >> ADDRESS_BITS);
        let pointer = thread_pointer() & ADDRESS;
        if frame <= here && !(frame < pointer && pointer <= here) {
            return true;
        }
        if refused >= PATIENCE {
            return true;
        }
        self.word.store(word + (1 << ADDRESS_BITS), Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn deeper<T>(run: impl FnOnce() -> T) -> T {
        let frame = [0_u8; 512];
        std::hint::black_box(&frame);
        let result = run();
        std::hint::black_box(&frame);
        result
    }

    #[cfg(not(miri))] // Its frames lie in no order.
    #[test]
    fn no_section_begins_over_another() {
        let mark = Underway::new();
        let begun = mark.begin().unwrap();
        assert_eq!(deeper(|| mark.begin()), None);
        assert!(mark.end(begun));
        assert!(deeper(|| mark.begin()).is_some());
    }

    #[test]
    fn code_above_a_frame_knows_it_was_left() {
        let mark = Underway::new();
        let left = deeper(|| mark.begin()).unwrap();
        let begun = mark.begin().unwrap();
        assert!(!mark.end(left));
        assert!(mark.end(begun));
    }

    #[cfg(not(miri))] // Its frames lie in no order.
    #[test]
    fn a_mark_left_above_is_ignored_in_time() {
        let mark = Underway::new();
        mark.begin().unwrap();
        let refused = deeper(|| (0..10 * PATIENCE).take_while(|_| mark.begin().is_none()).count());
        assert_eq!(refused as u64, PATIENCE);
        assert!(deeper(|| mark.begin()).is_some());
    }

    #[test]
    fn stacks_around_a_thread_pointer_differ() {
        let pointer = thread_pointer();
        if pointer == 0 {
            return dormouse_testkit::skip("no thread pointer is known here");
        }
        let mark = Underway::new();
        assert!(!mark.was_left(pointer - 4096, pointer + 4096));
        assert!(mark.was_left(pointer + 4096, pointer + 8192));
        assert!(mark.was_left(pointer - 8192, pointer - 4096));
    }
}
