//! A copy in memory of the parts of a file that the reader of symbols needs.
//!
//! The files belong to others: their owner may change or cut them at any time and may have written
//! anything into them. A reader that maps such a file is killed with it (SIGBUS); one that trusts
//! the file allocates as much as its headers demand, and opens the files that it names. So the
//! reader is given a file that was made here: with the program headers, the symbols and the
//! sections of debug information that it needs, each read by `pread` and the like. In it
//!
//! - no section is compressed: sections are inflated here, to no more than their headers declare
//!   and no more than is allowed;
//! - no name leads to another file except one link to common debug information, which names a
//!   descriptor of ours;
//! - there are no more sections and bytes than the constants here and in `elf.rs` allow; and, in
//!   files that belong neither to root nor to this user, no more units and nested entries than
//!   `entries.rs` allows.
//!
//! Where the process survives files that are cut off (`cut.rs`), a file of root or of this user
//! from which nothing has to be left out is not copied: the reader gets the file itself.
//!
//! If a part of the debug information cannot be read, for example because the file was cut off
//! meanwhile, the copy has none. If headers or symbols cannot be read there is no copy.
//!
//! # Cost
//!
//! Reads and writes everything that is copied: half a millisecond for each megabyte, and memory of
//! that size as long as the copy is open. In files of other users it also visits all entries, which
//! takes several times as long.
//!
//! # References
//!
//! "Compressed sections" in the generic ABI of ELF.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::elf::{ET_DYN, Elf, Link, Load, SHF_COMPRESSED, SHT_PROGBITS, Section, Width, broken, read};
use super::open::{by_id, path_of};
use super::{cut, entries, packed};

/// The most that is copied of a file, in bytes; a file with more debug information than that has
/// none.
pub(super) const MOST_BYTES: u64 = 1 << 30;

/// The most that is inflated of packed symbols.
const MOST_UNPACKED: u64 = 1 << 28;

/// Symbols, without which nothing is found; and the build id, by which a reader of common debug
/// information identifies the file.
const SYMBOLS: [&[u8]; 5] = [b".symtab", b".strtab", b".dynsym", b".dynstr", b".note.gnu.build-id"];
/// Debug information about functions and lines. The reader does not use that of variables.
const DEBUG: [&[u8]; 12] = [
    b".debug_abbrev",
    b".debug_addr",
    b".debug_aranges",
    b".debug_info",
    b".debug_line",
    b".debug_line_str",
    b".debug_ranges",
    b".debug_rnglists",
    b".debug_str",
    b".debug_str_offsets",
    b".debug_types",
    ALT_LINK,
];
const ALT_LINK: &[u8] = b".gnu_debugaltlink";
/// Debug information in a package (`.dwp`): of units whose addresses are in another file. An index
/// says where in each section a unit is, so there are also those that the reader does not use.
const PACKAGE: [&[u8]; 13] = [
    b".debug_abbrev.dwo",
    b".debug_cu_index",
    b".debug_info.dwo",
    b".debug_line.dwo",
    b".debug_loc.dwo",
    b".debug_loclists.dwo",
    b".debug_macinfo.dwo",
    b".debug_macro.dwo",
    b".debug_rnglists.dwo",
    b".debug_str.dwo",
    b".debug_str_offsets.dwo",
    b".debug_tu_index",
    b".debug_types.dwo",
];
/// Links to files with more. The reader would follow them by their names.
const LINKS: [&[u8]; 3] = [ALT_LINK, b".gnu_debuglink", b".debug_sup"];
/// A table of symbols in a file of its own, compressed by xz.
const PACKED_SYMBOLS: &[u8] = b".gnu_debugdata";

/// A copy, and the facts about the file that was copied.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) file: File,
    pub(super) build_id: Option<Vec<u8>>,
    pub(super) link: Option<Link>,
    pub(super) has_debug: bool,
    /// It has all functions, not only those that other objects may use.
    pub(super) has_functions: bool,
    /// Debug information that is there and not read: why.
    pub(super) unread: Option<&'static str>,
    /// How much memory it takes.
    pub(super) bytes: u64,
    loads: Vec<Load>,
    /// The file that its link to common debug information names.
    _common: Option<Box<Copied>>,
}

impl Copied {
    /// Copies the parts of `file`; without debug information where that fails. Debug information
    /// that several files share is looked for in `debug_dirs`.
    pub(super) fn of(file: &File, debug_dirs: &[PathBuf]) -> io::Result<Self> {
        let elf = Elf::read(file)?;
        if cut::is_survived() && is_harmless(&elf) {
            let has_debug = elf.find(b".debug_info").is_some();
            // Its pages are the file's.
            return Ok(copied(&elf, file.try_clone()?, has_debug, 0, None));
        }
        let all = [&SYMBOLS[..], &DEBUG].concat();
        copy(&elf, &all, debug_dirs).or_else(|_| copy(&elf, &SYMBOLS, &[]))
    }

    /// Copies a package of debug information.
    pub(super) fn package(file: &File) -> io::Result<Self> {
        let elf = Elf::read(file)?;
        if elf.is_others {
            // Its entries are found through an index, by which `entries.rs` does not go.
            return Err(broken("it belongs to another user"));
        }
        copy(&elf, &PACKAGE, &[])
    }

    /// The offset in the file of code to which the linker gave that address.
    pub(super) fn offset_of_code(&self, addr: u64) -> Option<u64> {
        let load = self.loads.iter().find(|load| load.is_code && addr.wrapping_sub(load.addr) < load.size)?;
        Some(load.offset + (addr - load.addr))
    }

    /// The address that the linker gave to a mapping that begins at `offset` of the file. Segments
    /// are mapped in whole pages, so it may begin with the end of the segment before.
    pub(super) fn addr_of_mapping(&self, offset: u64) -> Option<u64> {
        let page = rustix::param::page_size() as u64;
        let load = self.loads.iter().rfind(|load| {
            load.offset & !(page - 1) <= offset && offset < load.offset.saturating_add(load.size)
        })?;
        Some(offset.wrapping_sub(load.offset).wrapping_add(load.addr))
    }

    /// The address that the linker gave to the byte at `offset` of the file.
    pub(super) fn addr_of(&self, offset: u64) -> Option<u64> {
        let load = self.loads.iter().find(|load| offset.wrapping_sub(load.offset) < load.size)?;
        Some(load.addr.wrapping_add(offset - load.offset))
    }
}

/// Whether the reader may have the file itself: nobody else wrote it, and the copy would leave
/// nothing out and inflate nothing.
fn is_harmless(elf: &Elf<'_>) -> bool {
    let wanted = SYMBOLS.iter().chain(&DEBUG).filter_map(|name| elf.find(name));
    let is_whole = elf.find(b".symtab").is_some() || elf.find(PACKED_SYMBOLS).is_none();
    !elf.is_others
        && elf.is_linked()
        && elf.length <= MOST_BYTES
        && is_whole
        && LINKS.iter().all(|name| elf.find(name).is_none())
        && wanted.into_iter().all(|section| section.flags & SHF_COMPRESSED == 0)
}

/// Copies the sections with these names.
fn copy(elf: &Elf<'_>, names: &[&'static [u8]], debug_dirs: &[PathBuf]) -> io::Result<Copied> {
    let width = elf.width;
    let mut out = Out { file: memory()?, at: 0, width, sections: Vec::new(), names: vec![0] };
    out.write(&elf.head)?;
    let at_programs = out.align()?;
    out.write(&elf.programs)?;
    // The first section is none, its name the empty one.
    out.sections.extend(width.section_bytes(&Section::default()));

    let (mut has_debug, mut abbreviations) = (false, Vec::new());
    let mut common: Option<Box<Copied>> = None;
    let unpacked = if elf.find(b".symtab").is_none() { unpacked(elf).ok() } else { None };
    let inner = unpacked.as_ref().and_then(|file| Elf::read(file).ok());
    for name in names {
        let from = match &inner {
            Some(inner) if matches!(*name, b".symtab" | b".strtab") => inner,
            _ => elf,
        };
        let Some(section) = from.find(name) else { continue };
        let offset = out.align()?;
        if *name == ALT_LINK {
            // Another file that this one shares strings and units with: found by its id, never by
            // its name.
            let Some(bytes) = elf.small(section) else { continue };
            let id = bytes.iter().position(|byte| *byte == 0).map_or(&[][..], |end| &bytes[end + 1..]);
            let Some(found) = shared(debug_dirs, id) else { continue };
            out.write(path_of(&found.file).as_os_str().as_bytes())?;
            out.write(&[0])?;
            out.write(id)?;
            common = Some(Box::new(found));
        } else if section.flags & SHF_COMPRESSED != 0 {
            out.inflate(from, section)?;
        } else {
            out.copy(&mut from.part(section.offset, section.size)?, section.size)?;
        }
        match *name {
            b".debug_abbrev" if elf.is_others => abbreviations = out.read(offset)?,
            b".debug_info" => {
                if elf.is_others {
                    entries::check(&abbreviations, &out.read(offset)?)?;
                }
                has_debug = true;
            }
            _ => {}
        }
        out.add(name, offset, Section { flags: section.flags & !SHF_COMPRESSED, ..*section });
    }
    let mut head = elf.head.clone();
    // Nothing in it is to be relocated any more.
    head[16..18].copy_from_slice(&(ET_DYN as u16).to_le_bytes());
    let (at_sections, count) = out.add_names()?;
    for (at, value) in width.tables().into_iter().zip([at_programs, at_sections]) {
        width.put(&mut head, at, value);
    }
    for (n, value) in [(3, width.section() as u16), (4, count), (5, count - 1)] {
        head[width.count(n)..][..2].copy_from_slice(&value.to_le_bytes());
    }
    out.file.write_all_at(&head, 0)?;
    let bytes = out.at + common.as_ref().map_or(0, |common| common.bytes);
    let mut copied = copied(elf, out.seal()?, has_debug, bytes, common);
    copied.has_functions |= inner.is_some();
    Ok(copied)
}

/// A file that the reader gets, and what was found about the one that it stands for.
fn copied(elf: &Elf<'_>, file: File, has_debug: bool, bytes: u64, common: Option<Box<Copied>>) -> Copied {
    Copied {
        file,
        build_id: elf.build_id(),
        link: elf.link(),
        has_debug,
        has_functions: elf.find(b".symtab").is_some(),
        unread: if has_debug { None } else { unread(elf) },
        bytes,
        loads: elf.loads(),
        _common: common,
    }
}

/// Why the debug information of a file is not read, if it has some.
fn unread(elf: &Elf<'_>) -> Option<&'static str> {
    match elf.find(b".debug_info") {
        Some(info) if elf.is_inflatable(info) => Some("its debug information cannot be read"),
        Some(_) => Some("its debug information is compressed by zstd, which is not read"),
        None if elf.find(b".zdebug_info").is_some() => {
            Some("its debug information is in .zdebug sections, which are not read")
        }
        None => None,
    }
}

/// The file in the section for packed symbols, in memory.
fn unpacked(elf: &Elf<'_>) -> io::Result<File> {
    let section = elf.find(PACKED_SYMBOLS).ok_or_else(|| broken("it has no packed symbols"))?;
    let (mut content, mut file) = (packed::xz(elf.part(section.offset, section.size)?)?, memory()?);
    let copied = io::copy(&mut content.by_ref().take(MOST_UNPACKED), &mut file)?;
    if copied < MOST_UNPACKED { Ok(file) } else { Err(broken("its packed symbols are too long")) }
}

/// Debug information that several files share. It leads to no other file.
fn shared(debug_dirs: &[PathBuf], id: &[u8]) -> Option<Copied> {
    let file = by_id(debug_dirs, id)?;
    Copied::of(&file, &[]).ok()
}

/// The copy while it is written.
struct Out {
    file: File,
    at: u64,
    width: Width,
    /// The headers of its sections.
    sections: Vec<u8>,
    names: Vec<u8>,
}

impl Out {
    /// Copies `size` bytes, which `from` must have.
    fn copy(&mut self, from: &mut impl Read, size: u64) -> io::Result<()> {
        if size > MOST_BYTES - self.at {
            return Err(broken("it is too long"));
        }
        let copied = io::copy(&mut from.take(size), &mut self.file)?;
        self.at += copied;
        if copied == size { Ok(()) } else { Err(broken("a section is cut off")) }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let size = bytes.len() as u64;
        self.copy(&mut bytes, size)
    }

    /// Where the next section may begin.
    fn align(&mut self) -> io::Result<u64> {
        let blanks = self.at.next_multiple_of(16) - self.at;
        self.write(&[0; 16][..blanks as usize])?;
        Ok(self.at)
    }

    /// Copies the content of a compressed section, if its length is the one that the section
    /// declares.
    fn inflate(&mut self, elf: &Elf<'_>, section: &Section) -> io::Result<()> {
        let (mut content, length) = elf.inflated(section)?;
        self.copy(&mut content, length)
    }

    /// The bytes that were written since `offset`.
    fn read(&self, offset: u64) -> io::Result<Vec<u8>> {
        read(&self.file, self.at, offset, self.at - offset)
    }

    /// Adds the header of a section that begins at `offset` and ends here.
    fn add(&mut self, name: &[u8], offset: u64, like: Section) {
        let section = Section { name: self.names.len() as u32, offset, size: self.at - offset, ..like };
        self.sections.extend(self.width.section_bytes(&section));
        self.names.extend_from_slice(name);
        self.names.push(0);
    }

    /// Writes the names of all sections, as the last section, and all headers: where they are, and
    /// how many.
    fn add_names(&mut self) -> io::Result<(u64, u16)> {
        const NAME: &[u8] = b".shstrtab";
        let (offset, names) = (self.align()?, [&self.names, NAME, &[0]].concat());
        self.write(&names)?;
        self.add(NAME, offset, Section { kind: SHT_PROGBITS, ..Section::default() });
        let (at, sections) = (self.align()?, std::mem::take(&mut self.sections));
        self.write(&sections)?;
        Ok((at, (sections.len() / self.width.section()) as u16))
    }

    /// Nobody writes to it from here on.
    fn seal(self) -> io::Result<File> {
        fcntl_add_seals(
            &self.file,
            SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
        )?;
        Ok(self.file)
    }
}

/// A new file in memory.
pub(super) fn memory() -> io::Result<File> {
    Ok(memfd_create(c"symbols", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?.into())
}
