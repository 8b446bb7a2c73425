//! The bounds of a thread's own stack, found from outside.
//!
//! The C library puts a thread's control block, of which the kernel has an address, at the upper
//! end of its stack. The block also contains the beginning of the stack, in fields that have no
//! public name, and which [`own_stack`] finds. If they are not found no bounds are known, and the
//! kernel copies stacks.
//!
//! That memory is readable is no bound: a fiber's stack may lie right below, and memory between a
//! fiber's stack pointer and the control block may be unmapped while the thread runs.
//!
//! # References
//!
//! `get_robust_list(2)`.
//!
//! # Safety
//!
//! The unsafe code reads from the kernel an address of another thread's. Control blocks are read
//! through the kernel.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use dormouse_sys::own_stack::{self, Words};
use dormouse_sys::process::identity;
use dormouse_sys::rseq::thread_pointer;

use crate::mappings::Mappings;

/// The place of the words in control blocks.
#[derive(Debug, Default)]
pub(in crate::sampling) struct Blocks {
    memory: Option<File>,
    /// Their distance from the address that the kernel has.
    distance: Option<isize>,
}

impl Blocks {
    /// Finds the place, on a thread that the C library has made.
    pub(in crate::sampling) fn find() -> Self {
        own_stack::learn();
        Self { memory: File::open("/proc/self/mem").ok(), distance: distance() }
    }

    /// The bounds of a thread's own stack, if they are known.
    pub(in crate::sampling) fn bounds(&self, tid: u32, mappings: &Mappings) -> Option<Range<usize>> {
        if tid == identity::pid() {
            let stack = mappings.stack();
            return Some(stack.start as usize..stack.end as usize);
        }
        let block = control_block(tid)?;
        let mut bytes = [0; size_of::<Words>()];
        let at = block.checked_add_signed(self.distance?)?;
        self.memory.as_ref()?.read_exact_at(&mut bytes, at as u64).ok()?;
        let mut words = own_stack::words(&bytes);
        let own = own_stack::stack_of(std::array::from_fn(|_| words.next().unwrap_or(0)), block)?;
        (mappings.readable_from(block as u64)? <= own.start as u64).then_some(own)
    }
}

/// The distance from the address that the kernel has of the calling thread to the fields on its
/// stack.
fn distance() -> Option<isize> {
    let words = (thread_pointer() as usize).checked_add_signed(own_stack::place()?)?;
    Some(words.wrapping_sub(control_block(identity::tid())?).cast_signed())
}

/// An address in the control block of a thread, if the C library has registered one with the
/// kernel.
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
                let [start, _, guard] = own_stack::own_words().unwrap();
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
