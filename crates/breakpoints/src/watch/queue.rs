//! Single hits, from signal handlers to one reader at a time.
//!
//! A bounded queue for many writers (Vyukov's): each cell has a number that determines whose turn
//! it is. A writer takes a cell by moving the end on, fills it, and passes it to the reader by its
//! number. A full queue drops the hit and counts it. A writer that never comes back (another
//! handler interrupted it and left by `siglongjmp`) leaves a cell that is never passed on: then the
//! stream stands still, and its count of drops grows.
//!
//! # Invariants
//!
//! 1. The cell at position `p` is its writer's while its number is `p`, and its reader's while that
//!    is `p + 1`.
//!
//! # Safety
//!
//! The unsafe code accesses cells, by invariant 1.
//!
//! # References
//!
//! D. Vyukov, "Bounded MPMC queue".
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::cmp;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::sites::Hit;

/// Hits that wait for the reader, a power of two: 200 KiB.
const CELLS: usize = 1024;

#[derive(Debug)]
pub(super) struct Queue {
    cells: Box<[Cell]>,
    end: AtomicUsize,
    begin: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct Cell {
    turn: AtomicUsize,
    hit: UnsafeCell<Hit>,
}

// SAFETY: a cell is one thread's at a time (invariant 1).
unsafe impl Sync for Queue {}

impl Queue {
    pub(super) fn new() -> Self {
        let cell = |turn| Cell { turn: AtomicUsize::new(turn), hit: UnsafeCell::new(Hit::default()) };
        Self {
            cells: (0..CELLS).map(cell).collect(),
            end: AtomicUsize::new(0),
            begin: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Hits that found the queue full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Signal-safe.
    pub(super) fn push(&self, hit: &Hit) {
        let mut end = self.end.load(Ordering::Relaxed);
        loop {
            let cell = &self.cells[end % CELLS];
            // Pairs with the store in `pop`: the reader has left the cell.
            let turn = cell.turn.load(Ordering::Acquire);
            match turn.cmp(&end) {
                cmp::Ordering::Equal => {
                    let next = end + 1;
                    match self.end.compare_exchange_weak(end, next, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => {
                            // SAFETY: invariant 1; the exchange made it this writer's.
                            unsafe { *cell.hit.get() = *hit };
                            // Pairs with the load in `pop`.
                            cell.turn.store(next, Ordering::Release);
                            return;
                        }
                        Err(other) => end = other,
                    }
                }
                cmp::Ordering::Less => {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                cmp::Ordering::Greater => end = self.end.load(Ordering::Relaxed),
            }
        }
    }

    /// The oldest hit. Several readers may come at once.
    pub(super) fn pop(&self) -> Option<Hit> {
        let mut begin = self.begin.load(Ordering::Relaxed);
        loop {
            let cell = &self.cells[begin % CELLS];
            // Pairs with the store in `push`: the hit is written.
            if cell.turn.load(Ordering::Acquire) != begin + 1 {
                let now = self.begin.load(Ordering::Relaxed);
                if now == begin {
                    return None;
                }
                begin = now;
                continue;
            }
            match self.begin.compare_exchange_weak(begin, begin + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    // SAFETY: invariant 1; the exchange made it this reader's.
                    let hit = unsafe { *cell.hit.get() };
                    // Pairs with the load in `push`.
                    cell.turn.store(begin + CELLS, Ordering::Release);
                    return Some(hit);
                }
                Err(other) => begin = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::thread;

    use super::*;

    fn hit(n: u64) -> Hit {
        Hit { new: n, old: !n, ..Hit::default() }
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queue = Queue::new();
        (0..CELLS as u64 + 5).for_each(|n| queue.push(&hit(n)));
        assert_eq!(queue.dropped(), 5);
        let taken: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|hit| hit.new).collect();
        assert_eq!(taken, (0..CELLS as u64).collect::<Vec<_>>());
        queue.push(&hit(9));
        assert_eq!((queue.pop().map(|hit| hit.new), queue.pop().map(|hit| hit.new)), (Some(9), None));
    }

    #[test]
    fn each_hit_is_taken_once_and_whole() {
        const EACH: u64 = 20_000;
        let queue = Queue::new();
        let mut taken = Vec::new();
        thread::scope(|scope| {
            let queue = &queue;
            let writers: Vec<_> = (0..3)
                .map(|writer| {
                    scope.spawn(move || (0..EACH).for_each(|n| queue.push(&hit(writer * EACH + n))))
                })
                .collect();
            while !writers.iter().all(thread::ScopedJoinHandle::is_finished) {
                taken.extend(std::iter::from_fn(|| queue.pop()));
            }
        });
        taken.extend(std::iter::from_fn(|| queue.pop()));
        assert!(taken.iter().all(|hit| hit.old == !hit.new));
        let distinct: BTreeSet<u64> = taken.iter().map(|hit| hit.new).collect();
        assert_eq!(distinct.len(), taken.len());
        assert_eq!(taken.len() as u64 + queue.dropped(), 3 * EACH);
    }
}
