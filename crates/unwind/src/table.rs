//! The rows of an object, sorted by address, as far as its functions have been learned.
//!
//! A row is an address, and the number of the rule that holds from there on. An object has some
//! hundred different rules. Functions that nobody has asked for yet are rows without a rule. The
//! object is divided into chunks of 64 KiB, so that a row needs two bytes of its address.
//!
//! # Invariants
//!
//! 1. `chunks` has, for each chunk, the number of rows in the chunks before it, and at last that of
//!    all rows.
//! 2. `starts` has the rows' places in their chunks, sorted in each, without duplicates. The first
//!    row is at the object's first address. `numbers` is as long.
//! 3. Each number is that of a rule in `rules`, or [`NOT_LEARNED`].
//!
//! # Safety
//!
//! The unsafe code says that a table which nobody changes may be shared by its address.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ops::Range;

use crate::rule::{FrameRule, PackedRule};

/// Stands for the rule of code that nobody has asked for yet.
const NOT_LEARNED: u16 = u16::MAX;

/// The bits of an offset that are its place in a chunk.
const CHUNK: u32 = u16::BITS;

/// The rows of one object.
#[derive(Debug, Clone, Default)]
pub struct RowTable {
    /// The first address, and the first behind the last.
    start: u64,
    end: u64,
    chunks: Vec<u32>,
    starts: Vec<u16>,
    numbers: Vec<u16>,
    rules: Vec<PackedRule>,
}

impl RowTable {
    /// A table of an object in which nothing has been learned. `None`: it is too long, or there is
    /// no memory.
    pub(crate) fn new(range: Range<u64>) -> Option<Self> {
        let length = u32::try_from(range.end.checked_sub(range.start)?).ok()?;
        let mut table = Self { start: range.start, end: range.end, ..Self::default() };
        let chunks = (length >> CHUNK) as usize + 1;
        table.chunks.try_reserve_exact(chunks + 1).ok()?;
        table.chunks.push(0);
        table.chunks.resize(chunks + 1, 1);
        table.starts.try_reserve(1).ok()?;
        table.numbers.try_reserve(1).ok()?;
        table.starts.push(0);
        table.numbers.push(NOT_LEARNED);
        Some(table)
    }

    /// The index of the row in which an address lies.
    #[inline]
    fn row(&self, address: u64) -> Option<usize> {
        if !(self.start..self.end).contains(&address) {
            return None;
        }
        let offset = (address - self.start) as u32;
        let chunk = (offset >> CHUNK) as usize;
        let (&from, &to) = (self.chunks.get(chunk)?, self.chunks.get(chunk + 1)?);
        let starts = self.starts.get(from as usize..to as usize)?;
        // Where no row of the chunk begins before it, the last one of those before goes on.
        let before = starts.partition_point(|&start| start <= offset as u16);
        (from as usize + before).checked_sub(1)
    }

    /// The offset of a row.
    fn offset(&self, row: usize) -> Option<u32> {
        let start = *self.starts.get(row)?;
        let chunk = self.chunks.partition_point(|&first| first as usize <= row).checked_sub(1)?;
        Some((chunk as u32) << CHUNK | u32::from(start))
    }

    /// The rule for an address inside of an instruction; `None`: it has not been learned.
    ///
    /// # Async-signal-safety
    ///
    /// No lock, allocation or panic.
    #[inline]
    pub(crate) fn packed(&self, address: u64) -> Option<PackedRule> {
        self.rules.get(usize::from(*self.numbers.get(self.row(address)?)?)).copied()
    }

    /// The range of addresses around this one in which nothing has been learned.
    pub(crate) fn gap(&self, address: u64) -> Option<Range<u64>> {
        let row = self.row(address)?;
        if *self.numbers.get(row)? != NOT_LEARNED {
            return None;
        }
        let address = |row: usize| self.offset(row).map(|offset| self.start + u64::from(offset));
        Some(address(row)?..address(row + 1).unwrap_or(self.end))
    }

    /// The rows that have been learned: the first address for which each rule holds, and the rule.
    pub fn rows(&self) -> impl Iterator<Item = (u64, FrameRule)> + '_ {
        let rules = self.numbers.iter().map(|&number| self.rules.get(usize::from(number)));
        let chunks = self.chunks.windows(2).zip(0_u64..).flat_map(|(rows, chunk)| {
            let starts = self.starts.get(rows[0] as usize..rows[1] as usize).unwrap_or_default();
            starts.iter().map(move |&start| (chunk << CHUNK) + u64::from(start))
        });
        chunks.zip(rules).filter_map(|(offset, rule)| Some((self.start + offset, rule?.rule())))
    }

    /// The size of the rows in bytes.
    pub fn size(&self) -> usize {
        let Self { chunks, starts, numbers, rules, .. } = self;
        size_of_val(&chunks[..])
            + size_of_val(&starts[..])
            + size_of_val(&numbers[..])
            + size_of_val(&rules[..])
    }

    /// The same table, for readers.
    pub(crate) fn copy(&self) -> Option<Self> {
        let mut copy = Self { start: self.start, end: self.end, ..Self::default() };
        copy.chunks.try_reserve_exact(self.chunks.len()).ok()?;
        copy.starts.try_reserve_exact(self.starts.len()).ok()?;
        copy.numbers.try_reserve_exact(self.numbers.len()).ok()?;
        copy.rules.try_reserve_exact(self.rules.len()).ok()?;
        copy.chunks.extend_from_slice(&self.chunks);
        copy.starts.extend_from_slice(&self.starts);
        copy.numbers.extend_from_slice(&self.numbers);
        copy.rules.extend_from_slice(&self.rules);
        Some(copy)
    }
}

/// A published table; null: the object has none, and its callers are found by frame pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableRef(pub(crate) *const RowTable);

// SAFETY: a table is never changed once it is published.
unsafe impl Send for TableRef {}
// SAFETY: as above.
unsafe impl Sync for TableRef {}

/// A table that learns.
#[derive(Debug)]
pub(crate) struct Learning {
    table: RowTable,
    known: HashMap<PackedRule, u16>,
    /// The rows of the function at hand.
    starts: Vec<u32>,
    numbers: Vec<u16>,
}

impl Learning {
    pub(crate) fn new(range: Range<u64>) -> Option<Self> {
        let table = RowTable::new(range)?;
        Some(Self { table, known: HashMap::new(), starts: Vec::new(), numbers: Vec::new() })
    }

    pub(crate) fn table(&self) -> &RowTable {
        &self.table
    }

    /// Adds the row of a function that begins at an address. `None`: there is no memory.
    fn push(&mut self, at: u64, rule: PackedRule) -> Option<()> {
        let number = if let Some(&number) = self.known.get(&rule) {
            number
        } else {
            let rules = &mut self.table.rules;
            let number = u16::try_from(rules.len()).ok().filter(|&number| number != NOT_LEARNED)?;
            self.known.try_reserve(1).ok()?;
            rules.try_reserve(1).ok()?;
            self.known.insert(rule, number);
            rules.push(rule);
            number
        };
        if self.numbers.last() == Some(&number) {
            return Some(());
        }
        let offset = u32::try_from(at.checked_sub(self.table.start)?).ok()?;
        debug_assert!(self.starts.last().is_none_or(|&last| last < offset), "invariant 2");
        self.starts.try_reserve(1).ok()?;
        self.numbers.try_reserve(1).ok()?;
        self.starts.push(offset);
        self.numbers.push(number);
        Some(())
    }

    /// Puts the rows of a function, which ends at `end`, into the gap at its first address. Without
    /// room for its rules they are unknown. If there is no such gap, or no memory, nothing is
    /// learned.
    pub(crate) fn put(&mut self, rows: &[(u64, PackedRule)], end: u64) {
        let pushed = rows.iter().try_for_each(|&(at, rule)| self.push(at, rule));
        if pushed.and_then(|()| self.finish(end)).is_none()
            && let Some(&(start, _)) = rows.first()
        {
            self.cancel();
            let _nothing = self.push(start, PackedRule::UNKNOWN).and_then(|()| self.finish(end));
        }
        self.cancel();
    }

    /// Forgets the rows that were pushed.
    fn cancel(&mut self) {
        self.starts.clear();
        self.numbers.clear();
    }

    /// Puts the rows that were pushed into the gap at their first address: they hold up to `end`,
    /// which lies in that gap, or at its end. `None`: there is no memory, or no such gap.
    fn finish(&mut self, end: u64) -> Option<()> {
        let start = self.table.start + u64::from(*self.starts.first()?);
        let gap = self.table.gap(start).filter(|gap| start < end && end <= gap.end)?;
        if end < gap.end {
            self.starts.try_reserve(1).ok()?;
            self.numbers.try_reserve(1).ok()?;
            self.starts.push((end - self.table.start) as u32);
            self.numbers.push(NOT_LEARNED);
        }
        let row = self.table.row(start)?;
        // A gap that begins at the function is gone.
        let at = row + usize::from(gap.start != start)..row + 1;
        let RowTable { chunks, starts, numbers, .. } = &mut self.table;
        starts.try_reserve(self.starts.len()).ok()?;
        numbers.try_reserve(self.numbers.len()).ok()?;
        starts.splice(at.clone(), self.starts.iter().map(|&offset| offset as u16));
        numbers.splice(at.clone(), self.numbers.drain(..));
        let chunk_of = |offset: Option<&u32>| offset.map_or(0, |&offset| offset >> CHUNK);
        let (first, last) = (chunk_of(self.starts.first()), chunk_of(self.starts.last()));
        for (chunk, rows) in (0..).zip(chunks).skip(first as usize + 1) {
            let all = self.starts.len();
            let before =
                if chunk > last { all } else { self.starts.partition_point(|&at| at >> CHUNK < chunk) };
            *rows += (before - at.len()) as u32;
        }
        self.starts.clear();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(number: u64) -> PackedRule {
        PackedRule(number)
    }

    fn learn(table: &mut Learning, rows: &[(u64, u64)], end: u64) -> Option<()> {
        for &(at, number) in rows {
            table.push(at, rule(number)).unwrap();
        }
        let done = table.finish(end);
        table.cancel();
        done
    }

    #[test]
    fn functions_are_learned_in_any_order() {
        let mut table = Learning::new(0x1000..0x2000).unwrap();
        let at = |table: &Learning, address| table.table().packed(address).map(|rule| rule.0);
        assert_eq!(at(&table, 0x1000), None);
        learn(&mut table, &[(0x1400, 1), (0x1404, 2)], 0x1410).unwrap();
        learn(&mut table, &[(0x1000, 3)], 0x1010).unwrap();
        learn(&mut table, &[(0x1ff0, 1), (0x1ff8, 3)], 0x2000).unwrap();
        learn(&mut table, &[(0x1410, 2)], 0x1420).unwrap();
        for (address, number) in [
            (0x1000, Some(3)),
            (0x100f, Some(3)),
            (0x1010, None),
            (0x13ff, None),
            (0x1400, Some(1)),
            (0x1404, Some(2)),
            (0x141f, Some(2)),
            (0x1420, None),
            (0x1fef, None),
            (0x1ff7, Some(1)),
            (0x1fff, Some(3)),
            (0x2000, None),
            (0xfff, None),
        ] {
            assert_eq!(at(&table, address), number, "{address:#x}");
        }
        assert_eq!(table.table().gap(0x1011), Some(0x1010..0x1400));
        assert_eq!(table.table().gap(0x1fef), Some(0x1420..0x1ff0));
        assert_eq!(table.table().gap(0x1404), None);
        assert!(table.table().copy().unwrap().rows().eq(table.table().rows()));
    }

    #[test]
    fn rows_go_on_over_chunks() {
        const KIB: u64 = 1 << 10;
        let mut table = Learning::new(0..1 << 20).unwrap();
        // Over two boundaries, one of them without a row; then before, behind and between.
        learn(&mut table, &[(200 * KIB, 1), (256 * KIB, 2), (257 * KIB, 3)], 400 * KIB).unwrap();
        learn(&mut table, &[(0, 4), (100 * KIB, 5)], 130 * KIB).unwrap();
        learn(&mut table, &[(900 * KIB, 6)], 1024 * KIB).unwrap();
        learn(&mut table, &[(130 * KIB, 7)], 200 * KIB).unwrap();
        let rows = [(0, 4), (100, 5), (130, 7), (200, 1), (256, 2), (257, 3), (900, 6)];
        assert!(table.table().rows().map(|(at, _)| at).eq(rows.map(|(at, _)| at * KIB)));
        for at in 0..1 << 10 {
            let row = rows.iter().rev().find(|(start, _)| *start <= at).filter(|_| !(400..900).contains(&at));
            let expected = row.map(|&(_, number)| rule(number));
            assert_eq!(table.table().packed(at * KIB), expected, "{at} KiB");
            assert_eq!(table.table().packed(at * KIB + KIB - 1), expected, "{at} KiB");
        }
        assert_eq!(table.table().gap(500 * KIB), Some(400 * KIB..900 * KIB));
    }

    #[test]
    fn nothing_is_learned_over_what_is_known() {
        let mut table = Learning::new(0x1000..0x2000).unwrap();
        learn(&mut table, &[(0x1400, 1)], 0x1410).unwrap();
        for (start, end) in [(0x1400, 0x1410), (0x13f0, 0x1401), (0x1500, 0x2001), (0x1500, 0x1500)] {
            assert_eq!(learn(&mut table, &[(start, 2)], end), None, "{start:#x}");
        }
        assert_eq!(table.table().rows().count(), 1);
    }
}
