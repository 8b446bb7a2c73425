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

use super::elf::{Elf, Link, Load, SHF_COMPRESSED, SHT_PROGBITS, Section, Width, broken, build_id, read};
use super::entries;
use super::open::{by_id, path_of};

/// The most that is copied of a file, in bytes; a file with more debug information than that has
/// none.
pub(super) const MOST_BYTES: u64 = 1 << 30;

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

const ET_DYN: u16 = 3;

/// A copy, and the facts about the file that was copied.
#[derive(Debug)]
pub(super) struct Copied {
    pub(super) file: File,
    pub(super) build_id: Option<Vec<u8>>,
    pub(super) link: Option<Link>,
    pub(super) has_debug: bool,
    /// The reason why it has no debug information, if it has none.
    pub(super) lack: Option<&'static str>,
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
        copy(&elf, Some(debug_dirs)).or_else(|_| copy(&elf, None))
    }

    /// The address that the linker gave to the byte at `offset` of the file.
    pub(super) fn addr_of(&self, offset: u64) -> Option<u64> {
        let load = self.loads.iter().find(|load| offset.wrapping_sub(load.offset) < load.size)?;
        Some(load.addr.wrapping_add(offset - load.offset))
    }
}

/// Copies symbols, and debug information if there are directories for it.
fn copy(elf: &Elf<'_>, debug_dirs: Option<&[PathBuf]>) -> io::Result<Copied> {
    let width = elf.width;
    let mut out = Out { file: memory()?, at: 0, width, sections: Vec::new(), names: vec![0] };
    out.write(&elf.head)?;
    let at_programs = out.align()?;
    out.write(&elf.programs)?;
    // The first section is none, its name the empty one.
    out.sections.extend(width.section_bytes(&Section::default()));

    let (mut has_debug, mut abbreviations) = (false, Vec::new());
    let mut common: Option<Box<Copied>> = None;
    for name in SYMBOLS.iter().chain(if debug_dirs.is_some() { &DEBUG[..] } else { &[] }) {
        let Some(section) = elf.find(name) else { continue };
        let offset = out.align()?;
        if *name == ALT_LINK {
            // Another file that this one shares strings and units with: found by its id, never by
            // its name.
            let Some(bytes) = elf.small(section) else { continue };
            let id = bytes.iter().position(|byte| *byte == 0).map_or(&[][..], |end| &bytes[end + 1..]);
            let Some(found) = debug_dirs.and_then(|dirs| shared(dirs, id)) else { continue };
            out.write(path_of(&found.file).as_os_str().as_bytes())?;
            out.write(&[0])?;
            out.write(id)?;
            common = Some(Box::new(found));
        } else if section.flags & SHF_COMPRESSED != 0 {
            out.inflate(elf, section)?;
        } else {
            out.copy(&mut elf.part(section.offset, section.size)?, section.size)?;
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
    head[16..18].copy_from_slice(&ET_DYN.to_le_bytes());
    let (at_sections, count) = out.add_names()?;
    for (at, value) in width.tables().into_iter().zip([at_programs, at_sections]) {
        width.put(&mut head, at, value);
    }
    for (n, value) in [(3, width.section() as u16), (4, count), (5, count - 1)] {
        head[width.count(n)..][..2].copy_from_slice(&value.to_le_bytes());
    }
    out.file.write_all_at(&head, 0)?;
    let bytes = out.at + common.as_ref().map_or(0, |common| common.bytes);
    let file = out.seal()?;
    Ok(Copied {
        file,
        build_id: elf.build_id(),
        link: elf.link(),
        has_debug,
        lack: if has_debug { None } else { Some(lack(elf)) },
        bytes,
        loads: elf.loads(),
        _common: common,
    })
}

/// Why a file has no debug information that is read.
fn lack(elf: &Elf<'_>) -> &'static str {
    let has = |name: &[u8]| elf.find(name).is_some();
    match elf.find(b".debug_info") {
        Some(info) if elf.is_inflatable(info) => "its debug information cannot be read",
        Some(_) => "its debug information is compressed by zstd, which is not read",
        None if has(b".zdebug_info") => "its debug information is in .zdebug sections, which are not read",
        None if has(b".symtab") => "no debug information",
        None if has(b".gnu_debugdata") => "its symbols are in .gnu_debugdata, which is not read",
        None => "no symbols but the exported ones, and no debug information",
    }
}

/// Debug information that several files share. It leads to no other file.
fn shared(debug_dirs: &[PathBuf], id: &[u8]) -> Option<Copied> {
    let file = by_id(debug_dirs, id).filter(|file| build_id(file).as_deref() == Some(id))?;
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
