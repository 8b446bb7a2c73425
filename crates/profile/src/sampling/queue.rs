//! A queue of records of samples on their way from handlers to the sampler. Each kind has its own.
//!
//! CPU timers tick while their thread runs, so all threads together leave no more records per
//! second than processors have ticks. One bounded queue of fixed cells for the whole process is
//! therefore enough for any number of threads. A record that finds it full is dropped and counted,
//! and its CPU time is in the thread's next one. (Other kinds report what they lose.)
//!
//! Each cell has a turn, which counts up: even when it is free for the record of its lap, odd when
//! it contains one. A handler takes a position by an exchange, writes, and makes the turn odd. The
//! sampler reads in order, and makes it even. Memory that is all zeros is an empty queue. A
//! position that was taken is always filled, because signals are blocked, so no other handler can
//! interrupt this one and leave it. (But a filter of system calls may end a thread there. Then
//! later records are lost, and the next profile gets another queue: [`Queue::is_whole`].)
//!
//! It is mapped once and stays, because a handler may come late. Core dumps leave it out, because a
//! copy of a stack may contain data that its thread has erased since.
//!
//! # Invariants
//!
//! 1. A cell is written by the handler that took its position, between the exchange of `tail` and
//!    the store of the odd turn; it is read by the sampler, between that store and the store of the
//!    even turn.
//!
//! # Safety
//!
//! The unsafe code is the mapping, and the cells in it.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dormouse_sys::own_stack::WalkEnd;
use dormouse_sys::process::identity;

use super::walk::DEPTH;

/// A sample as a handler leaves it; `T` is the part that depends on its kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<T> {
    pub(super) of_kind: T,
    /// `CLOCK_MONOTONIC` at the last tick.
    pub(super) at_ns: u64,
    pub(super) group: u32,
    /// How many of the frames there are.
    pub(super) depth: u32,
    pub(super) end: WalkEnd,
    /// The innermost function is a library's, and the one that called that is not known.
    pub(super) lacks_caller: bool,
    /// Addresses inside of instructions, the innermost first.
    pub(super) frames: [usize; DEPTH],
}

#[repr(C, align(64))]
struct Cell<T> {
    turn: AtomicU64,
    record: UnsafeCell<Record<T>>,
}

/// The queue. Its cells lie behind it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Queue<T> {
    tail: AtomicU64,
    /// The position that the sampler reads next.
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
    /// Maps a queue for at least `records` records, for good, and with all its memory: a thread
    /// that leaves a record takes no page fault.
    pub(super) fn map(records: usize) -> io::Result<&'static Self> {
        let capacity = records.next_power_of_two();
        let length = size_of::<Self>() + capacity * size_of::<Cell<T>>();
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_POPULATE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, read_write, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a hint about the mapping. A kernel that does not support it refuses it.
        unsafe { libc::madvise(start, length, libc::MADV_DONTDUMP) };
        let queue = start.cast::<Self>();
        // SAFETY: the mapping is long enough, aligned to pages, and in no other use.
        unsafe {
            let cells = queue.add(1).cast::<Cell<T>>().cast_const();
            let [tail, head, dropped] = [const { AtomicU64::new(0) }; 3];
            queue.write(Self { tail, head, dropped, capacity: capacity as u64, cells });
            Ok(&*queue)
        }
    }

    /// How many records there is room for.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Records that found it full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn cell(&self, position: u64) -> &Cell<T> {
        // SAFETY: `map` made that many cells, which are valid as zeros, and stay. The record inside
        // is not read before it is written.
        unsafe { &*self.cells.add((position & (self.capacity - 1)) as usize) }
    }

    /// The turn of a position's cell when it is free for it.
    fn free_turn(&self, position: u64) -> u64 {
        position / self.capacity * 2
    }

    /// Asks for the memory of the next cell, which the sampler has read last, while there is other
    /// work: a record of usual depth.
    #[inline]
    pub(super) fn prefetch(&self) {
        const LINE: usize = 64;
        const LINES: usize = 6;
        let first = ptr::from_ref(self.cell(self.tail.load(Ordering::Relaxed))).cast::<u8>();
        for line in 0..LINES.min(size_of::<Cell<T>>() / LINE) {
            // SAFETY: a hint, which changes nothing and faults nowhere.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) first.wrapping_add(line * LINE),
                    options(nostack, preserves_flags, readonly));
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = (first, line);
        }
    }

    /// Has `write` write a record. False: there was no room. Any thread, in a signal handler.
    ///
    /// # Safety
    ///
    /// `write` initialises the record but for frames behind the depth, and returns.
    pub(super) unsafe fn push(&self, write: impl FnOnce(*mut Record<T>)) -> bool {
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

    /// Throws away what is there. Whether nothing is left: a record that its thread does not
    /// finish, because it was ended in the midst, keeps all behind it.
    pub(super) fn is_whole(&self) -> bool {
        self.drain(|_| ());
        self.head.load(Ordering::Relaxed) == self.tail.load(Ordering::Relaxed)
    }

    /// Reads the next record, if it is there; `read` may wipe it. The sampler alone calls it.
    pub(super) fn pop<R>(&self, read: impl FnOnce(&mut Record<T>) -> R) -> Option<R> {
        let head = self.head.load(Ordering::Relaxed);
        let (cell, full) = (self.cell(head), self.free_turn(head) + 1);
        // Acquire: pairs with the store in `push`.
        if cell.turn.load(Ordering::Acquire) != full {
            return None;
        }
        // SAFETY: invariant 1. Frames behind the depth are zero, or of an earlier record.
        let answer = read(unsafe { &mut *cell.record.get() });
        // Release: pairs with the load in `push`.
        cell.turn.store(full + 1, Ordering::Release);
        self.head.store(head + 1, Ordering::Relaxed);
        Some(answer)
    }

    /// Reads what is there, and no more than there is room for: records may come as fast as they
    /// are read, and errands wait. The sampler alone calls it.
    pub(super) fn drain(&self, mut read: impl FnMut(&mut Record<T>)) {
        let _ = (0..self.capacity).all(|_| self.pop(&mut read).is_some());
    }
}

/// The queue of a kind, which is mapped when the kind is first needed.
#[derive(Debug)]
pub(super) struct QueueOf<T> {
    queue: AtomicPtr<Queue<T>>,
    /// The process that has mapped it. A child of a fork maps its own: its parent's may contain a
    /// record that will never be finished.
    process: AtomicU64,
}

impl<T: Copy> QueueOf<T> {
    pub(super) const fn new() -> Self {
        Self { queue: AtomicPtr::new(ptr::null_mut()), process: AtomicU64::new(0) }
    }

    /// The queue, if there is one. Signal-safe.
    pub(super) fn get(&self) -> Option<&'static Queue<T>> {
        // SAFETY: null, or of a static's lifetime. Acquire: pairs with the store in `begin`.
        unsafe { self.queue.load(Ordering::Acquire).as_ref() }
    }

    /// The process's queue, empty of what came late for profiles that have ended. One that is not
    /// whole stays mapped beside the next one: a handler may be in it. The sampler alone calls it.
    pub(super) fn begin(&self, records: usize) -> io::Result<&'static Queue<T>> {
        let process = identity::id();
        let is_own = self.process.load(Ordering::Relaxed) == process;
        if let Some(queue) = self.get().filter(|queue| is_own && queue.is_whole()) {
            return Ok(queue);
        }
        let queue = Queue::map(records)?;
        self.process.store(process, Ordering::Relaxed);
        // Release: pairs with the load in `get`.
        self.queue.store(ptr::from_ref(queue).cast_mut(), Ordering::Release);
        Ok(queue)
    }
}

impl<T> Record<T> {
    /// The frames, the innermost first.
    pub(super) fn frames(&self) -> &[usize] {
        &self.frames[..(self.depth as usize).min(DEPTH)]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn push(queue: &Queue<u64>, value: u64) -> bool {
        let write = |record: *mut Record<u64>| {
            let frames = [value as usize; DEPTH];
            // SAFETY: the queue's place.
            unsafe {
                record.write(Record {
                    of_kind: value,
                    at_ns: value,
                    group: 0,
                    depth: DEPTH as u32,
                    end: WalkEnd::Cut,
                    lacks_caller: false,
                    frames,
                });
            }
        };
        // SAFETY: writes all of it.
        unsafe { queue.push(write) }
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queue = Queue::map(8).unwrap();
        for lap in 0..5 {
            for value in 0..8 {
                assert!(push(queue, lap * 8 + value));
            }
            assert!(!push(queue, 1000));
            assert_eq!(queue.dropped(), lap + 1);
            for value in 0..8 {
                assert_eq!(queue.pop(|record| record.of_kind), Some(lap * 8 + value));
            }
            assert_eq!(queue.pop(|record| record.of_kind), None);
        }
    }

    #[test]
    fn a_drain_ends_though_records_come_as_fast() {
        let queue = Queue::map(8).unwrap();
        push(queue, 0);
        let mut seen = 0;
        queue.drain(|record| {
            seen += 1;
            push(queue, record.of_kind + 1);
        });
        assert_eq!(seen, 8);
    }

    #[test]
    fn a_record_that_is_not_finished_is_noticed() {
        let queue = Queue::map(8).unwrap();
        push(queue, 1);
        assert!(queue.is_whole());
        let unfinished = std::thread::spawn(move || {
            // SAFETY: never returns.
            unsafe { queue.push(|_| panic!("ended in the midst")) }
        });
        assert!(unfinished.join().is_err());
        push(queue, 2);
        assert!(!queue.is_whole());
        assert_eq!(queue.pop(|record| record.of_kind), None);
    }

    #[test]
    fn records_of_many_threads_arrive_whole() {
        const EACH: u64 = 20_000;
        let queue = Queue::map(64).unwrap();
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
                    assert!(record.frames().iter().all(|&frame| frame as u64 == record.of_kind));
                    record.of_kind
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
