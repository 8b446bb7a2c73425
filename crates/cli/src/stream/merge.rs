//! Records of many threads in the order of their time stamps.
//!
//! The agent empties one thread's ring after the other, so what it sends is ordered only within a
//! thread. Records are held until one comes that is newer by the hold time; by then the agent has
//! emptied all rings. Records that come later are printed late rather than lost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The most that is held; beyond it the oldest goes, in order or not.
const MOST: usize = 1 << 16;
/// The most bytes of held records, because a service may send any amount.
const MOST_BYTES: usize = 64 << 20;

/// Items held back and given out by time stamp; equal ones in the order they came.
pub(super) struct Merge<T> {
    heap: BinaryHeap<Reverse<(u64, u64, usize, T)>>,
    bytes: usize,
    /// In ticks of the time stamps.
    hold: u64,
    newest: u64,
    pushed: u64,
}

impl<T: Ord> Merge<T> {
    /// Holds items until one comes that is newer by `hold`.
    pub(super) fn new(hold: u64) -> Merge<T> {
        Merge { heap: BinaryHeap::new(), bytes: 0, hold, newest: 0, pushed: 0 }
    }

    /// Adds an item of `bytes` bytes.
    pub(super) fn push(&mut self, tsc: u64, bytes: usize, item: T) {
        self.newest = self.newest.max(tsc);
        self.bytes += bytes;
        self.heap.push(Reverse((tsc, self.pushed, bytes, item)));
        self.pushed += 1;
    }

    /// The oldest item, if it was held long enough or `all` are wanted.
    pub(super) fn pop(&mut self, all: bool) -> Option<T> {
        let Reverse((oldest, ..)) = self.heap.peek()?;
        let ripe = self.newest.saturating_sub(*oldest) >= self.hold;
        if !(all || ripe || self.heap.len() > MOST || self.bytes > MOST_BYTES) {
            return None;
        }
        let Reverse((_, _, bytes, item)) = self.heap.pop()?;
        self.bytes -= bytes;
        Some(item)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(merge: &mut Merge<char>, all: bool) -> String {
        std::iter::from_fn(|| merge.pop(all)).collect()
    }

    #[test]
    fn threads_are_merged_once_newer_records_came() {
        let mut merge = Merge::new(10);
        merge.push(5, 1, 'b');
        merge.push(9, 1, 'd');
        merge.push(1, 1, 'a');
        assert_eq!(drain(&mut merge, false), "");
        merge.push(7, 1, 'c');
        merge.push(16, 1, 'e');
        assert_eq!(drain(&mut merge, false), "ab");
        assert_eq!(drain(&mut merge, true), "cde");
        assert!(merge.is_empty());
    }

    #[test]
    fn equal_stamps_keep_their_order() {
        let mut merge = Merge::new(1);
        for item in "zyx".chars() {
            merge.push(3, 1, item);
        }
        assert_eq!(drain(&mut merge, true), "zyx");
    }

    #[test]
    fn what_comes_too_late_is_printed_late() {
        let mut merge = Merge::new(1);
        merge.push(100, 1, 'b');
        assert_eq!(drain(&mut merge, true), "b");
        merge.push(1, 1, 'a');
        assert_eq!(drain(&mut merge, false), "a");
    }

    #[test]
    fn memory_has_a_bound() {
        let mut merge = Merge::new(u64::MAX);
        for i in 0..=MOST as u64 {
            merge.push(i, 1, i);
        }
        assert_eq!(merge.pop(false), Some(0));
        assert_eq!(merge.pop(false), None);
        let mut merge = Merge::new(u64::MAX);
        for i in 0..3 {
            merge.push(i, MOST_BYTES / 2, i);
        }
        assert_eq!((merge.pop(false), merge.pop(false)), (Some(0), None), "nor in bytes");
    }
}
