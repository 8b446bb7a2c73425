//! Debug information of variables and types, read unit by unit.
//!
//! The symbol table contains a variable's address. The variable's entry contains that address byte
//! for byte, so the units are read one after the other and searched for these bytes, and only a
//! unit that contains them is parsed: there is no index to build, and little more than one unit in
//! memory at a time. From DWARF 5 on, an entry may contain the index of an address in a table
//! instead: then the table is searched first, and the bytes are those of the index.
//!
//! # Bounds
//!
//! The files are untrusted, so each loop has a bound: sections are as long as `copy.rs` allows,
//! units and tables as the constants here, and `work` counts everything that is parsed. Nothing
//! descends by recursion.
//!
//! # References
//!
//! DWARF 5, sections 2.6 (locations), 5 (types), 7.5 and 7.27 (units and tables of addresses). Not
//! read: split debug information (`.dwo`, `.dwp`), debug information that several files share
//! (`dwz`), and types in a section of their own before DWARF 5.

mod heads;
mod roots;

use std::io;

use gimli::{
    Abbreviations, AttributeValue as Value, DebugAbbrev, DebugAbbrevOffset, DwAt, DwTag, LittleEndian,
    UnitOffset, UnitType, constants as dw,
};
use memchr::memmem;

use super::leb::{length_of_table, put_number, take_number};
use super::part::{LONGEST_STRING, Part};
use crate::symbols::copy::MOST_BYTES;
use crate::symbols::elf::{Elf, broken, number};

/// Units, and entries of one table of addresses, of a file.
const MOST_UNITS: usize = 1 << 20;
/// Bytes of a unit, of all units that are kept, and of all tables of abbreviations.
const LONGEST_UNIT: u64 = 256 << 20;
const MOST_KEPT: u64 = 512 << 20;
const MOST_ABBREVIATIONS: u64 = 128 << 20;
/// Attributes that are read, and bytes of abbreviations. A unit of 100 MB has some 40 million.
const MOST_WORK: u64 = 1 << 26;
/// Members of a type.
const MOST_CHILDREN: usize = 1 << 16;
/// How much of a table is searched at a time.
const WINDOW: u64 = 1 << 20;
/// Places in tables of addresses where one address stands.
const MOST_PLACES: usize = 64;
/// The beginning of a unit, in which its first entry names its table of addresses.
const FIRST_ENTRY: usize = 512;

use heads::{entries, header_of, length_at, unreadable};
pub(in crate::symbols) use roots::UnitRoots;

type Slice<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// The debug information of a file.
pub(super) struct Dwarf<'a> {
    info: Part<'a>,
    abbreviations: Vec<u8>,
    strings: Part<'a>,
    line_strings: Part<'a>,
    string_offsets: Part<'a>,
    addresses: Part<'a>,
    /// Bytes of an address.
    width: usize,
    /// Where the units begin that were passed so far, with the signatures of those of a type.
    passed: Vec<(u64, Option<u64>)>,
    /// Where the next one begins.
    next: u64,
    opened: Vec<Unit>,
    work: u64,
}

/// A unit that was taken apart.
struct Unit {
    start: u64,
    bytes: Vec<u8>,
    abbreviations: Abbreviations,
    string_base: u64,
    is_rust: bool,
}

/// A place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct At {
    unit: usize,
    offset: usize,
}

/// A way from one entry to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Here(At),
    /// To an entry by its offset among all units.
    Info(u64),
    /// To a type by its signature.
    Signature(u64),
    /// To an entry in another file.
    Elsewhere,
}

/// An entry: its attributes that describe variables and types.
#[derive(Debug)]
pub(super) struct Die {
    /// [`NO_TAG`] where there is no entry.
    pub(super) tag: DwTag,
    pub(super) name: Option<String>,
    pub(super) byte_size: Option<u64>,
    /// Bytes behind the beginning of the type that it is a member of.
    pub(super) member_at: Option<u64>,
    pub(super) bit_size: Option<u64>,
    /// Bits behind that beginning; before DWARF 4 the bits between its end and that of its word.
    pub(super) bits_at: Option<u64>,
    bits_after: Option<u64>,
    /// Elements of an array, and the number of the last.
    pub(super) count: Option<u64>,
    pub(super) upper_bound: Option<u64>,
    pub(super) is_declaration: bool,
    pub(super) is_rust: bool,
    pub(super) type_: Option<Way>,
    /// The entry that has what this one leaves out.
    pub(super) origin: Option<Way>,
    /// The type of which this is a declaration.
    pub(super) signature: Option<Way>,
}

/// The kind of no entry.
pub(super) const NO_TAG: DwTag = DwTag(0);

impl Die {
    pub(super) fn none(is_rust: bool) -> Self {
        Self {
            tag: NO_TAG,
            name: None,
            byte_size: None,
            member_at: None,
            bit_size: None,
            bits_at: None,
            bits_after: None,
            count: None,
            upper_bound: None,
            is_declaration: false,
            is_rust,
            type_: None,
            origin: None,
            signature: None,
        }
    }
}

/// The bytes of a location in an entry.
struct Needle {
    /// The table of addresses that they are about.
    table: Option<u32>,
    expression: Vec<u8>,
}

impl<'a> Dwarf<'a> {
    /// The debug information in a file; `None` if it has none.
    pub(super) fn of(elf: &Elf<'a>) -> io::Result<Option<Self>> {
        let mut room = MOST_BYTES;
        let mut part = |name: &[u8]| Part::of(elf, name, &mut room);
        let info = part(b".debug_info")?;
        if info.size == 0 {
            return Ok(None);
        }
        let abbreviations = part(b".debug_abbrev")?;
        if info.size > MOST_BYTES || abbreviations.size > MOST_ABBREVIATIONS {
            return Err(broken("it has too much debug information"));
        }
        Ok(Some(Self {
            info,
            abbreviations: abbreviations.up_to(0, MOST_ABBREVIATIONS)?,
            strings: part(b".debug_str")?,
            line_strings: part(b".debug_line_str")?,
            string_offsets: part(b".debug_str_offsets")?,
            addresses: part(b".debug_addr")?,
            width: if elf.width.is_wide() { 8 } else { 4 },
            passed: Vec::new(),
            next: 0,
            opened: Vec::new(),
            work: 0,
        }))
    }

    /// Bytes of an address.
    pub(super) fn width(&self) -> u64 {
        self.width as u64
    }

    /// The variable that lies at `addr`, by the linker.
    pub(super) fn variable(&mut self, addr: u64) -> io::Result<Option<At>> {
        let needles = self.needles(addr)?;
        while let Some(start) = self.pass()? {
            let bytes = self.info.bytes(start, self.next - start)?;
            let head = &bytes[..bytes.len().min(FIRST_ENTRY)];
            let is_in = |needle: &&Needle| {
                needle.table.is_none_or(|table| memmem::find(head, &table.to_le_bytes()).is_some())
                    && memmem::find(&bytes, &needle.expression).is_some()
            };
            let Some(needle) = needles.iter().find(is_in) else { continue };
            let unit = self.open(start, bytes)?;
            if let Some(at) = self.variable_in(unit, &needle.expression)? {
                return Ok(Some(at));
            }
            self.opened.truncate(unit);
        }
        let is_split = |&(start, _): &(u64, _)| self.root(start).is_ok_and(|root| root.is_split);
        if self.passed.iter().any(is_split) {
            return Err(broken("it is in .dwo files or a .dwp file, which are not read"));
        }
        Ok(None)
    }

    /// The locations that mean `addr`.
    fn needles(&self, addr: u64) -> io::Result<Vec<Needle>> {
        let bytes = &addr.to_le_bytes()[..self.width];
        let mut needles = vec![Needle { table: None, expression: [&[dw::DW_OP_addr.0], bytes].concat() }];
        let (finder, mut places, mut at) = (memmem::Finder::new(bytes), Vec::new(), 0);
        while at < self.addresses.size {
            let window = self.addresses.up_to(at, WINDOW + self.width as u64 - 1)?;
            places.extend(finder.find_iter(&window).take(MOST_PLACES).map(|place| at + place as u64));
            if places.len() > MOST_PLACES {
                return Err(broken("one address is in too many tables"));
            }
            at += WINDOW;
        }
        let (mut start, mut tables) = (0, 0);
        while start < self.addresses.size && !places.is_empty() && tables < MOST_UNITS {
            // Before DWARF 5 a table has no head, as in a program whose debug information is split:
            // none is found behind it.
            let Ok((head, length)) = length_at(&self.addresses, start) else { break };
            // Behind the length: version, and the sizes of an address and of a segment.
            let (base, end) = (start + head + 4, start.saturating_add(length));
            let inside = places.iter().filter(|&&at| (base..end).contains(&at));
            for at in inside.filter(|&&at| (at - base) % self.width as u64 == 0) {
                let mut expression = vec![dw::DW_OP_addrx.0];
                put_number(&mut expression, (at - base) / self.width as u64);
                needles.push(Needle { table: u32::try_from(base).ok(), expression });
            }
            (start, tables) = (end, tables + 1);
        }
        Ok(needles)
    }

    /// The place of the next unit, which ends at `self.next` from here on.
    fn pass(&mut self) -> io::Result<Option<u64>> {
        let start = self.next;
        if start >= self.info.size {
            return Ok(None);
        }
        let (head, length) = length_at(&self.info, start)?;
        if length > LONGEST_UNIT || self.passed.len() == MOST_UNITS {
            return Err(broken("its units of debug information are too long, or too many"));
        }
        let rest = self.info.up_to(start + head, 24)?;
        let is_type = number::<2>(&rest, 0) >= 5 && rest.get(2) == Some(&dw::DW_UT_type.0);
        // Behind version, kind, size of an address, and place of the abbreviations.
        let signature = is_type.then(|| number::<8>(&rest, 4 + if head == 4 { 4 } else { 8 }));
        self.passed.push((start, signature));
        self.next = start + length;
        Ok(Some(start))
    }

    /// Takes a unit apart.
    fn open(&mut self, start: u64, bytes: Vec<u8>) -> io::Result<usize> {
        let kept: u64 = self.opened.iter().map(|unit| unit.bytes.len() as u64).sum();
        if kept + bytes.len() as u64 > MOST_KEPT {
            return Err(broken("its debug information refers to too many units"));
        }
        let header = header_of(&bytes)?;
        let table = self.abbreviations.get(header.debug_abbrev_offset().0..).unwrap_or_default();
        let length = length_of_table(table).ok_or_else(|| broken("a table of abbreviations is cut off"))?;
        self.charge(length)?;
        let abbreviations =
            DebugAbbrev::new(&self.abbreviations[header.debug_abbrev_offset().0..][..length], LittleEndian)
                .abbreviations(DebugAbbrevOffset(0))
                .map_err(|_| broken("a table of abbreviations is broken"))?;
        let mut unit = Unit { start, abbreviations, string_base: 8, is_rust: false, bytes: Vec::new() };
        let mut entries = entries(&header, &unit.abbreviations, header.root_offset().0)?;
        let first = entries.read_abbreviation().map_err(unreadable)?;
        for &spec in first.map_or(&[][..], |first| first.attributes()) {
            match entries.read_attribute(spec).map_err(unreadable)?.value() {
                Value::DebugStrOffsetsBase(base) => unit.string_base = base.0 as u64,
                Value::Language(language) => unit.is_rust = language == dw::DW_LANG_Rust,
                _ => {}
            }
        }
        unit.bytes = bytes;
        self.opened.push(unit);
        Ok(self.opened.len() - 1)
    }

    /// The variable in an opened unit whose location is `expression`.
    fn variable_in(&mut self, unit: usize, expression: &[u8]) -> io::Result<Option<At>> {
        let Unit { bytes, abbreviations, .. } = &self.opened[unit];
        let header = header_of(bytes)?;
        let mut entries = entries(&header, abbreviations, header.root_offset().0)?;
        let mut work = 0;
        while !entries.is_empty() && self.work + work < MOST_WORK {
            let offset = entries.next_offset().0;
            let Some(abbreviation) = entries.read_abbreviation().map_err(unreadable)? else { continue };
            let specs = abbreviation.attributes();
            work += 1 + specs.len() as u64;
            if abbreviation.tag() != dw::DW_TAG_variable {
                entries.skip_attributes(specs).map_err(unreadable)?;
                continue;
            }
            let mut is_it = false;
            for &spec in specs {
                let attribute = entries.read_attribute(spec).map_err(unreadable)?;
                is_it |= attribute.name() == dw::DW_AT_location
                    && matches!(attribute.value(), Value::Exprloc(found) if found.0.slice() == expression);
            }
            if is_it {
                return Ok(Some(At { unit, offset }));
            }
        }
        self.charge(work as usize)?;
        Ok(None)
    }

    /// The entry at a place.
    pub(super) fn die(&mut self, at: At) -> io::Result<Die> {
        let unit = &self.opened[at.unit];
        let header = header_of(&unit.bytes)?;
        let mut entries = entries(&header, &unit.abbreviations, at.offset)?;
        let mut die = Die::none(unit.is_rust);
        let Some(abbreviation) = entries.read_abbreviation().map_err(unreadable)? else { return Ok(die) };
        die.tag = abbreviation.tag();
        for &spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(spec).map_err(unreadable)?;
            self.keep(&mut die, at.unit, attribute.name(), &attribute.value())?;
        }
        if let (Some(after), Some(bits), Some(word)) = (die.bits_after, die.bit_size, die.byte_size) {
            let end = die.member_at.unwrap_or(0).checked_add(word).and_then(|end| end.checked_mul(8));
            die.bits_at = end.and_then(|end| end.checked_sub(after)?.checked_sub(bits));
        }
        let work = 1 + abbreviation.attributes().len();
        self.charge(work)?;
        Ok(die)
    }

    fn keep(&self, die: &mut Die, unit: usize, name: DwAt, value: &Value<Slice<'_>>) -> io::Result<()> {
        let way = || match *value {
            Value::UnitRef(UnitOffset(offset)) => Some(Way::Here(At { unit, offset })),
            Value::DebugInfoRef(place) => Some(Way::Info(place.0 as u64)),
            Value::DebugTypesRef(signature) => Some(Way::Signature(signature.0)),
            _ => Some(Way::Elsewhere),
        };
        match name {
            dw::DW_AT_name => die.name = self.string(&self.opened[unit], value)?,
            dw::DW_AT_type => die.type_ = way(),
            dw::DW_AT_specification | dw::DW_AT_abstract_origin => die.origin = way(),
            dw::DW_AT_signature => die.signature = way(),
            dw::DW_AT_byte_size => die.byte_size = value.udata_value(),
            dw::DW_AT_bit_size => die.bit_size = value.udata_value(),
            dw::DW_AT_bit_offset => die.bits_after = value.udata_value(),
            dw::DW_AT_data_bit_offset => die.bits_at = value.udata_value(),
            dw::DW_AT_count => die.count = value.udata_value(),
            dw::DW_AT_upper_bound => die.upper_bound = value.udata_value(),
            dw::DW_AT_declaration => die.is_declaration = *value == Value::Flag(true),
            dw::DW_AT_data_member_location => {
                die.member_at = match value {
                    // Before DWARF 3: add a number.
                    Value::Exprloc(expression) => match expression.0.slice() {
                        [op, rest @ ..] if *op == dw::DW_OP_plus_uconst.0 => {
                            take_number(rest).map(|found| found.0)
                        }
                        _ => None,
                    },
                    value => value.udata_value(),
                };
                // A place that is computed at run time.
                if die.member_at.is_none() {
                    die.is_declaration = true;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn string(&self, unit: &Unit, value: &Value<Slice<'_>>) -> io::Result<Option<String>> {
        let is_long = header_of(&unit.bytes)?.format() == gimli::Format::Dwarf64;
        self.string_at(unit.string_base, is_long, value)
    }

    /// The string that a value means, in a unit whose table of strings begins at `base`.
    fn string_at(&self, base: u64, is_long: bool, value: &Value<Slice<'_>>) -> io::Result<Option<String>> {
        Ok(match *value {
            Value::String(text) => {
                let text = text.slice();
                Some(String::from_utf8_lossy(&text[..text.len().min(LONGEST_STRING as usize)]).into_owned())
            }
            Value::DebugStrRef(at) => Some(self.strings.string(at.0 as u64)?),
            Value::DebugLineStrRef(at) => Some(self.line_strings.string(at.0 as u64)?),
            Value::DebugStrOffsetsIndex(index) => {
                let size = if is_long { 8 } else { 4 };
                let at = base.saturating_add((index.0 as u64).saturating_mul(size));
                let bytes = self.string_offsets.bytes(at, size)?;
                let at = if size == 8 { number::<8>(&bytes, 0) } else { number::<4>(&bytes, 0) };
                Some(self.strings.string(at)?)
            }
            _ => None,
        })
    }

    /// The members of an entry.
    pub(super) fn children(&mut self, at: At) -> io::Result<Vec<At>> {
        let unit = &self.opened[at.unit];
        let header = header_of(&unit.bytes)?;
        let mut entries = entries(&header, &unit.abbreviations, at.offset)?;
        let (mut children, mut work) = (Vec::new(), 0);
        loop {
            let (offset, depth) = (entries.next_offset().0, entries.next_depth());
            if entries.is_empty() || (depth <= 0 && work > 0) {
                break;
            }
            if children.len() == MOST_CHILDREN || self.work + work > MOST_WORK {
                return Err(broken("a type has too many members"));
            }
            work += 1;
            let Some(abbreviation) = entries.read_abbreviation().map_err(unreadable)? else { continue };
            work += abbreviation.attributes().len() as u64;
            entries.skip_attributes(abbreviation.attributes()).map_err(unreadable)?;
            if depth == 1 {
                children.push(At { unit: at.unit, offset });
            }
        }
        self.charge(work as usize)?;
        Ok(children)
    }

    /// Where a way leads, if that is in this file.
    pub(super) fn follow(&mut self, way: Way) -> io::Result<Option<At>> {
        let (place, is_type) = match way {
            Way::Here(at) => return Ok(Some(at)),
            Way::Elsewhere => return Ok(None),
            Way::Info(place) => (self.unit_around(place)?.map(|start| (start, place - start)), false),
            Way::Signature(wanted) => (self.unit_of_type(wanted)?.map(|start| (start, 0)), true),
        };
        let Some((start, offset)) = place else { return Ok(None) };
        let opened = self.opened.iter().position(|unit| unit.start == start);
        let unit = if let Some(unit) = opened {
            unit
        } else {
            let (_, length) = length_at(&self.info, start)?;
            let bytes = self.info.bytes(start, length)?;
            self.open(start, bytes)?
        };
        let offset = if is_type {
            let UnitType::Type { type_offset, .. } = header_of(&self.opened[unit].bytes)?.type_() else {
                return Ok(None);
            };
            type_offset.0
        } else {
            offset as usize
        };
        Ok(Some(At { unit, offset }))
    }

    fn unit_around(&mut self, place: u64) -> io::Result<Option<u64>> {
        while self.next <= place {
            if self.pass()?.is_none() {
                return Ok(None);
            }
        }
        let after = self.passed.partition_point(|(start, _)| *start <= place);
        Ok(after.checked_sub(1).map(|at| self.passed[at].0))
    }

    fn unit_of_type(&mut self, wanted: u64) -> io::Result<Option<u64>> {
        while self.pass()?.is_some() {}
        Ok(self.passed.iter().find(|(_, signature)| *signature == Some(wanted)).map(|(start, _)| *start))
    }

    fn charge(&mut self, work: usize) -> io::Result<()> {
        self.work += work as u64;
        if self.work >= MOST_WORK { Err(broken("its debug information is too long")) } else { Ok(()) }
    }
}
