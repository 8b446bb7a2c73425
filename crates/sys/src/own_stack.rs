//! The bounds of the calling thread's stack.
//!
//! Within them memory is read by plain loads: an address between the stack pointer and the end of
//! the stack can be read while the thread runs, even if it comes from a wrong register. Outside of
//! them (a fiber, an alternate stack, a thread that was made without the C library) [`crate::peek`]
//! reads with the kernel's help.
//!
//! # Bounds
//!
//! The C library puts a thread's control block, of which the thread pointer is the beginning or the
//! end, at the upper end of its stack. The block also contains the bounds of the stack, in fields
//! that have no public name. They are found by example: a thread asks the library for its stack,
//! and searches its own block for the answer; every thread's block has the fields at the same
//! offset. On a stack that the host has made itself, or where no such field is found, memory is
//! copied by the kernel.
//!
//! The first thread's stack has the kernel's random bytes above all frames. It grows downwards, so
//! memory between the stack pointer and those bytes is the stack if it can be read. Each page is
//! checked once by a system call. The kernel keeps other mappings at a distance from it.
//!
//! # Async-signal-safety
//!
//! None: [`from`] uses a thread-local.
//!
//! # References
//!
//! `pthread_getattr_np(3)`; glibc `nptl/descr.h`: `stackblock`.
//!
//! # Safety
//!
//! The unsafe code reads the auxiliary vector, asks the C library for the calling thread's stack,
//! and reads words of its control block, and of its stack, that are readable.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use crate::arch;
use crate::brief::BriefFile;
use crate::process::identity;
use crate::readable::is_readable;
use crate::rseq::thread_pointer;
use crate::signals;
use crate::sync::answer;

const WORD: usize = size_of::<usize>();

/// The stack of the thread that learns, and how long that thread is waited for.
const STACK: usize = 128 * 1024;
const PATIENCE: Duration = Duration::from_secs(1);

/// The deepest stack of the first thread that is asked about.
const DEEPEST: usize = 1 << 20;

/// The distance from the thread pointer to the words; 0 while it is not known.
static PLACE: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    /// The part of the own stack that is known.
    static KNOWN: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// The stack as a control block describes it: its first address, its length, and the length of the
/// guard, which is included.
pub type Words = [usize; 3];

/// Finds the offset of the fields, once for a process. Until then only the first thread's stack is
/// known.
///
/// # Cost
///
/// Some system calls. On the first thread, whose block does not have the fields, also a short-lived
/// thread.
pub fn learn() {
    if place().is_some() {
        return;
    }
    if identity::tid() != identity::pid() {
        return learn_here();
    }
    let (learned, learns) = answer();
    let learn = move || {
        learn_here();
        learned.give(());
    };
    // If no thread can be started, stacks are copied by the kernel.
    if signals::spawn("dormouse-stack", STACK, learn).is_ok() {
        let _ = learns.wait(PATIENCE);
    }
}

/// The offset of the fields from the thread pointer, if it is known.
pub fn place() -> Option<isize> {
    Some(PLACE.load(Ordering::Relaxed)).filter(|&place| place != 0)
}

fn learn_here() {
    PLACE.store(find().unwrap_or(0), Ordering::Relaxed);
}

fn find() -> Option<isize> {
    let known = bounds_of(own_words()?)?;
    let block = arch::control_block()?;
    let mut bytes = vec![0; block.len()];
    // Memory may end behind the block.
    let length = BriefFile::open("/proc/self/mem").ok()?.read_at(&mut bytes, block.start as u64).ok()?;
    let words: Vec<usize> = words(&bytes[..length]).collect();
    // By the bounds alone: the library may make a longer guard than it reports (64 KiB on arm64).
    let is_it = |there: &[usize]| there.first_chunk().and_then(|words| bounds_of(*words)) == Some(known);
    let mut places = words.windows(size_of::<Words>() / WORD).enumerate().filter(|(_, there)| is_it(there));
    let (place, _) = places.next()?;
    let place = (block.start + place * WORD).wrapping_sub(thread_pointer() as usize);
    places.next().is_none().then_some(place.cast_signed())
}

/// Interprets bytes as words.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes.chunks_exact(WORD).map(|word| usize::from_ne_bytes(word.try_into().unwrap_or_default()))
}

/// The stack of the calling thread, as the C library reports it.
pub fn own_words() -> Option<Words> {
    if cfg!(miri) {
        return None;
    }
    // SAFETY: valid places; the attributes are read and destroyed once they are there.
    unsafe {
        let mut attributes = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return None;
        }
        let (mut low, mut length, mut guard) = (std::ptr::null_mut(), 0, 0);
        libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut length);
        libc::pthread_attr_getguardsize(&raw const attributes, &raw mut guard);
        libc::pthread_attr_destroy(&raw mut attributes);
        // The answer leaves out the guard.
        Some([low.addr().checked_sub(guard)?, length + guard, guard])
    }
}

/// The first address of the stack without the guard, and its end.
fn bounds_of([start, length, guard]: Words) -> Option<(usize, usize)> {
    Some((start.checked_add(guard)?, start.checked_add(length)?))
}

/// The range of the stack, without the guard, from the fields of the control block at `block`.
pub fn stack_of(words: Words, block: usize) -> Option<Range<usize>> {
    let (low, end) = bounds_of(words)?;
    (low..end).contains(&block).then_some(low..block)
}

/// The part of the thread's own stack that can be read from `stack`, its stack pointer, on. Empty
/// if the thread is on another stack, or if its own is unknown.
///
/// # Cost
///
/// A system call at a thread's first call; on the first thread one for each page of the stack that
/// no earlier call has checked.
pub fn from(stack: usize) -> Range<usize> {
    let (low, high) = KNOWN.get();
    if (low..high).contains(&stack) {
        return stack..high;
    }
    if identity::tid() == identity::pid() && high == 0 || high == random_bytes() {
        return first_threads(stack, low);
    }
    if high == 0
        && let Some(own) = own()
    {
        KNOWN.set((own.start, own.end));
        return if own.contains(&stack) { stack..own.end } else { 0..0 };
    }
    0..0
}

/// The calling thread's own stack, by its control block.
fn own() -> Option<Range<usize>> {
    let block = thread_pointer() as usize;
    let at = block.checked_add_signed(place()?)?;
    // A thread that the C library has not made may have a shorter block.
    if !is_readable(at..at + size_of::<Words>()) {
        return None;
    }
    // SAFETY: can be read, as has just been found out, and words are aligned in a block.
    let words = unsafe { std::ptr::with_exposed_provenance::<Words>(at).read_volatile() };
    stack_of(words, block)
}

fn first_threads(stack: usize, low: usize) -> Range<usize> {
    let end = random_bytes();
    if stack >= end || end - stack > DEEPEST {
        return 0..0;
    }
    // The part above was found before.
    let unknown = stack..if low != 0 && stack < low { low } else { end };
    if !is_readable(unknown) {
        return 0..0;
    }
    KNOWN.set((stack, end));
    stack..end
}

/// An address above all frames of the first thread.
fn random_bytes() -> usize {
    // SAFETY: looks up a list that the kernel has made.
    unsafe { libc::getauxval(libc::AT_RANDOM) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stack range of a frame below the caller's.
    #[inline(never)]
    fn deep() -> Range<usize> {
        // A frame of its own, wherever the caller keeps its locals.
        let bytes = std::hint::black_box([0_u8; 16_000]);
        from((&raw const bytes[0]).addr())
    }

    #[test]
    fn own_stacks_are_known_up_to_their_ends() {
        std::thread::spawn(|| {
            learn();
            let local = 0_u8;
            let here = (&raw const local).addr();
            let own = from(here);
            assert_eq!(own.start, here);
            let deeper = deep();
            assert!(deeper.start < here && deeper.end == own.end, "{deeper:?} {own:?}");
            assert_eq!(from(here), own);
            assert!(from(own.end).is_empty());
            let [start, _, guard] = own_words().unwrap();
            assert!(from(start + guard).start == start + guard && from(start + guard - 1).is_empty());
        })
        .join()
        .unwrap();
    }
}
