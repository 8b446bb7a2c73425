//! Limits on untrusted debug information, checked before the reader uses it.
//!
//! The reader keeps some hundred bytes for each unit, reads each unit's table of abbreviations, and
//! descends into nested entries by recursion. So without limits a file of a few megabytes could
//! take all memory or all of the stack.

use std::io;

use gimli::{DebugAbbrev, DebugInfo, LittleEndian};

use super::elf::broken;

/// Units of debug information.
const MOST_UNITS: usize = 1 << 18;
/// Bytes of the tables of abbreviations of all units together.
const MOST_ABBREVIATIONS: u64 = 1 << 30;
/// Entries inside one another, as functions inlined into others.
const DEEPEST: isize = 512;

/// Refuses debug information that goes beyond the limits.
pub(super) fn check(abbreviations: &[u8], entries: &[u8]) -> io::Result<()> {
    let ends = ends_of_tables(entries, abbreviations.len())?;
    let mut units = DebugInfo::new(entries, LittleEndian).units();
    // A broken unit ends the reading of it: the reader does not go beyond the fault either.
    while let Ok(Some(unit)) = units.next() {
        // The table ends before the next one begins, so that no byte is in more tables than one.
        let own = &abbreviations[..end_of_table(&ends, unit.debug_abbrev_offset().0)];
        let Ok(abbreviations) = unit.abbreviations(&DebugAbbrev::new(own, LittleEndian)) else {
            return Err(broken("its tables of abbreviations overlap, or are broken"));
        };
        let Ok(mut entries) = unit.entries_raw(&abbreviations, None) else { continue };
        while !entries.is_empty() {
            if entries.next_depth() > DEEPEST {
                return Err(broken("its entries lie too deep inside one another"));
            }
            let read = entries.read_abbreviation().and_then(|found| match found {
                Some(found) => entries.skip_attributes(found.attributes()),
                None => Ok(()),
            });
            if read.is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// The places where tables of abbreviations may end: where others begin, and at the end of all.
/// Refuses units that have the reader go through more of them than it should: each unit reads its
/// table, and many may name the same one.
fn ends_of_tables(entries: &[u8], length: usize) -> io::Result<Vec<usize>> {
    let mut units = DebugInfo::new(entries, LittleEndian).units();
    let mut begins: Vec<usize> = Vec::new();
    while let Ok(Some(unit)) = units.next() {
        if begins.len() == MOST_UNITS {
            return Err(broken("it has too many units"));
        }
        begins.push(unit.debug_abbrev_offset().0.min(length));
    }
    let mut ends = begins.clone();
    ends.push(length);
    ends.sort_unstable();
    ends.dedup();
    if begins.iter().map(|&at| (end_of_table(&ends, at) - at) as u64).sum::<u64>() > MOST_ABBREVIATIONS {
        return Err(broken("its units have too many abbreviations"));
    }
    Ok(ends)
}

/// The end of the table that begins at `at`; the end of all for one that begins there or behind it.
fn end_of_table(ends: &[usize], at: usize) -> usize {
    ends[ends.partition_point(|&end| end <= at).min(ends.len() - 1)]
}
