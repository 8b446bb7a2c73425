//! The objects of a process: their files, their symbols, and their addresses.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::dwarf::Dwarf;
use super::tables::{Kind, Table};
use crate::symbols::elf::{Elf, Load};
use crate::symbols::files::{Leads, mapped, separate};
use crate::{AddressSpace, MappedObject, Mapping, Perms, Region, SpaceError};

/// Parts of a file that the loader maps; it makes some five.
const MOST_LOADS: usize = 64;

/// The files that a process has mapped. Each is opened when it is read and closed after it: they
/// may be many, and the caller may have few descriptors left.
pub(super) struct Objects<'a> {
    pub(super) space: &'a AddressSpace,
    debug_dirs: &'a [PathBuf],
    /// By address.
    all: Vec<Object>,
}

/// A file that a process has mapped.
pub(super) struct Object {
    pub(super) name: Arc<str>,
    /// Whether it is the program that the process executes.
    pub(super) is_program: bool,
    mapped: Arc<MappedObject>,
    mappings: Vec<Mapping<Region>>,
}

/// An object that has symbols, and its files.
pub(super) struct Opened<'a> {
    pub(super) object: &'a Object,
    file: File,
    /// The file that has the symbols or the debug information that this one lacks.
    separate: Option<File>,
}

impl<'a> Objects<'a> {
    pub(super) fn of(space: &'a AddressSpace, debug_dirs: &'a [PathBuf]) -> Result<Self, SpaceError> {
        space.refresh()?;
        let program = fs::read_link(format!("/proc/{}/exe", space.pid())).unwrap_or_default();
        let (mut objects, mut places) = (Vec::<Object>::new(), HashMap::new());
        for mapping in space.mappings()?.into_iter().filter(|mapping| mapping.value.kind.has_file()) {
            let id = mapping.value.object;
            let Some(mapped) = space.object(id) else { continue };
            let place = *places.entry(id).or_insert_with(|| {
                let (name, is_program) = (mapped.short_name().into(), mapped.name() == program);
                objects.push(Object { name, is_program, mapped, mappings: Vec::new() });
                objects.len() - 1
            });
            objects[place].mappings.push(mapping);
        }
        Ok(Self { space, debug_dirs, all: objects })
    }

    /// Those that have symbols, with their numbers.
    pub(super) fn opened(&self) -> impl Iterator<Item = (usize, Opened<'_>)> {
        (0..self.all.len()).filter_map(|number| Some((number, self.open(number)?)))
    }

    pub(super) fn open(&self, number: usize) -> Option<Opened<'_>> {
        let object = &self.all[number];
        let file = mapped(self.space, object.mappings.first()?, &object.mapped, object.mapped.file()?)?;
        let elf = Elf::read(&file).ok()?;
        let is_whole = elf.find(b".symtab").is_some() && elf.find(b".debug_info").is_some();
        let (build_id, link) = (elf.build_id(), elf.link());
        let leads = Leads { file: &file, build_id: build_id.as_deref(), link: link.as_ref() };
        let readable = |file| Elf::read(&file).is_ok().then_some(file);
        let separate = (!is_whole)
            .then(|| separate(&leads, self.space.pid(), &object.mapped, self.debug_dirs, readable));
        Some(Opened { object, separate: separate.flatten(), file })
    }
}

impl Opened<'_> {
    /// Its full symbol table, which includes local symbols; otherwise the dynamic one.
    pub(super) fn table(&self) -> io::Result<Option<Table>> {
        if let Some(table) = self.whole_table()? {
            return Ok(Some(table));
        }
        Table::dynamic(&Elf::read(&self.file)?)
    }

    /// Whether other objects may use its variable of that name.
    pub(super) fn exports(&self, raw: &[u8]) -> bool {
        let table = Elf::read(&self.file).and_then(|elf| Table::dynamic(&elf)).ok().flatten();
        table.is_some_and(|table| table.entries(Kind::Variable).any(|entry| entry.name == raw))
    }

    pub(super) fn is_stripped(&self) -> bool {
        self.whole_table().is_ok_and(|table| table.is_none())
    }

    fn whole_table(&self) -> io::Result<Option<Table>> {
        let own = Table::whole(&Elf::read(&self.file)?)?;
        match &self.separate {
            Some(file) if own.is_none() => Table::whole(&Elf::read(file)?),
            _ => Ok(own),
        }
    }

    /// Has `work` done with its debug information, if there is any.
    pub(super) fn with_debug<T>(
        &self,
        work: impl FnOnce(&mut Dwarf<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        for file in [Some(&self.file), self.separate.as_ref()].into_iter().flatten() {
            let elf = Elf::read(file)?;
            if let Some(mut dwarf) = Dwarf::of(&elf)? {
                return work(&mut dwarf).map(Some);
            }
        }
        Ok(None)
    }

    /// The addresses in the process to which the loader has put what the linker put to `addr`: one,
    /// or more where an object is loaded several times.
    ///
    /// A file may be mapped by others than the loader. So that distance between the linker's and
    /// the loader's addresses counts at which most parts of the file are mapped as the linker said.
    pub(super) fn placed(&self, addr: u64) -> Vec<u64> {
        let loads = Elf::read(&self.file).map(|elf| elf.loads()).unwrap_or_default();
        let (loads, mappings) = (&loads[..loads.len().min(MOST_LOADS)], &self.object.mappings);
        let is_around = |load: &&Load| addr.wrapping_sub(load.addr) < load.in_memory;
        let Some(own) = loads.iter().find(is_around) else { return Vec::new() };
        // All zeros: no part of the file shows where it is.
        let Some(shown) = loads.iter().find(|load| load.size > 0 && (own.size == 0 || load.addr == own.addr))
        else {
            return Vec::new();
        };
        let mut distances: Vec<u64> = mappings
            .iter()
            .filter(|mapping| !mapping.value.perms.contains(Perms::SHARED))
            .filter_map(|mapping| {
                let inside = shown.offset.checked_sub(mapping.value.offset)?;
                let at = mapping.start.checked_add(inside).filter(|&at| at <= mapping.last)?;
                Some(at.wrapping_sub(shown.addr))
            })
            .collect();
        distances.sort_unstable();
        distances.dedup();
        let fits = |distance: u64| {
            let is_mapped = |load: &&Load| {
                let at = load.addr.wrapping_add(distance);
                let after = mappings.partition_point(|mapping| mapping.start <= at);
                let found = after.checked_sub(1).map(|index| &mappings[index]);
                found.is_some_and(|mapping| mapping.contains(at) && mapping.offset_of(at) == load.offset)
            };
            loads.iter().filter(|load| load.size > 0).filter(is_mapped).count()
        };
        let fitting: Vec<(usize, u64)> =
            distances.into_iter().map(|distance| (fits(distance), distance)).collect();
        let most = fitting.iter().map(|(count, _)| *count).max().unwrap_or(0);
        let best = fitting.into_iter().filter(|(count, _)| *count == most);
        best.map(|(_, distance)| addr.wrapping_add(distance)).collect()
    }
}
