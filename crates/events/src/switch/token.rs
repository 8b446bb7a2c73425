//! Which entry of the stack a guard is of.

use super::{Kind, MAX_DEPTH};

/// Which entry a guard is of: in one word, because it is compared at every poll. The lowest bits are the entry's place,
/// then comes the guard's kind, then a number that no other entry of the thread has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token(u64);

const PLACE_BITS: u32 = 8;
const KIND_BITS: u32 = 8;

const _: () = assert!(MAX_DEPTH < 1 << PLACE_BITS);

impl Token {
    /// Of an inert guard, and of an entry that was never used: the place is none.
    pub(super) const NONE: Self = Self(MAX_DEPTH as u64);

    #[inline]
    pub(super) fn new(number: u64, place: usize, kind: Kind) -> Self {
        Self(number << (PLACE_BITS + KIND_BITS) | (kind as u64) << PLACE_BITS | place as u64)
    }

    pub(super) fn place(self) -> usize {
        self.0 as usize & ((1 << PLACE_BITS) - 1)
    }

    pub(super) fn is_scope(self) -> bool {
        self.0 >> PLACE_BITS & ((1 << KIND_BITS) - 1) == Kind::Scope as u64
    }
}
