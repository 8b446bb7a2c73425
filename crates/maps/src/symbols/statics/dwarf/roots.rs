//! The first entries of units: their names, the directories in which they were compiled, and
//! whether the rest is in another file. A few hundred bytes of each unit are read.

use std::io;

use gimli::{
    AttributeValue as Value, DebugAbbrev, DebugAbbrevOffset, LittleEndian, UnitType, constants as dw,
};

use super::{Dwarf, FIRST_ENTRY, Slice, entries, header_of, length_at, unreadable};
use crate::symbols::elf::{Elf, broken};
use crate::symbols::statics::leb::length_of_first;

/// Bytes of the first abbreviation.
const LONGEST_FIRST: usize = 4096;

/// Attributes of the first entry of a unit, empty where it has none.
#[derive(Debug, Default)]
pub(in crate::symbols) struct UnitRoot {
    pub(in crate::symbols) name: String,
    /// The directory in which it was compiled.
    pub(in crate::symbols) directory: String,
    /// The rest of it is in another file.
    pub(in crate::symbols) is_split: bool,
}

/// The first entries of all units, as long as they can be read.
pub(in crate::symbols) struct UnitRoots<'a>(Dwarf<'a>);

impl<'a> UnitRoots<'a> {
    /// The units of a file; `None` if it has no debug information.
    pub(in crate::symbols) fn of(elf: &Elf<'a>) -> io::Result<Option<Self>> {
        Ok(Dwarf::of(elf)?.map(Self))
    }
}

impl Iterator for UnitRoots<'_> {
    type Item = UnitRoot;

    fn next(&mut self) -> Option<UnitRoot> {
        let start = self.0.pass().ok()??;
        Some(self.0.root(start).unwrap_or_default())
    }
}

impl Dwarf<'_> {
    /// The attributes of the first entry of the unit at `start`.
    pub(super) fn root(&self, start: u64) -> io::Result<UnitRoot> {
        let mut bytes = self.info.up_to(start, FIRST_ENTRY as u64)?;
        let (head, length) = length_at(&self.info, start)?;
        match bytes.len() as u64 {
            all if length <= all => bytes.truncate(length as usize),
            // The header contains the length of the unit: here the length of what was read of it.
            all if head == 4 => bytes[..4].copy_from_slice(&(all as u32 - 4).to_le_bytes()),
            all => bytes[4..12].copy_from_slice(&(all - 12).to_le_bytes()),
        }
        let header = header_of(&bytes)?;
        let table = self.abbreviations.get(header.debug_abbrev_offset().0..).unwrap_or_default();
        // The first entry has the first abbreviation, as compilers write them. A longer one is not
        // searched: all units of a file may share it.
        let table = &table[..table.len().min(LONGEST_FIRST)];
        let length = length_of_first(table).ok_or_else(|| broken("a table of abbreviations is cut off"))?;
        let first = [&table[..length], &[0]].concat();
        let abbreviations = DebugAbbrev::new(&first, LittleEndian)
            .abbreviations(DebugAbbrevOffset(0))
            .map_err(|_| broken("a table of abbreviations is broken"))?;
        let mut entries = entries(&header, &abbreviations, header.root_offset().0)?;
        let mut root =
            UnitRoot { is_split: matches!(header.type_(), UnitType::Skeleton(_)), ..UnitRoot::default() };
        let Ok(Some(abbreviation)) = entries.read_abbreviation() else { return Ok(root) };
        let (mut name, mut directory, mut base) = (None, None, 8);
        for &spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(spec).map_err(unreadable)?;
            match (attribute.name(), attribute.value()) {
                (_, Value::DebugStrOffsetsBase(place)) => base = place.0 as u64,
                (dw::DW_AT_name, value) => name = Some(value),
                (dw::DW_AT_comp_dir, value) => directory = Some(value),
                (dw::DW_AT_dwo_name | dw::DW_AT_GNU_dwo_name, _) => root.is_split = true,
                _ => {}
            }
        }
        let is_long = header.format() == gimli::Format::Dwarf64;
        let string = |value: Option<Value<Slice<'_>>>| -> io::Result<String> {
            let found = value.map(|value| self.string_at(base, is_long, &value)).transpose()?;
            Ok(found.flatten().unwrap_or_default())
        };
        (root.name, root.directory) = (string(name)?, string(directory)?);
        Ok(root)
    }
}
