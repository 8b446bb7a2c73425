//! A copy of the stack of interrupted code, in which another thread later finds the callers by
//! unwind tables.
//!
//! Within the bounds of the thread's own stack memory is read by plain loads, as in
//! [`super::walk`]; elsewhere the kernel copies.
//!
//! # Async-signal-safety
//!
//! No allocation, lock, thread-local or function of the C library. A system call only outside of
//! the bounds.
//!
//! # Safety
//!
//! The unsafe code reads the calling thread's own stack.
#![allow(unsafe_code)]

use std::ops::Range;

use dormouse_sys::peek;
use dormouse_unwind::{CallFrame, CopyEnd, WalkEnd, own};

use super::arch;
use super::walk::Frames;

/// The most bytes of a stack. That of a worker of a usual service in release is some kilobytes
/// deep, a hundred frames of a build without optimisation are longer. `perf record` takes 8 KiB.
pub(super) const COPY: usize = 32 * 1024;

/// A copied piece of a stack.
#[derive(Debug, Clone, Copy)]
pub(super) struct StackCopy {
    pub(super) registers: CallFrame,
    length: u32,
    /// Whether the stack goes on behind it, or may do so.
    pub(super) is_cut: bool,
    bytes: [u8; COPY],
}

impl StackCopy {
    /// The memory from the stack pointer on.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..(self.length as usize).min(COPY)]
    }

    /// The functions in it, by the tables of this process. The copy is wiped. `room` is for them.
    pub(super) fn functions(&mut self, room: &mut Vec<u64>) -> Frames {
        let mut frames = Frames::NONE;
        let end = match own::follow(self.registers, self.bytes(), room) {
            CopyEnd::Outermost => WalkEnd::Outermost,
            CopyEnd::Copy if self.is_cut => WalkEnd::Enough,
            CopyEnd::Enough => WalkEnd::Enough,
            CopyEnd::NoTable => WalkEnd::NoTable,
            // Behind the stack there is no caller.
            CopyEnd::NoRule | CopyEnd::Copy => WalkEnd::NoRule,
            CopyEnd::Unlearned => WalkEnd::Unlearned,
        };
        frames.set(room, end);
        self.wipe();
        frames
    }

    /// Fills in a copy without a byte.
    ///
    /// # Safety
    ///
    /// `into` is a place for a copy.
    pub(super) unsafe fn leave_out(into: *mut Self, from: CallFrame) {
        // SAFETY: a place of the caller's.
        unsafe { ((*into).registers, (*into).length, (*into).is_cut) = (from, 0, true) };
    }

    /// Forgets the memory.
    pub(super) fn wipe(&mut self) {
        self.bytes[..(self.length as usize).min(COPY)].fill(0);
    }

    /// Fills in a copy of the stack from these registers on.
    ///
    /// # Safety
    ///
    /// `own` is empty, or can be read by the calling thread from the stack pointer on, if that lies
    /// in it. `into` is a place for a copy, in which every byte is a number.
    pub(super) unsafe fn fill(into: *mut Self, from: CallFrame, own: &Range<usize>) {
        // SAFETY: a place of the caller's, whose bytes have been initialised.
        let into = unsafe { &mut *into };
        into.registers = from;
        if !own.contains(&from.stack) {
            into.length = peek::copy_some(from.stack, &mut into.bytes) as u32;
            into.is_cut = true;
            return;
        }
        let there = own.end - from.stack;
        let length = there.min(COPY);
        into.length = length as u32;
        into.is_cut = there > COPY;
        // SAFETY: the caller guarantees that this part of the stack can be read, and there is room
        // for it.
        unsafe { arch::copy(from.stack, into.bytes.as_mut_ptr(), length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::queue::Queue;

    fn copy(stack: usize, own: &Range<usize>) -> Box<StackCopy> {
        let registers = CallFrame { instruction: 1, frame: 2, stack, link: 3 };
        let queue = Queue::<StackCopy>::map(1).unwrap();
        // SAFETY: the queue's place; the rest of the record is not read.
        unsafe {
            queue.push(|record| StackCopy::fill(&raw mut (*record).of_kind, registers, own));
        }
        queue.pop(|record| Box::new(record.of_kind)).unwrap()
    }

    #[test]
    fn a_copy_ends_with_its_stack_or_room() {
        let stack: Vec<u8> = (0..COPY + 100).map(|n| (n * 7) as u8).collect();
        let own = stack.as_ptr_range();
        let own = own.start.addr()..own.end.addr();
        for (from, length, is_cut) in [(0, COPY, true), (100, COPY, false), (101, COPY - 1, false)] {
            let copy = copy(own.start + from, &own);
            assert_eq!((copy.bytes(), copy.is_cut), (&stack[from..from + length], is_cut));
        }
    }

    #[test]
    fn other_stacks_are_copied_by_the_kernel() {
        let page = rustix::param::page_size();
        // SAFETY: a new mapping, whose second page is unmapped again.
        let start = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), 2 * page, rights, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            libc::munmap(start.byte_add(page), page);
            start.cast::<u8>().write_bytes(7, page);
            start as usize
        };
        let copy = copy(start + 100, &(0..0));
        assert!(copy.is_cut && copy.bytes().iter().all(|&byte| byte == 7));
        assert_eq!(copy.bytes().len(), page - 100);
    }
}
