//! The rows of an object, sorted by address, as far as its functions have been learned.
//!
//! A row is an address (of four bytes, relative to the first), and the number of the rule that
//! holds from there on. An object has some hundred different rules. Functions that nobody has asked
//! for yet are rows without a rule.
//!
//! # Invariants
//!
//! 1. `starts` begins with 0, is sorted, without duplicates, and as long as `numbers`.
//! 2. Each number is that of a rule in `rules`, or [`NOT_LEARNED`].
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

/// The rows of one object.
#[derive(Debug, Clone, Default)]
pub struct RowTable {
    /// The first address, and the first behind the last.
    start: u64,
    end: u64,
    starts: Vec<u32>,
    numbers: Vec<u16>,
    rules: Vec<PackedRule>,
}

impl RowTable {
    /// A table of an object in which nothing has been learned. `None`: it is too long, or there is
    /// no memory.
    pub(crate) fn new(range: Range<u64>) -> Option<Self> {
        u32::try_from(range.end.checked_sub(range.start)?).ok()?;
        let mut table = Self { start: range.start, end: range.end, ..Self::default() };
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
        self.starts.partition_point(|&start| start <= offset).checked_sub(1)
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
        let address = |row: usize| self.starts.get(row).map(|&start| self.start + u64::from(start));
        Some(address(row)?..address(row + 1).unwrap_or(self.end))
    }

    /// The rows that have been learned: the first address for which each rule holds, and the rule.
    pub fn rows(&self) -> impl Iterator<Item = (u64, FrameRule)> + '_ {
        let rules = self.numbers.iter().map(|&number| self.rules.get(usize::from(number)));
        let starts = self.starts.iter().map(|&start| self.start + u64::from(start));
        starts.zip(rules).filter_map(|(start, rule)| Some((start, rule?.rule())))
    }

    /// The size of the rows in bytes.
    pub fn size(&self) -> usize {
        size_of_val(&self.starts[..]) + size_of_val(&self.numbers[..]) + size_of_val(&self.rules[..])
    }

    /// The same table, for readers.
    pub(crate) fn copy(&self) -> Option<Self> {
        let mut copy = Self { start: self.start, end: self.end, ..Self::default() };
        copy.starts.try_reserve_exact(self.starts.len()).ok()?;
        copy.numbers.try_reserve_exact(self.numbers.len()).ok()?;
        copy.rules.try_reserve_exact(self.rules.len()).ok()?;
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
    pub(crate) fn push(&mut self, at: u64, rule: PackedRule) -> Option<()> {
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
        debug_assert!(self.starts.last().is_none_or(|&last| last < offset), "invariant 1");
        self.starts.try_reserve(1).ok()?;
        self.numbers.try_reserve(1).ok()?;
        self.starts.push(offset);
        self.numbers.push(number);
        Some(())
    }

    /// Forgets the rows that were pushed.
    pub(crate) fn cancel(&mut self) {
        self.starts.clear();
        self.numbers.clear();
    }

    /// Puts the rows that were pushed into the gap at their first address: they hold up to `end`,
    /// which lies in that gap, or at its end. `None`: there is no memory, or no such gap.
    pub(crate) fn finish(&mut self, end: u64) -> Option<()> {
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
        let RowTable { starts, numbers, .. } = &mut self.table;
        starts.try_reserve(self.starts.len()).ok()?;
        numbers.try_reserve(self.numbers.len()).ok()?;
        starts.splice(at.clone(), self.starts.drain(..));
        numbers.splice(at, self.numbers.drain(..));
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
    fn nothing_is_learned_over_what_is_known() {
        let mut table = Learning::new(0x1000..0x2000).unwrap();
        learn(&mut table, &[(0x1400, 1)], 0x1410).unwrap();
        for (start, end) in [(0x1400, 0x1410), (0x13f0, 0x1401), (0x1500, 0x2001), (0x1500, 0x1500)] {
            assert_eq!(learn(&mut table, &[(start, 2)], end), None, "{start:#x}");
        }
        assert_eq!(table.table().rows().count(), 1);
    }
}
