//! The bounds of a thread's own stack, found from outside.
//!
//! The C library puts a thread's control block, in which the kernel knows an address, at the upper
//! end of its stack. The block also says where the stack begins, in words that have no name outside
//! of the library. They are found by example: the sampler's own thread asks the library for its
//! stack, and looks for the answer in its own block. Every thread's block has them at the same
//! distance. Where there is no such place no bounds are known, and the kernel copies stacks.
//!
//! Memory that can be read is no bound: a fiber's stack may lie right below, and what is between a
//! fiber's stack pointer and the control block may go while the thread runs.
//!
//! # References
//!
//! `pthread_getattr_np(3)`, `get_robust_list(2)`; glibc `nptl/descr.h`: `stackblock`.
//!
//! # Safety
//!
//! The unsafe code asks the kernel for an address of another thread's, and the C library for the
//! calling thread's stack. Control blocks are read through the kernel.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use dormouse_sys::process::identity;

use crate::mappings::Mappings;

/// No control block is longer.
const LONGEST: usize = 8192;

const WORD: usize = size_of::<usize>();

/// The stack as a control block has it: its first address, its length and that of the guard,
/// which is a part of it.
type Known = [usize; 3];

/// The place of the words in control blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    memory: Option<File>,
    /// Their distance from the address that the kernel knows.
    distance: Option<isize>,
}

impl Blocks {
    /// Finds the place, on a thread that the C library has made.
    pub(super) fn find() -> Self {
        let memory = File::open("/proc/self/mem").ok();
        let distance = memory.as_ref().and_then(distance);
        Self { memory, distance }
    }

    /// The bounds of a thread's own stack, if they are known.
    pub(super) fn bounds(&self, tid: u32, mappings: &Mappings) -> Option<Range<usize>> {
        if tid == identity::pid() {
            let stack = mappings.stack();
            return Some(stack.start as usize..stack.end as usize);
        }
        let block = control_block(tid)?;
        let mut bytes = [0; 3 * WORD];
        let at = block.checked_add_signed(self.distance?)?;
        self.memory.as_ref()?.read_exact_at(&mut bytes, at as u64).ok()?;
        let mut words = words(&bytes);
        let [start, length, guard]: Known = std::array::from_fn(|_| words.next().unwrap_or(0));
        let (low, end) = (start.checked_add(guard)?, start.checked_add(length)?);
        let is_right = (low..end).contains(&block) && mappings.readable_from(block as u64)? <= low as u64;
        is_right.then_some(low..block)
    }
}

/// The distance from the address that the kernel knows of the calling thread to the words on its
/// stack.
fn distance(memory: &File) -> Option<isize> {
    let known = own_stack()?;
    // SAFETY: gives the address of the calling thread's control block.
    let block = unsafe { libc::pthread_self() } as usize;
    let mut bytes = [0; LONGEST];
    // Memory may end behind the block.
    let length = memory.read_at(&mut bytes, block as u64).ok()?;
    let words: Vec<usize> = words(&bytes[..length]).collect();
    let mut places = words.windows(known.len()).enumerate().filter(|(_, there)| *there == known);
    let (place, _) = places.next()?;
    if places.next().is_some() {
        return None;
    }
    Some((block + place * WORD).wrapping_sub(control_block(identity::tid())?).cast_signed())
}

fn words(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes.chunks_exact(WORD).map(|word| usize::from_ne_bytes(word.try_into().unwrap_or_default()))
}

/// The stack of the calling thread, as the C library knows it.
fn own_stack() -> Option<Known> {
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

/// An address in the control block of a thread, if the C library has told the kernel one.
fn control_block(tid: u32) -> Option<usize> {
    let (mut head, mut length) = (0_usize, 0_usize);
    // SAFETY: valid places; a thread that does not exist is refused.
    let refused =
        unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut length) } != 0;
    (!refused && head != 0).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_of_other_threads_are_known() {
        std::thread::spawn(|| {
            let blocks = Blocks::find();
            let (tell, told) = std::sync::mpsc::channel();
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let run = move || {
                let [start, _, guard] = own_stack().unwrap();
                tell.send((identity::tid(), start + guard, control_block(identity::tid()))).unwrap();
                let _ = ended.recv();
            };
            let thread = std::thread::Builder::new().stack_size(300_000).spawn(run).unwrap();
            let (tid, low, block) = told.recv().unwrap();
            let mut mappings = Mappings::default();
            mappings.refresh();
            let found = blocks.bounds(tid, &mappings);
            drop(end);
            thread.join().unwrap();
            let Some(block) = block else {
                return dormouse_testkit::skip("the C library tells the kernel of no list");
            };
            assert_eq!(found, Some(low..block));
        })
        .join()
        .unwrap();
    }
}
