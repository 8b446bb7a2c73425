//! Positions in a ring.

/// Bytes in one ring.
pub const RING_BYTES: usize = if cfg!(all(test, loom)) { 64 } else { 64 * 1024 };

/// The parts of a ring of which one is discarded at a time.
pub(super) const EIGHTHS: usize = 8;
/// The longest record, so that one begins in every eighth.
pub(super) const LONGEST: usize = RING_BYTES / EIGHTHS;
/// In `tail`: a reader has the ring.
pub(super) const HELD: u64 = 1 << 63;

/// A position in the stream of one ring, in one word: the bytes before it modulo 2^32 in the lower
/// half, the records before it modulo 2^31 in the upper. The bit that is left is [`HELD`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(pub(super) u64);

impl Mark {
    #[inline]
    pub(super) fn position(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    fn records(self) -> u32 {
        ((self.0 & !HELD) >> 32) as u32
    }

    #[inline]
    pub(super) fn is_held(self) -> bool {
        self.0 & HELD != 0
    }

    /// The position behind one more record.
    #[inline]
    pub(super) fn after(self, length: usize) -> Self {
        let (position, records) =
            (self.position().wrapping_add(length as u32), self.records().wrapping_add(1));
        Self((u64::from(records) << 32 | u64::from(position)) & !HELD)
    }

    #[inline]
    pub(super) fn bytes_since(self, earlier: Self) -> usize {
        self.position().wrapping_sub(earlier.position()) as usize
    }

    #[inline]
    pub(super) fn records_since(self, earlier: Self) -> u64 {
        u64::from(self.records().wrapping_sub(earlier.records()) & (u32::MAX >> 1))
    }

    /// The index of its byte in the ring.
    #[inline]
    pub(super) fn index(self) -> usize {
        self.position() as usize % RING_BYTES
    }

    /// The eighth of the ring that it lies in.
    #[inline]
    pub(super) fn eighth(self) -> usize {
        self.index() / LONGEST
    }
}
