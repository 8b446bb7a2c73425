//! Splits a range of bytes into pieces that debug registers can watch.
//!
//! A register watches 1, 2, 4 or 8 bytes at a multiple of their number. Two such pieces either lie
//! inside one another or apart. So from the front the largest aligned piece that ends inside the
//! range is taken, and no other exact cover has fewer pieces.
//!
//! If that takes more registers than there are, the range is made wider: a cover by aligned pieces
//! is the exact cover of the bytes between its first piece's beginning and its last piece's end,
//! and these are the range's ends, each moved outwards to a multiple of 1, 2, 4 or 8. Of these 16
//! covers the one with the fewest extra bytes that fits is taken, among equal ones that with the
//! fewest pieces. A store beside the range hits a wide piece too; it is recognised by the values of
//! the piece's *watched* bytes before and after, unless the store writes the same value into the
//! range. A read changes no value, so watches of reads are never made wider.
//!
//! # Invariants
//!
//! 1. Ends are inclusive, so the last byte of the address space can be watched.
//! 2. No more than `registers + 1` pieces are ever computed, however long the range is.

use dormouse_sys::perf::WatchLen;

/// The widest piece, in bytes, and the longest value.
pub(crate) const WIDEST: usize = 8;

/// The bytes that one debug register watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// A multiple of `len`.
    pub(crate) addr: usize,
    pub(crate) len: WatchLen,
    /// The bits of the piece's value, as read in the processor's order of bytes, that belong to the
    /// range.
    pub(crate) watched: u64,
}

impl Piece {
    /// Whether it also watches bytes beside the range.
    pub(crate) fn is_wide(self) -> bool {
        self.watched.count_ones() != 8 * self.len as u32
    }

    /// The bytes whose value a hit shows, by address and length: the whole range, `len` bytes at
    /// `addr`; of a range that is longer than a value, those in this piece.
    pub(crate) fn shown(self, addr: usize, len: usize) -> (usize, usize) {
        if len <= WIDEST {
            return (addr, len);
        }
        let [beside, own] = [self.watched.trailing_zeros(), self.watched.count_ones()];
        (self.addr + (beside / 8) as usize, (own / 8) as usize)
    }
}

/// The reason why a range has no cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It has no bytes.
    Empty,
    /// It ends after the last address.
    Wraps,
    /// It takes more registers than there are.
    TooLong {
        /// The fewest registers that cover it; none if that is more than a `u32` can count.
        needs: Option<u32>,
        /// The most bytes from its beginning on that the registers do cover.
        fits: usize,
    },
}

/// Covers `len` bytes at `addr` by at most `registers` pieces, in the order of their addresses. A
/// cover with bytes outside of the range is taken if `may_widen`, and only where no exact one fits.
///
/// # Cost
///
/// At most 16 times `registers` steps, whatever the length.
///
/// # Errors
///
/// [`Unfit`].
pub(crate) fn split(addr: usize, len: usize, registers: u32, may_widen: bool) -> Result<Vec<Piece>, Unfit> {
    let last = addr.checked_add(len.checked_sub(1).ok_or(Unfit::Empty)?).ok_or(Unfit::Wraps)?;
    let most = registers as usize;
    let range = Range { first: addr, last };
    let fitting = range.candidates(may_widen).filter(|cover| cover.count(most) <= most);
    // The range itself has no extra bytes, so it wins wherever it fits.
    match fitting.min_by_key(|cover| (range.extra(*cover), cover.count(most))) {
        Some(cover) => Ok(cover.pieces().map(|block| range.watched_in(block)).collect()),
        None => Err(Unfit::TooLong { needs: range.needs(may_widen), fits: range.fits(most, may_widen) }),
    }
}

/// The bytes from `first` to `last`, both included.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: usize,
    last: usize,
}

impl Range {
    /// The ranges to cover exactly: this one, and those whose ends are moved outwards.
    fn candidates(self, may_widen: bool) -> impl Iterator<Item = Self> {
        let moves = if may_widen { &[0, 1, 3, 7][..] } else { &[0] };
        moves.iter().flat_map(move |down| {
            moves.iter().map(move |up| Self { first: self.first & !down, last: self.last | up })
        })
    }

    /// The bytes of a wider range outside of this one.
    fn extra(self, wider: Self) -> usize {
        self.first - wider.first + (wider.last - self.last)
    }

    /// The pieces of the exact cover, from the front.
    fn pieces(self) -> impl Iterator<Item = Self> {
        let mut next = Some(self.first);
        std::iter::from_fn(move || {
            let first = next?;
            // One less than the piece's length: as far as the beginning is aligned and the range
            // goes.
            let fits = |less: &usize| first & less == 0 && self.last - first >= *less;
            let less = [WIDEST - 1, 3, 1, 0].into_iter().find(fits)?;
            let last = first + less;
            next = (last < self.last).then(|| last + 1);
            Some(Self { first, last })
        })
    }

    /// The number of pieces of the exact cover, or `most + 1` if there are more.
    fn count(self, most: usize) -> usize {
        self.pieces().take(most + 1).count()
    }

    /// The fewest registers that would do.
    fn needs(self, may_widen: bool) -> Option<u32> {
        let words = self.last / WIDEST - self.first / WIDEST + 1;
        let edges = |range: Self| {
            // Whole words in the middle take one register each.
            let inner = words.saturating_sub(2);
            let short = Self { first: range.first, last: range.last - inner * WIDEST };
            short.pieces().count() + inner
        };
        self.candidates(may_widen).map(edges).min().and_then(|needs| u32::try_from(needs).ok())
    }

    /// The longest beginning that `most` registers cover.
    fn fits(self, most: usize, may_widen: bool) -> usize {
        // Words are the longest pieces, and the first one begins at the range's beginning or
        // before.
        let longest = (most * WIDEST).saturating_sub(self.first % WIDEST);
        let covers = |len: &usize| {
            let short = Self { first: self.first, last: self.first + (len - 1) };
            may_widen || short.count(most) <= most
        };
        // Shorter than the range, which does not fit: no end wraps.
        (1..=longest.min(self.last - self.first)).rev().find(covers).unwrap_or(0)
    }

    /// The piece that is `block`, with the bits that belong to this range.
    fn watched_in(self, block: Self) -> Piece {
        let len = match block.last - block.first {
            0 => WatchLen::One,
            1 => WatchLen::Two,
            3 => WatchLen::Four,
            _ => WatchLen::Eight,
        };
        let is_ours = |byte: &usize| (self.first..=self.last).contains(&(block.first + byte));
        let mut watched = [0; WIDEST];
        for byte in (0..len as usize).filter(is_ours) {
            watched[byte] = u8::MAX;
        }
        // A value of fewer bytes stands in the low ones of a little-endian word.
        Piece { addr: block.first, len, watched: u64::from_le_bytes(watched) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Blocks as (first, length).
    fn blocks(pieces: &[Piece]) -> Vec<(usize, usize)> {
        pieces.iter().map(|piece| (piece.addr, piece.len as usize)).collect()
    }

    fn extra(pieces: &[Piece]) -> usize {
        let bytes = |piece: &Piece| 8 * piece.len as usize - piece.watched.count_ones() as usize;
        pieces.iter().map(bytes).sum::<usize>() / 8
    }

    #[test]
    fn a_range_is_cut_where_it_is_aligned() {
        let of = |addr, len| blocks(&split(addr, len, 4, false).unwrap());
        assert_eq!(of(16, 24), [(16, 8), (24, 8), (32, 8)]);
        assert_eq!(of(3, 5), [(3, 1), (4, 4)]);
        assert_eq!(of(1, 7), [(1, 1), (2, 2), (4, 4)]);
        assert_eq!(of(6, 5), [(6, 2), (8, 2), (10, 1)]);
    }

    #[test]
    fn a_wide_piece_knows_its_watched_bytes() {
        let piece = split(0x1001, 5, 1, true).unwrap();
        assert_eq!(piece, [Piece { addr: 0x1000, len: WatchLen::Eight, watched: 0xffff_ffff_ff00 }]);
        let exact = split(0x1004, 2, 1, true).unwrap();
        assert_eq!(exact, [Piece { addr: 0x1004, len: WatchLen::Two, watched: 0xffff }]);
    }

    #[test]
    fn a_refusal_says_what_fits() {
        assert_eq!(split(8, 33, 4, true), Err(Unfit::TooLong { needs: Some(5), fits: 32 }));
        assert_eq!(split(9, 32, 4, true), Err(Unfit::TooLong { needs: Some(5), fits: 31 }));
        // 1 + 2 + 4 + 8 bytes.
        assert_eq!(split(9, 16, 4, false), Err(Unfit::TooLong { needs: Some(5), fits: 15 }));
        assert_eq!(split(8, 1, 0, true), Err(Unfit::TooLong { needs: Some(1), fits: 0 }));
        assert_eq!(split(8, 0, 4, true), Err(Unfit::Empty));
    }

    #[test]
    fn the_ends_of_memory_are_ranges_too() {
        assert_eq!(split(usize::MAX, 2, 4, true), Err(Unfit::Wraps));
        assert_eq!(blocks(&split(usize::MAX, 1, 1, false).unwrap()), [(usize::MAX, 1)]);
        assert_eq!(blocks(&split(usize::MAX - 2, 3, 1, true).unwrap()), [(usize::MAX - 3, 4)]);
        assert_eq!(split(0, usize::MAX, 4, true), Err(Unfit::TooLong { needs: None, fits: 32 }));
    }

    /// Every cover by aligned pieces that cut nothing twice, by brute force: from the first byte
    /// that is not covered, each piece that has it. Gives (extra bytes, pieces) of the best.
    fn best(first: usize, end: usize, left: u32) -> Option<(usize, usize)> {
        if first >= end {
            return Some((0, 0));
        }
        let left = left.checked_sub(1)?;
        let with = |len: usize| {
            let at = first / len * len;
            let (extra, pieces) = best(at + len, end, left)?;
            // Bytes before `first` are extra, too: earlier pieces end there, or the range begins.
            Some((extra + (first - at) + (at + len).saturating_sub(end), pieces + 1))
        };
        [1, 2, 4, 8].into_iter().filter_map(with).min()
    }

    fn fewest_exact(first: usize, end: usize) -> usize {
        if first >= end {
            return 0;
        }
        let fits = |len: &usize| first.is_multiple_of(*len) && first + len <= end;
        [1, 2, 4, 8].into_iter().filter(fits).map(|len| 1 + fewest_exact(first + len, end)).min().unwrap()
    }

    proptest! {
        #[test]
        fn no_exact_cover_is_smaller(addr in 64_usize..96, len in 1_usize..16) {
            let pieces = split(addr, len, 16, false).unwrap();
            prop_assert_eq!(pieces.len(), fewest_exact(addr, addr + len));
            let mut next = addr;
            for piece in &pieces {
                prop_assert_eq!(piece.addr, next);
                prop_assert_eq!(piece.addr % piece.len as usize, 0);
                next += piece.len as usize;
            }
            prop_assert_eq!((next, extra(&pieces)), (addr + len, 0));
        }

        #[test]
        fn no_cover_that_fits_is_tighter(addr in 64_usize..80, len in 1_usize..28, registers in 0_u32..5) {
            let expected = best(addr, addr + len, registers);
            match split(addr, len, registers, true) {
                Ok(pieces) => {
                    prop_assert_eq!(Some((extra(&pieces), pieces.len())), expected);
                    for byte in addr..addr + len {
                        let has = |piece: &Piece| (piece.addr..piece.addr + piece.len as usize).contains(&byte)
                            && piece.watched >> (8 * (byte - piece.addr)) & 0xff == 0xff;
                        prop_assert_eq!(pieces.iter().filter(|piece| has(piece)).count(), 1);
                    }
                }
                Err(Unfit::TooLong { needs, fits }) => {
                    prop_assert_eq!(expected, None);
                    let needs = needs.unwrap();
                    prop_assert!(needs > registers);
                    prop_assert!(best(addr, addr + len, needs).is_some());
                    prop_assert!(best(addr, addr + len, needs - 1).is_none());
                    prop_assert!(fits < len);
                    prop_assert!(fits == 0 || best(addr, addr + fits, registers).is_some());
                    prop_assert!(best(addr, addr + fits + 1, registers).is_none());
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn an_exact_refusal_says_what_fits(addr in 64_usize..80, len in 1_usize..40, registers in 0_u32..5) {
            if let Err(Unfit::TooLong { needs, fits }) = split(addr, len, registers, false) {
                prop_assert_eq!(needs.unwrap() as usize, split(addr, len, 64, false).unwrap().len());
                prop_assert!(fits == 0 || split(addr, fits, registers, false).is_ok());
                // A longer beginning may take fewer pieces, so each is tried.
                prop_assert!((fits + 1..len).all(|len| split(addr, len, registers, false).is_err()));
            }
        }
    }
}
