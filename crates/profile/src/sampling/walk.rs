//! The stack of the interrupted code, as a record has it.
//!
//! # Async-signal-safety
//!
//! That of [`walk_into`].
//!
//! # Safety
//!
//! The unsafe code passes on what its caller promises.
#![allow(unsafe_code)]

use std::ops::Range;

use dormouse_unwind::{CallFrame, ThreadCache, WalkEnd, frames, walk_into};

use crate::ends::{StackEnd, deeper_than};

/// The most functions of a stack: of a deeper one those in the middle are left out.
pub(super) const DEPTH: usize = 512;

/// A stack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frames {
    /// How many functions were found, also if there is no room for all.
    pub(super) depth: u32,
    pub(super) end: WalkEnd,
    /// Whether callers were followed by frame pointers, because nothing had been learned about a
    /// function.
    pub(super) is_missed: bool,
    /// Addresses inside of instructions, as [`frames`] has them.
    pub(super) addresses: [usize; DEPTH],
}

impl Frames {
    pub(super) const NONE: Self =
        Self { depth: 0, end: WalkEnd::Unlearned, is_missed: false, addresses: [0; DEPTH] };

    /// Fills in the interrupted address, and for each caller an address inside of its call. `cache`
    /// is the thread's.
    ///
    /// # Safety
    ///
    /// `own` is empty, or the calling thread can read it: from the stack pointer on, if that lies
    /// in `own`, and in the red zone below, where the interrupted code may have written.
    pub(super) unsafe fn walk(&mut self, cache: Option<&ThreadCache>, from: CallFrame, own: &Range<usize>) {
        let mut depth = 0;
        // SAFETY: the caller's promise.
        let walk = unsafe { walk_into(cache, from, own, &mut depth, &mut self.addresses) };
        (self.depth, self.end, self.is_missed) = (depth, walk.end, walk.is_missed);
    }

    /// Fills in the interrupted address alone.
    pub(super) fn stay(&mut self, from: CallFrame) {
        self.addresses[0] = from.instruction;
        (self.depth, self.end, self.is_missed) = (1, WalkEnd::Unlearned, true);
    }

    /// Fills in nothing.
    pub(super) fn leave_out(&mut self) {
        self.set(&[], WalkEnd::Unlearned);
    }

    /// Takes in functions that were found in a copy.
    pub(super) fn set(&mut self, found: &[u64], end: WalkEnd) {
        (self.depth, self.end, self.is_missed) = (0, end, false);
        for &function in found {
            frames::take(function as usize, &mut self.depth, &mut self.addresses);
        }
    }

    /// Whether tables, by which these were found, show more than frame pointers.
    pub(super) fn are_more_than(&self, linked: &Self) -> bool {
        self.end == WalkEnd::Outermost || self.depth > linked.depth
    }

    /// Whether functions are missing because there was no room.
    pub(super) fn is_cut(&self) -> bool {
        self.depth as usize > DEPTH || self.end == WalkEnd::Enough
    }

    /// Why they do not lead to the first function of the thread. `None`: they do, or there are
    /// none.
    pub(super) fn lack(&self) -> Option<StackEnd> {
        match self.end {
            _ if self.depth == 0 => None,
            WalkEnd::Outermost => None,
            WalkEnd::Enough => Some(StackEnd::Cut),
            WalkEnd::NoTable => Some(StackEnd::NoTable),
            WalkEnd::NoRule => Some(StackEnd::NoRule),
            WalkEnd::Unlearned => Some(StackEnd::Unlearned),
        }
    }

    /// Whether all functions are there, up to the first one of the thread.
    pub(super) fn is_whole(&self) -> bool {
        self.end == WalkEnd::Outermost && !self.is_cut()
    }

    /// The innermost function.
    pub(super) fn first(&self) -> Option<usize> {
        (self.depth > 0).then(|| self.addresses[0])
    }

    /// The functions, the innermost first. In place of those that are missing amid stands
    /// [`deeper_than`], and behind them why they do not lead to the first function of the thread.
    pub(super) fn stack(&self, lack: Option<StackEnd>) -> impl DoubleEndedIterator<Item = u64> + Clone + '_ {
        let (inner, outer) = frames::in_order(self.depth as usize, &self.addresses);
        let known = self.known().count();
        let amid = (self.depth as usize > DEPTH).then(|| deeper_than(known));
        let behind = lack.map(|why| why.address(known));
        let address = |address: usize| address as u64;
        inner.iter().copied().map(address).chain(amid).chain(outer.map(address)).chain(behind)
    }

    /// The functions that there is room for, the innermost first.
    pub(super) fn known(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        let (inner, outer) = frames::in_order(self.depth as usize, &self.addresses);
        inner.iter().copied().chain(outer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ends::is_deeper;

    #[test]
    fn a_walk_that_gave_up_is_marked() {
        let found: Vec<u64> = (1..=DEPTH as u64 + 40).collect();
        let mut frames = Frames::NONE;
        let mut marks = |end| {
            frames.set(&found, end);
            let stack: Vec<u64> = frames.stack(frames.lack()).collect();
            let marks = stack.iter().enumerate().filter(|(_, address)| is_deeper(**address));
            (stack.len(), marks.map(|(place, _)| place).collect::<Vec<_>>())
        };
        let (whole, amid) = marks(WalkEnd::Outermost);
        assert_eq!((whole, amid.len()), (DEPTH + 1, 1));
        assert_eq!(marks(WalkEnd::Enough), (DEPTH + 2, vec![amid[0], DEPTH + 1]));
    }
}
