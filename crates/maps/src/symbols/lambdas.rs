//! The lambdas of C++ that are inlined at an address.
//!
//! All of them are called `operator()`, which is all that the reader of symbols returns. The debug
//! information contains where each is declared: in which function, and as which of its lambdas. So
//! the unit that contains the address is read once, from its first entry to its last, and the path
//! of each lambda is recorded: `tea::pour::{lambda#2}::operator()`.
//!
//! # Cost
//!
//! Once for each object, the sections are read into memory and the first entries of all units are
//! read; then, once, each unit with an address at which a lambda is inlined. The ranges of
//! everything inlined there are kept. An object without inlined lambdas costs nothing.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use gimli::{
    AbbreviationsCacheStrategy, AttributeValue as Value, DebugInfoOffset, DwTag, EndianSlice, LittleEndian,
    SectionId, UnitOffset, constants as dw,
};

use super::copy::Copied;
use super::elf::{Elf, broken};

/// The name that all lambdas have, as other types with it do.
pub(super) const NAME: &str = "operator()";
/// Entries and ranges of one unit, and ranges of units.
const MOST_ENTRIES: usize = 1 << 24;
/// Bytes of a name, and of all paths of a unit: many entries may have one long name.
const LONGEST_NAME: usize = 1 << 10;
const MOST_PATHS: usize = 64 << 20;
/// Steps from an entry to the one that has its name.
const MOST_STEPS: usize = 8;

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// The debug information of an object.
#[derive(Debug)]
pub(super) struct Lambdas {
    sections: HashMap<&'static str, Vec<u8>>,
    /// The ranges of units: beginning, end, and where the unit is.
    units: Vec<(u64, u64, usize)>,
    /// Units that were gone through, by their places.
    known: RefCell<HashMap<usize, Vec<Inlined>>>,
}

/// A range of addresses of an inlined function; one that is inlined into another comes behind it.
#[derive(Debug)]
struct Inlined {
    begin: u64,
    end: u64,
    /// Its path, if it is a lambda.
    path: Option<Rc<str>>,
}

/// An entry around the one that is read.
struct Scope {
    depth: isize,
    tag: DwTag,
    /// Its path; empty for a block, or if it is unknown.
    path: String,
    is_lambda: bool,
    lambdas: usize,
}

/// The attributes of an entry that matter here.
#[derive(Default)]
struct Entry<'a> {
    name: Option<Bytes<'a>>,
    origin: Option<usize>,
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    ranges: Vec<(u64, u64)>,
}

impl Lambdas {
    /// The lambdas in a copy.
    pub(super) fn of(copied: &Copied) -> io::Result<Self> {
        let elf = Elf::read(&copied.file)?;
        let mut sections = HashMap::new();
        for id in [
            SectionId::DebugInfo,
            SectionId::DebugAbbrev,
            SectionId::DebugAddr,
            SectionId::DebugLine,
            SectionId::DebugLineStr,
            SectionId::DebugRanges,
            SectionId::DebugRngLists,
            SectionId::DebugStr,
            SectionId::DebugStrOffsets,
        ] {
            if let Some(section) = elf.find(id.name().as_bytes()) {
                sections.insert(id.name(), elf.bytes(section.offset, section.size)?);
            }
        }
        let mut lambdas = Self { sections, units: Vec::new(), known: RefCell::default() };
        lambdas.units = lambdas.ranges().map_err(unreadable)?;
        Ok(lambdas)
    }

    /// How much memory the sections take.
    pub(super) fn bytes(&self) -> u64 {
        self.sections.values().map(|section| section.len() as u64).sum()
    }

    fn dwarf(&self) -> gimli::Dwarf<Bytes<'_>> {
        gimli::DwarfSections::load(|id| {
            Ok::<_, gimli::Error>(self.sections.get(id.name()).map_or(&[][..], Vec::as_slice))
        })
        .map(|sections| sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian)))
        .unwrap_or_default()
    }

    fn ranges(&self) -> gimli::Result<Vec<(u64, u64, usize)>> {
        let (mut dwarf, mut found) = (self.dwarf(), Vec::new());
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            let Some(DebugInfoOffset(offset)) = header.debug_info_offset() else { continue };
            // A broken unit has no lambdas.
            let Ok(unit) = dwarf.unit(header) else { continue };
            let Ok(mut ranges) = dwarf.unit_ranges(&unit) else { continue };
            while let Ok(Some(range)) = ranges.next()
                && found.len() < MOST_ENTRIES
            {
                found.push((range.begin, range.end, offset));
            }
        }
        Ok(found)
    }

    /// The paths of the functions that are inlined at `addr`, the innermost first; `None` for each
    /// that is no lambda.
    pub(super) fn at(&self, addr: u64) -> Vec<Option<Rc<str>>> {
        let is_in = |begin, end| (begin..end).contains(&addr);
        let unit = self.units.iter().find(|(begin, end, _)| is_in(*begin, *end));
        let Some(&(.., unit)) = unit else { return Vec::new() };
        let mut known = self.known.borrow_mut();
        let inlined = known.entry(unit).or_insert_with(|| self.inlined(unit).unwrap_or_default());
        let here = inlined.iter().rev().filter(|it| is_in(it.begin, it.end));
        here.map(|it| it.path.clone()).collect()
    }

    /// All that is inlined in a unit.
    fn inlined(&self, unit: usize) -> gimli::Result<Vec<Inlined>> {
        let dwarf = self.dwarf();
        let unit = dwarf.unit(dwarf.debug_info.header_from_offset(DebugInfoOffset(unit))?)?;
        let mut entries = unit.entries_raw(None)?;
        let mut scopes: Vec<Scope> = Vec::new();
        // By place: the path of a function, whether it is a lambda's, and the one that it repeats.
        let mut functions: HashMap<usize, (String, bool, Option<usize>)> = HashMap::new();
        let (mut inlined, mut left, mut room) = (Vec::new(), MOST_ENTRIES, MOST_PATHS);
        while !entries.is_empty() && left > 0 {
            left -= 1;
            let (UnitOffset(offset), depth) = (entries.next_offset(), entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            let tag = abbreviation.tag();
            let mut entry = Entry::default();
            for &spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(spec)?;
                let value = attribute.value();
                match attribute.name() {
                    dw::DW_AT_name => entry.name = dwarf.attr_string(&unit, value).ok(),
                    dw::DW_AT_specification | dw::DW_AT_abstract_origin => {
                        if let Value::UnitRef(UnitOffset(origin)) = value {
                            entry.origin = Some(origin);
                        }
                    }
                    dw::DW_AT_low_pc => entry.low = dwarf.attr_address(&unit, value)?,
                    dw::DW_AT_high_pc => match dwarf.attr_address(&unit, value)? {
                        Some(high) => entry.high = Some(high),
                        None => entry.size = value.udata_value(),
                    },
                    dw::DW_AT_ranges if tag == dw::DW_TAG_inlined_subroutine => {
                        let ranges = dwarf.attr_ranges(&unit, value)?;
                        if let Some(mut ranges) = ranges {
                            while let Some(range) = ranges.next()?
                                && left > 0
                            {
                                left -= 1;
                                entry.ranges.push((range.begin, range.end));
                            }
                        }
                    }
                    _ => {}
                }
            }
            while scopes.pop_if(|scope| scope.depth >= depth).is_some() {}
            if tag == dw::DW_TAG_inlined_subroutine {
                let high = entry.high.or_else(|| entry.low?.checked_add(entry.size?));
                let ranges = entry.ranges.into_iter().chain(entry.low.zip(high));
                inlined.extend(ranges.map(|(begin, end)| (begin, end, entry.origin)));
                continue;
            }
            let is_class = matches!(tag, dw::DW_TAG_class_type | dw::DW_TAG_structure_type);
            let is_function = tag == dw::DW_TAG_subprogram;
            if !is_class && !is_function && !matches!(tag, dw::DW_TAG_namespace | dw::DW_TAG_union_type) {
                continue;
            }
            let name = entry.name.map(|name| {
                let name = name.slice();
                String::from_utf8_lossy(&name[..name.len().min(LONGEST_NAME)]).into_owned()
            });
            // gcc calls the type `<lambda(long)>`, clang gives it no name.
            let is_lambda = is_class && name.as_ref().is_none_or(|name| name.starts_with("<lambda"));
            let own = match (&name, entry.origin.and_then(|origin| functions.get(&origin))) {
                _ if is_lambda => {
                    let holder = scopes.iter_mut().rev().find(|scope| scope.tag == dw::DW_TAG_subprogram);
                    let number = holder.map_or(1, |holder| {
                        holder.lambdas += 1;
                        holder.lambdas
                    });
                    Some(format!("{{lambda#{number}}}"))
                }
                (None, Some((path, ..))) => Some(path.clone()),
                _ => name,
            };
            let is_whole = entry.origin.is_some() && entry.name.is_none();
            let around = scopes.last().map(|scope| scope.path.as_str()).unwrap_or_default();
            let path = match own {
                Some(own) if is_whole || around.is_empty() => own,
                Some(own) => format!("{around}::{own}"),
                None => around.to_owned(),
            };
            // Nothing is known rather than a part: a lambda may be missing.
            let Some(rest) = room.checked_sub(path.len()) else { return Ok(Vec::new()) };
            room = rest;
            if is_function {
                let is_in_lambda = scopes.last().is_some_and(|scope| scope.is_lambda);
                functions.insert(offset, (path.clone(), is_in_lambda, entry.origin));
            }
            scopes.push(Scope { depth, tag, path, is_lambda, lambdas: 0 });
        }
        let path = |origin: Option<usize>| {
            let mut at = origin?;
            for _ in 0..MOST_STEPS {
                let (path, is_lambda, next) = functions.get(&at)?;
                if *is_lambda {
                    return Some(Rc::from(&**path));
                }
                at = (*next)?;
            }
            None
        };
        let found =
            inlined.into_iter().map(|(begin, end, origin)| Inlined { begin, end, path: path(origin) });
        Ok(found.collect())
    }
}

fn unreadable(_: gimli::Error) -> io::Error {
    broken("its debug information cannot be read")
}
