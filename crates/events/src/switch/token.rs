//! Which entry of the stack is topmost, and which one a guard is of.

use super::{Kind, MAX_DEPTH};

/// An entry of a thread's stack: in one word, because it is compared at every poll. The lowest bits are its depth, then
/// comes its kind, then a number that no other entry of that depth has had on the thread. At depth 0 it is no entry, but
/// says what the lowest one was last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token(u64);

const DEPTH_BITS: u32 = 6;
const KIND_BITS: u32 = 2;
const NUMBER: u64 = 1 << (DEPTH_BITS + KIND_BITS);

const _: () = assert!(MAX_DEPTH < (1 << DEPTH_BITS) - 1);

impl Token {
    /// Before the first entry.
    pub(super) const FIRST: Self = Self(0);
    /// Of an inert guard: no entry is as deep.
    pub(super) const NONE: Self = Self((1 << DEPTH_BITS) - 1);

    pub(super) fn new(number: u64, depth: usize, kind: Kind) -> Self {
        Self(number.wrapping_mul(NUMBER) | (kind as u64) << DEPTH_BITS | depth as u64)
    }

    /// The lowest entry that comes after it, which is at depth 0.
    #[inline]
    pub(super) fn next(self, kind: Kind) -> Self {
        Self(self.0.wrapping_add(NUMBER | (kind as u64) << DEPTH_BITS | 1))
    }

    /// What is left when it, a lowest entry, is gone.
    #[inline]
    pub(super) fn gone(self) -> Self {
        Self(self.0 & !(NUMBER - 1))
    }

    /// How many entries there are as long as it is the topmost one.
    #[inline]
    pub(super) fn depth(self) -> usize {
        self.0 as usize & ((1 << DEPTH_BITS) - 1)
    }

    pub(super) fn is_scope(self) -> bool {
        self.0 >> DEPTH_BITS & ((1 << KIND_BITS) - 1) == Kind::Scope as u64
    }
}
