//! A bounded queue for many writers and one reader (Vyukov's), for records that signal handlers
//! leave.
//!
//! Each cell has a turn, which counts up: even when the cell is free for the record of its lap, odd
//! when it contains one. A writer takes a position by an exchange, writes in place, and makes the
//! turn odd. The reader reads in order, in place, and makes the turn even. Memory that is all zeros
//! is an empty queue. A record that finds the queue full is dropped and counted.
//!
//! A writer may never come back: a filter of system calls ends its thread, or another handler
//! interrupts it and leaves by `siglongjmp`. Then its position is never filled, and no later record
//! is read. [`Queue::is_whole`] detects that.
//!
//! Core dumps leave the cells out, because a copy of a stack may contain data that its thread has
//! erased since.
//!
//! # Invariants
//!
//! 1. A cell is written by the thread that took its position, between the exchange of `tail` and
//!    the store of the odd turn; it is read by the reader, between that store and the store of the
//!    even turn.
//!
//! # Safety
//!
//! The unsafe code is the mapping and the access to its cells.
//!
//! # References
//!
//! D. Vyukov, "Bounded MPMC queue".
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arch;
use crate::resident::{is_mapped, is_unmapped};

#[repr(C, align(64))]
struct Cell<T> {
    turn: AtomicU64,
    record: UnsafeCell<T>,
}

/// A bounded queue for many writers and one reader: see the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Queue<T> {
    tail: AtomicU64,
    /// The position that is read next.
    head: AtomicU64,
    dropped: AtomicU64,
    /// A power of two.
    capacity: u64,
    cells: *const Cell<T>,
}

// SAFETY: the cells are accessed by their turns, by invariant 1.
unsafe impl<T: Copy + Send> Send for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Send> Sync for Queue<T> {}

impl<T: Copy> Queue<T> {
    /// Maps a queue for at least `records` records, with all its memory: a thread that leaves a
    /// record takes no page fault.
    ///
    /// # Errors
    ///
    /// The kernel's, which has no memory.
    pub fn map(records: usize) -> io::Result<Self> {
        let capacity = records.next_power_of_two();
        let length = capacity * size_of::<Cell<T>>();
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_POPULATE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, read_write, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a hint about the mapping. A kernel that does not support it refuses it.
        unsafe { libc::madvise(start, length, libc::MADV_DONTDUMP) };
        is_mapped(start.addr(), length);
        let [tail, head, dropped] = [const { AtomicU64::new(0) }; 3];
        Ok(Self { tail, head, dropped, capacity: capacity as u64, cells: start.cast::<Cell<T>>() })
    }

    /// How many records there is room for.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The number of records that found the queue full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn cell(&self, position: u64) -> &Cell<T> {
        // SAFETY: `map` made that many cells, which are valid as zeros, and stay until the queue is
        // dropped. The record inside is not read before it is written.
        unsafe { &*self.cells.add((position & (self.capacity - 1)) as usize) }
    }

    /// The turn of a position's cell when it is free for it.
    fn free_turn(&self, position: u64) -> u64 {
        position / self.capacity * 2
    }

    /// Prefetches the memory of the next cell, as much as a record of usual depth takes, while the
    /// caller does other work: the reader's processor used that memory last.
    #[inline]
    pub fn prefetch(&self) {
        const LINE: usize = 64;
        const LINES: usize = 6;
        let first = ptr::from_ref(self.cell(self.tail.load(Ordering::Relaxed))).cast::<u8>();
        for line in 0..LINES.min(size_of::<Cell<T>>() / LINE) {
            arch::prefetch_for_write(first.wrapping_add(line * LINE));
        }
    }

    /// Leaves a copy of a record. Returns false if there was no room. Any thread may call it, also
    /// in a signal handler.
    pub fn put(&self, record: T) -> bool {
        // SAFETY: writes all of it.
        unsafe { self.push(|place| place.write(record)) }
    }

    /// Has `write` write a record in place. Returns false if there was no room. Any thread may call
    /// it, also in a signal handler.
    ///
    /// # Safety
    ///
    /// `write` returns, and initialises each part of the record that the reader will use. The other
    /// parts are zero, or from an earlier record.
    pub unsafe fn push(&self, write: impl FnOnce(*mut T)) -> bool {
        let mut position = self.tail.load(Ordering::Relaxed);
        let cell = loop {
            let (cell, free) = (self.cell(position), self.free_turn(position));
            // Acquire: pairs with the store in `pop`.
            let turn = cell.turn.load(Ordering::Acquire);
            if turn < free {
                // Its record of the last lap is still there.
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            if turn > free {
                // Another handler has taken the position.
                position = self.tail.load(Ordering::Relaxed);
                continue;
            }
            // Relaxed: the turn orders the cell's contents.
            match self.tail.compare_exchange(position, position + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break cell,
                Err(other) => position = other,
            }
        };
        write(cell.record.get());
        // Release: pairs with the load in `pop`.
        cell.turn.store(self.free_turn(position) + 1, Ordering::Release);
        true
    }

    /// Discards all records, and returns whether nothing is left: a record that its thread never
    /// finishes keeps all later ones. One thread at a time calls it.
    pub fn is_whole(&self) -> bool {
        self.drain(|_| ());
        self.head.load(Ordering::Relaxed) == self.tail.load(Ordering::Relaxed)
    }

    /// Reads the next record, if it is there; `read` may erase it. One thread at a time calls it.
    pub fn pop<R>(&self, read: impl FnOnce(&mut T) -> R) -> Option<R> {
        let head = self.head.load(Ordering::Relaxed);
        let (cell, full) = (self.cell(head), self.free_turn(head) + 1);
        // Acquire: pairs with the store in `push`.
        if cell.turn.load(Ordering::Acquire) != full {
            return None;
        }
        // SAFETY: by invariant 1, and `push` had the used parts initialised.
        let answer = read(unsafe { &mut *cell.record.get() });
        // Release: pairs with the load in `push`.
        cell.turn.store(full + 1, Ordering::Release);
        self.head.store(head + 1, Ordering::Relaxed);
        Some(answer)
    }

    /// Reads all records, but no more than the queue has room for: records may come as fast as they
    /// are read. One thread at a time calls it.
    pub fn drain(&self, mut read: impl FnMut(&mut T)) {
        let _ = (0..self.capacity).all(|_| self.pop(&mut read).is_some());
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        let length = self.capacity as usize * size_of::<Cell<T>>();
        is_unmapped(self.cells.addr(), length);
        // SAFETY: of `map`, and nobody has the queue any more.
        unsafe { libc::munmap(self.cells.cast_mut().cast(), length) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;

    use super::*;

    const WORDS: usize = 40;

    type Record = [u64; WORDS];

    fn push(queue: &Queue<Record>, value: u64) -> bool {
        queue.put([value; WORDS])
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queue = &Queue::<Record>::map(8).unwrap();
        for lap in 0..5 {
            for value in 0..8 {
                assert!(push(queue, lap * 8 + value));
            }
            assert!(!push(queue, 1000));
            assert_eq!(queue.dropped(), lap + 1);
            for value in 0..8 {
                assert_eq!(queue.pop(|record| record[0]), Some(lap * 8 + value));
            }
            assert_eq!(queue.pop(|record| record[0]), None);
        }
    }

    #[test]
    fn a_drain_ends_though_records_come_as_fast() {
        let queue = &Queue::<Record>::map(8).unwrap();
        push(queue, 0);
        let mut seen = 0;
        queue.drain(|record| {
            seen += 1;
            push(queue, record[0] + 1);
        });
        assert_eq!(seen, 8);
    }

    #[test]
    fn a_record_that_is_not_finished_is_noticed() {
        let queue = &Queue::<Record>::map(8).unwrap();
        push(queue, 1);
        assert!(queue.is_whole());
        let unfinished = std::thread::scope(|scope| {
            // SAFETY: never returns.
            scope.spawn(|| unsafe { queue.push(|_| panic!("ended in the midst")) }).join()
        });
        assert!(unfinished.is_err());
        push(queue, 2);
        assert!(!queue.is_whole());
        assert_eq!(queue.pop(|record| record[0]), None);
    }

    #[test]
    fn records_of_many_threads_arrive_whole() {
        const EACH: u64 = 20_000;
        let queue = &Queue::<Record>::map(64).unwrap();
        let over = AtomicBool::new(false);
        let mut seen: HashMap<u64, u64> = HashMap::new();
        let mut count = 0;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4_u64)
                .map(|thread| {
                    scope.spawn(move || (0..EACH).filter(|n| push(queue, thread << 32 | n)).count() as u64)
                })
                .collect();
            let over = &over;
            let waits = scope.spawn(move || {
                let pushed: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
                over.store(true, Ordering::Release);
                pushed
            });
            loop {
                let was_over = over.load(Ordering::Acquire);
                while let Some(value) = queue.pop(|record| {
                    assert!(record.iter().all(|&word| word == record[0]));
                    record[0]
                }) {
                    count += 1;
                    let (thread, n) = (value >> 32, value & 0xffff_ffff);
                    // Each thread's in order.
                    assert!(seen.insert(thread, n).is_none_or(|before| before < n));
                }
                if was_over {
                    break;
                }
            }
            assert_eq!(waits.join().unwrap(), count);
        });
        assert_eq!(count + queue.dropped(), 4 * EACH);
        // As many as there is room for, should the machine give this thread no time.
        assert!(count >= 64);
    }
}
