//! Types: their names and sizes, and the steps into a value.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use gimli::{DwTag, constants as dw};

use super::dwarf::{At, Die, Dwarf};
use super::error::StaticError;
use super::query::Step;
use crate::symbols::elf::broken;

/// Types that stand for one another, as `typedef` and `const` do.
const MOST_PEELED: usize = 64;
/// Types whose members are one type's own: those without a name, bases, variants.
const MOST_PARTS: usize = 1 << 12;
/// Names of members that are kept for an error, which shows fewer.
const MOST_NAMED: usize = 32;
/// Bytes of a type's name.
const LONGEST_NAME: usize = 256;

/// A type; `at: None` is `void`. `taken` is how many dimensions of an array were indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Type {
    at: Option<At>,
    taken: usize,
}

/// The answer to the name of a member.
enum Member {
    /// It, and where the part of the type begins that it is a member of.
    Found { base: u64, die: Die },
    /// The type has these others instead.
    NoneOf(Vec<String>),
}

/// A part of a value, while steps lead into it.
pub(super) struct Place<'n> {
    /// The text of the steps so far.
    pub(super) name: String,
    pub(super) object: &'n Arc<str>,
    pub(super) addr: u64,
    pub(super) type_: Type,
    /// How many bytes: of a bit field, those that have bits of it.
    pub(super) len: Option<u64>,
}

impl Place<'_> {
    /// Goes one step; `read` reads a pointer.
    pub(super) fn go(
        &mut self,
        dwarf: &mut Dwarf<'_>,
        step: Step<'_>,
        read: impl FnOnce(&str, u64, u64) -> Result<u64, StaticError>,
    ) -> Result<(), StaticError> {
        let (at, die) = self.peeled(dwarf)?;
        match step {
            Step::Field(field) => self.go_to_field(dwarf, at, &die, field),
            Step::Element(index) => self.go_to_element(dwarf, at, &die, index),
            Step::Follow => {
                if !is_pointer(die.tag) {
                    return Err(self.wrong_step(dwarf, "is no pointer"));
                }
                let type_ = self.broken(dwarf.type_of(&die))?;
                let width = die.byte_size.filter(|size| matches!(size, 4 | 8)).unwrap_or(dwarf.width());
                self.addr = read(&self.name, self.addr, width)?;
                (self.type_, self.len) = (type_, None);
                self.name = format!("*{}", self.name);
                Ok(())
            }
        }
    }

    /// Its size in bytes, if its type contains that.
    pub(super) fn size(&self, dwarf: &mut Dwarf<'_>) -> Result<Option<u64>, StaticError> {
        if self.len.is_some() { Ok(self.len) } else { self.broken(dwarf.size(self.type_)) }
    }

    /// The name of its type.
    pub(super) fn type_name(&self, dwarf: &mut Dwarf<'_>) -> Result<String, StaticError> {
        self.broken(dwarf.type_name(self.type_))
    }

    fn go_to_field(
        &mut self,
        dwarf: &mut Dwarf<'_>,
        at: At,
        die: &Die,
        field: &str,
    ) -> Result<(), StaticError> {
        if is_pointer(die.tag) && die.tag != dw::DW_TAG_structure_type {
            return Err(self.wrong_step(dwarf, "is a pointer: follow it with `->`"));
        }
        if !is_record(die.tag) {
            return Err(self.wrong_step(dwarf, "has no fields"));
        }
        let (base, member) = match self.broken(dwarf.field(at, field))? {
            Member::Found { base, die } => (base, die),
            Member::NoneOf(fields) if fields.is_empty() && die.is_declaration => return Err(self.no_type()),
            Member::NoneOf(fields) => {
                let (name, type_name) = (self.name.clone(), self.type_name(dwarf)?);
                return Err(StaticError::NoField { name, type_name, field: field.to_owned(), fields });
            }
        };
        let type_ = self.broken(dwarf.type_of(&member))?;
        (self.addr, self.len) = match (member.bits_at, member.bit_size) {
            (Some(at), Some(bits)) => {
                let bytes = (at % 8).saturating_add(bits).div_ceil(8);
                (self.addr.wrapping_add(base).wrapping_add(at / 8), Some(bytes))
            }
            _ => (self.addr.wrapping_add(base).wrapping_add(member.member_at.unwrap_or(0)), None),
        };
        self.type_ = type_;
        self.name = match self.name.strip_prefix('*') {
            Some(pointer) => format!("{pointer}->{field}"),
            None => format!("{}.{field}", self.name),
        };
        Ok(())
    }

    fn go_to_element(
        &mut self,
        dwarf: &mut Dwarf<'_>,
        at: At,
        die: &Die,
        index: u64,
    ) -> Result<(), StaticError> {
        if die.tag != dw::DW_TAG_array_type {
            return Err(self.wrong_step(dwarf, "is no array"));
        }
        let counts = self.broken(dwarf.counts(at))?;
        let Some((count, inner)) = counts.get(self.type_.taken..).and_then(|left| left.split_first()) else {
            return Err(self.wrong_step(dwarf, "is no array"));
        };
        if let Some(length) = *count
            && index >= length
        {
            return Err(StaticError::BeyondEnd { name: self.name.clone(), length, unit: "elements" });
        }
        let element = self.broken(dwarf.type_of(die))?;
        let size = self.broken(dwarf.size(element))?;
        let size = inner.iter().try_fold(size.unwrap_or(0), |size, &count| size.checked_mul(count?));
        let Some(offset) = size.filter(|&size| size > 0).and_then(|size| size.checked_mul(index)) else {
            return Err(self.no_type());
        };
        self.addr = self.addr.wrapping_add(offset);
        self.type_ =
            if inner.is_empty() { element } else { Type { taken: self.type_.taken + 1, ..self.type_ } };
        self.name = format!("{}[{index}]", self.name);
        Ok(())
    }

    /// The entry of its type, behind all that only gives it another name.
    fn peeled(&mut self, dwarf: &mut Dwarf<'_>) -> Result<(At, Die), StaticError> {
        let taken = self.type_.taken;
        let (type_, die) = self.broken(dwarf.peeled(self.type_))?;
        let at = type_.at.ok_or_else(|| self.no_type())?;
        self.type_ = Type { at: Some(at), taken };
        Ok((at, die))
    }

    pub(super) fn no_type(&self) -> StaticError {
        StaticError::NoType { name: self.name.clone(), object: Arc::clone(self.object) }
    }

    fn wrong_step(&self, dwarf: &mut Dwarf<'_>, what: &'static str) -> StaticError {
        match self.type_name(dwarf) {
            Ok(type_name) => StaticError::WrongStep { name: self.name.clone(), type_name, what },
            Err(error) => error,
        }
    }

    fn broken<T>(&self, read: io::Result<T>) -> Result<T, StaticError> {
        read.map_err(|error| StaticError::Broken { object: Arc::clone(self.object), error })
    }
}

impl Dwarf<'_> {
    /// The type of a variable, member or element, or the type behind a pointer.
    pub(super) fn type_of(&mut self, die: &Die) -> io::Result<Type> {
        let (mut way, mut origin) = (die.type_, die.origin);
        for _ in 0..4 {
            let Some(next) = origin.filter(|_| way.is_none()) else { break };
            let Some(at) = self.follow(next)? else { break };
            let die = self.die(at)?;
            (way, origin) = (die.type_, die.origin);
        }
        let at = match way {
            Some(way) => self.follow(way)?,
            None => None,
        };
        Ok(Type { at, taken: 0 })
    }

    /// The type behind names and qualifiers, and its entry.
    fn peeled(&mut self, mut type_: Type) -> io::Result<(Type, Die)> {
        for _ in 0..MOST_PEELED {
            let Some(at) = type_.at else { return Ok((type_, Die::none(false))) };
            let die = self.die(at)?;
            let next = if die.signature.is_some() {
                self.signed(&die)?
            } else if is_alias(die.tag) {
                self.type_of(&die)?
            } else {
                return Ok((type_, die));
            };
            type_ = next;
        }
        Err(broken("a type stands for itself"))
    }

    /// The type in a unit of its own of which an entry has the signature alone.
    fn signed(&mut self, die: &Die) -> io::Result<Type> {
        let at = die.signature.map(|way| self.follow(way)).transpose()?.flatten();
        Ok(Type { at, taken: 0 })
    }

    /// Its size in bytes; `None` if it is unknown.
    fn size(&mut self, type_: Type) -> io::Result<Option<u64>> {
        let (mut type_, mut elements) = (type_, 1_u64);
        for _ in 0..MOST_PEELED {
            let taken = type_.taken;
            let (peeled, die) = self.peeled(type_)?;
            let Some(at) = peeled.at else { return Ok(None) };
            if die.tag != dw::DW_TAG_array_type || (die.byte_size.is_some() && taken == 0) {
                let pointer = is_pointer(die.tag).then_some(self.width());
                return Ok(die.byte_size.or(pointer).and_then(|size| size.checked_mul(elements)));
            }
            for count in self.counts(at)?.into_iter().skip(taken) {
                let Some(product) = count.and_then(|count| elements.checked_mul(count)) else {
                    return Ok(None);
                };
                elements = product;
            }
            type_ = self.type_of(&die)?;
        }
        Err(broken("an array is made of itself"))
    }

    /// How many elements an array has in each dimension.
    fn counts(&mut self, at: At) -> io::Result<Vec<Option<u64>>> {
        let mut counts = Vec::new();
        for child in self.children(at)? {
            let die = self.die(child)?;
            if die.tag == dw::DW_TAG_subrange_type {
                // An array of none ends before its first element.
                let count = die.count.or(die.upper_bound.map(|last| last.wrapping_add(1)));
                counts.push(count);
            }
        }
        Ok(counts)
    }

    /// The member `wanted` of a type, or the names of all, up to [`MOST_NAMED`].
    fn field(&mut self, at: At, wanted: &str) -> io::Result<Member> {
        let is_number = wanted.bytes().all(|byte| byte.is_ascii_digit());
        // Fields of tuples as the compiler of Rust calls them.
        let in_tuple = if is_number { format!("__{wanted}") } else { wanted.to_owned() };
        let (mut parts, mut names) = (VecDeque::from([(at, 0_u64)]), Vec::new());
        let mut seen = 0;
        while let Some((part, base)) = parts.pop_front() {
            seen += 1;
            if seen > MOST_PARTS {
                return Err(broken("a type has too many parts"));
            }
            for child in self.children(part)? {
                let die = self.die(child)?;
                match (die.tag, die.name.as_deref().filter(|name| !name.is_empty())) {
                    (dw::DW_TAG_variant_part | dw::DW_TAG_variant, _) => parts.push_back((child, base)),
                    (dw::DW_TAG_member, _) if die.is_declaration => {}
                    (dw::DW_TAG_member, Some(name)) if name == wanted || name == in_tuple => {
                        return Ok(Member::Found { base, die });
                    }
                    (dw::DW_TAG_member, Some(_)) if names.len() == MOST_NAMED => {}
                    (dw::DW_TAG_member, Some(name)) => {
                        let name = name.strip_prefix("__").filter(|_| die.is_rust).unwrap_or(name);
                        names.push(name.to_owned());
                    }
                    (dw::DW_TAG_member, None) | (dw::DW_TAG_inheritance, _) if !die.is_declaration => {
                        let type_ = self.type_of(&die)?;
                        if let (Type { at: Some(inner), .. }, inner_die) = self.peeled(type_)?
                            && is_record(inner_die.tag)
                        {
                            parts.push_back((inner, base.wrapping_add(die.member_at.unwrap_or(0))));
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(Member::NoneOf(names))
    }

    /// Its name in the syntax of its language.
    fn type_name(&mut self, type_: Type) -> io::Result<String> {
        let (mut type_, mut before, mut after) = (type_, String::new(), String::new());
        for _ in 0..MOST_PEELED {
            let taken = type_.taken;
            let Some(at) = type_.at else {
                before.push_str("void");
                break;
            };
            let die = self.die(at)?;
            if let Some(name) = die.name.as_deref().filter(|_| taken == 0) {
                before.push_str(name);
                break;
            }
            if die.signature.is_some() {
                type_ = self.signed(&die)?;
                continue;
            }
            let is_array = die.tag == dw::DW_TAG_array_type;
            let counts = if is_array { self.counts(at)? } else { Vec::new() };
            let left = counts.into_iter().skip(taken).map(|n| n.map_or(String::new(), |n| n.to_string()));
            match die.tag {
                dw::DW_TAG_array_type if die.is_rust => {
                    before.push('[');
                    after.insert_str(0, &format!("; {}]", left.collect::<Vec<_>>().join(" x ")));
                }
                dw::DW_TAG_array_type => {
                    after.insert_str(0, &format!("[{}]", left.collect::<Vec<_>>().join("][")));
                }
                dw::DW_TAG_const_type => before.push_str("const "),
                dw::DW_TAG_volatile_type => before.push_str("volatile "),
                dw::DW_TAG_atomic_type => before.push_str("_Atomic "),
                dw::DW_TAG_pointer_type => after.insert(0, '*'),
                dw::DW_TAG_reference_type => after.insert(0, '&'),
                dw::DW_TAG_rvalue_reference_type => after.insert_str(0, "&&"),
                tag if is_alias(tag) => {}
                tag => {
                    before.push_str(word_of(tag));
                    break;
                }
            }
            type_ = self.type_of(&die)?;
        }
        before.push_str(&after);
        if before.len() > LONGEST_NAME {
            let end = (0..=LONGEST_NAME).rev().find(|&at| before.is_char_boundary(at)).unwrap_or(0);
            before.truncate(end);
            before.push_str("...");
        }
        Ok(before)
    }
}

/// Whether a type of that kind is another one by another name.
fn is_alias(tag: DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_typedef
            | dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type
            | dw::DW_TAG_atomic_type
            | dw::DW_TAG_immutable_type
            | dw::DW_TAG_packed_type
            | dw::DW_TAG_template_alias
    )
}

fn is_record(tag: DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type | dw::DW_TAG_variant_part
    )
}

fn is_pointer(tag: DwTag) -> bool {
    matches!(tag, dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type)
}

/// The word for a type without a name.
fn word_of(tag: DwTag) -> &'static str {
    match tag {
        dw::DW_TAG_structure_type => "struct",
        dw::DW_TAG_class_type => "class",
        dw::DW_TAG_union_type => "union",
        dw::DW_TAG_enumeration_type => "enum",
        dw::DW_TAG_subroutine_type => "function",
        _ => "type without a name",
    }
}
