//! The headers of units, and their entries.

use std::io;

use gimli::{Abbreviations, DebugInfo, EntriesRaw, LittleEndian, UnitHeader, UnitOffset};

use super::Slice;
use crate::symbols::elf::{broken, number};
use crate::symbols::statics::part::Part;

/// The size of the length at the beginning of a unit or table, and the size of the whole.
pub(super) fn length_at(part: &Part<'_>, start: u64) -> io::Result<(u64, u64)> {
    let head = part.up_to(start, 12)?;
    let (size, rest) = match number::<4>(&head, 0) {
        0xffff_ffff => (12, number::<8>(&head, 4)),
        short => (4, short),
    };
    if head.len() < 4 || rest > part.size - start {
        return Err(broken("a unit of its debug information is cut off"));
    }
    Ok((size, size + rest))
}

pub(super) fn header_of(bytes: &[u8]) -> io::Result<UnitHeader<Slice<'_>>> {
    DebugInfo::new(bytes, LittleEndian)
        .units()
        .next()
        .ok()
        .flatten()
        .ok_or_else(|| broken("a unit is broken"))
}

pub(super) fn entries<'u, 'b>(
    header: &UnitHeader<Slice<'b>>,
    abbreviations: &'u Abbreviations,
    offset: usize,
) -> io::Result<EntriesRaw<'u, Slice<'b>>> {
    header.entries_raw(abbreviations, Some(UnitOffset(offset))).map_err(unreadable)
}

pub(super) fn unreadable(_: gimli::Error) -> io::Error {
    broken("an entry of its debug information is broken")
}
