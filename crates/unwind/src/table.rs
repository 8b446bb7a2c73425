//! All rows of an object, sorted by address.
//!
//! The index of the object (`.eh_frame_hdr`) contains the address of each function's entry, sorted.
//! Each entry's program is executed once. Adjacent rows with the same rule are merged, and ranges
//! that no entry covers are rows whose rule is unknown. An object has some hundred different rules;
//! so a row is an address (of four bytes, relative to the first), and a rule's number.
//!
//! # Invariants
//!
//! 1. `starts` is sorted, without duplicates, and as long as `numbers`.
//! 2. Each number is that of a rule in `rules`.

use std::collections::HashMap;

use crate::bytes::MappedBytes;
use crate::entry::Entry;
use crate::rule::FrameRule;

/// How the index is written: four bytes a number; addresses relative to it.
const COUNT: u8 = 0x03;
const PLACES: u8 = 0x3b;

/// The rows of one object.
#[derive(Debug, Default)]
pub struct RowTable {
    /// The first address of all, and the first behind the last.
    start: u64,
    end: u64,
    starts: Vec<u32>,
    numbers: Vec<u16>,
    rules: Vec<FrameRule>,
}

impl RowTable {
    /// Reads the entries of an object whose index lies at the address `index`. `None` if the index
    /// cannot be read, or if there is no memory for the rows.
    ///
    /// # Cost
    ///
    /// Two milliseconds for the C library, and six bytes for each row.
    pub fn read(memory: MappedBytes<'_>, index: u64) -> Option<Self> {
        let mut head = memory.at(index)?;
        let [version, place, count, places] = [head.byte()?, head.byte()?, head.byte()?, head.byte()?];
        if version != 1 || count != COUNT || places != PLACES {
            return None;
        }
        head.skip_pointer(place)?;
        let (mut building, count) = (Building::default(), head.word()?);
        for _ in 0..count {
            let (start, place) = (head.pointer(PLACES, index)?, head.pointer(PLACES, index)?);
            if let Some(entry) = Entry::read(memory, place).filter(|entry| entry.start == start) {
                building.add(&entry)?;
            }
        }
        building.finish()
    }

    /// Whether the address lies between the first and the last of the object's functions.
    pub fn contains(&self, address: usize) -> bool {
        (self.start..self.end).contains(&(address as u64))
    }

    /// The rule for an address inside of an instruction.
    ///
    /// # Async-signal-safety
    ///
    /// No lock, allocation or panic.
    pub fn rule(&self, address: usize) -> FrameRule {
        let rule = || {
            let offset = u32::try_from((address as u64).checked_sub(self.start)?).ok()?;
            // Nothing marks the end of the last row.
            let offset = Some(offset).filter(|_| self.contains(address))?;
            let row = self.starts.partition_point(|&start| start <= offset).checked_sub(1)?;
            self.rules.get(usize::from(*self.numbers.get(row)?)).copied()
        };
        rule().unwrap_or(FrameRule::Unknown)
    }

    /// The rows: the first address for which each rule holds, and the rule.
    pub fn rows(&self) -> impl Iterator<Item = (u64, FrameRule)> + '_ {
        let rules = self.numbers.iter().filter_map(|&number| self.rules.get(usize::from(number)));
        self.starts.iter().map(|&start| self.start + u64::from(start)).zip(rules.copied())
    }

    /// The size of the rows in bytes.
    pub fn size(&self) -> usize {
        size_of_val(&self.starts[..]) + size_of_val(&self.numbers[..]) + size_of_val(&self.rules[..])
    }
}

/// A table that grows.
#[derive(Debug, Default)]
struct Building {
    table: RowTable,
    known: HashMap<FrameRule, u16>,
}

impl Building {
    /// Adds the rows of a function, if it lies behind those before. `None`: there is no room.
    fn add(&mut self, entry: &Entry<'_>) -> Option<()> {
        if self.table.starts.is_empty() {
            (self.table.start, self.table.end) = (entry.start, entry.start);
        }
        let covered = self.table.end;
        let fits = u32::try_from(entry.end.wrapping_sub(self.table.start)).is_ok();
        if entry.start < covered || entry.end <= entry.start || !fits {
            return Some(());
        }
        if entry.start > covered {
            self.push(covered, FrameRule::Unknown)?;
        }
        self.table.end = entry.end;
        entry.rows(|at, rule| self.push(at, rule))
    }

    fn push(&mut self, at: u64, rule: FrameRule) -> Option<()> {
        let number = if let Some(&number) = self.known.get(&rule) {
            number
        } else {
            let number = u16::try_from(self.table.rules.len()).ok()?;
            self.known.try_reserve(1).ok()?;
            self.table.rules.try_reserve(1).ok()?;
            self.known.insert(rule, number);
            self.table.rules.push(rule);
            number
        };
        let RowTable { start, starts, numbers, .. } = &mut self.table;
        if numbers.last() == Some(&number) {
            return Some(());
        }
        let at = u32::try_from(at.checked_sub(*start)?).ok()?;
        debug_assert!(starts.last().is_none_or(|&last| last < at), "invariant 1");
        starts.try_reserve(1).ok()?;
        numbers.try_reserve(1).ok()?;
        starts.push(at);
        numbers.push(number);
        Some(())
    }

    fn finish(self) -> Option<RowTable> {
        let mut table = self.table;
        table.starts.shrink_to_fit();
        table.numbers.shrink_to_fit();
        table.rules.shrink_to_fit();
        (!table.starts.is_empty()).then_some(table)
    }
}
