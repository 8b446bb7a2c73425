//! The headers of an ELF file from an untrusted source: sections, notes and links.
//!
//! Everything is read by `pread` into memory of ours, and every value is bounded: a file may be cut
//! off or changed at any time, and may contain anything. Files for machines of 64 and of 32 bits
//! are read, both in little-endian order.
//!
//! # References
//!
//! `elf(5)`; `.gnu_debuglink` in GDB's manual, "Separate Debug Files".

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Take};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use flate2::read::ZlibDecoder;

use super::packed;

/// Sections of a file; those that name them are far below.
const MOST_SECTIONS: u64 = 1 << 16;
const MOST_NAMES: u64 = 16 << 20;
/// Bytes of sections that are not for the reader of symbols: notes and links.
const MOST_SMALL: u64 = 1 << 16;

const ET_EXEC: u64 = 2;
pub(super) const ET_DYN: u64 = 3;
const SHT_NULL: u32 = 0;
const SHT_NOBITS: u32 = 8;
const PT_LOAD: u32 = 1;
pub(super) const SHT_PROGBITS: u32 = 1;
const SHT_NOTE: u32 = 7;
pub(super) const SHF_COMPRESSED: u64 = 0x800;
const ELFCOMPRESS_ZLIB: u32 = 1;
const ELFCOMPRESS_ZSTD: u32 = 2;
const PF_X: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;

/// The headers of a file.
pub(super) struct Elf<'a> {
    pub(super) file: &'a File,
    pub(super) length: u64,
    /// Neither root nor this user owns it: then its debug information is gone through before the
    /// reader does so.
    pub(super) is_others: bool,
    pub(super) width: Width,
    pub(super) head: Vec<u8>,
    pub(super) programs: Vec<u8>,
    sections: Vec<Section>,
    names: Vec<u8>,
}

/// A section's header, without the fields that are not used here.
#[derive(Clone, Copy, Default)]
pub(super) struct Section {
    pub(super) name: u32,
    pub(super) kind: u32,
    pub(super) flags: u64,
    pub(super) addr: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// The link to a file that has the debug information: its name, and the check sum of all that is in
/// it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: OsString,
    pub(super) crc: u32,
}

/// A part of the file, and the address that the linker gave it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) offset: u64,
    pub(super) addr: u64,
    pub(super) size: u64,
    /// How long it is in memory, zeros behind it included.
    pub(super) in_memory: u64,
    pub(super) is_code: bool,
}

/// Bytes of an address: 8, or 4. Both kinds of files have the same fields, so the place of each
/// follows from it.
#[derive(Clone, Copy)]
pub(super) struct Width(usize);

impl Width {
    pub(super) fn is_wide(self) -> bool {
        self.0 == 8
    }

    /// The size of the file's head.
    fn head(self) -> usize {
        40 + 3 * self.0
    }

    /// The size of a program header.
    fn program(self) -> usize {
        8 + 6 * self.0
    }

    /// The size of a section header.
    pub(super) fn section(self) -> usize {
        16 + 6 * self.0
    }

    /// The size of the head of a compressed section, in which the length of the content is the
    /// second address.
    pub(super) fn compressed(self) -> usize {
        3 * self.0
    }

    /// Where in the head the offsets of the program headers and of the section headers stand
    /// (`e_phoff`, `e_shoff`).
    pub(super) fn tables(self) -> [usize; 2] {
        [24 + self.0, 24 + 2 * self.0]
    }

    /// Where in the head number `n` of the sizes and counts of headers stands, from `e_ehsize` on.
    pub(super) fn count(self, n: usize) -> usize {
        28 + 3 * self.0 + 2 * n
    }

    /// The address, offset or size that is number `n` of those behind `from`.
    pub(super) fn long(self, bytes: &[u8], from: usize, n: usize) -> u64 {
        let at = from + n * self.0;
        if self.0 == 8 { number::<8>(bytes, at) } else { number::<4>(bytes, at) }
    }

    pub(super) fn put(self, bytes: &mut [u8], at: usize, value: u64) {
        bytes[at..at + self.0].copy_from_slice(&value.to_le_bytes()[..self.0]);
    }

    fn read_section(self, bytes: &[u8]) -> Section {
        let [name, kind] = [0, 4].map(|at| number::<4>(bytes, at) as u32);
        let [flags, addr, offset, size] = [0, 1, 2, 3].map(|n| self.long(bytes, 8, n));
        Section { name, kind, flags, addr, offset, size }
    }

    pub(super) fn section_bytes(self, section: &Section) -> Vec<u8> {
        let mut bytes = vec![0; self.section()];
        bytes[..4].copy_from_slice(&section.name.to_le_bytes());
        bytes[4..8].copy_from_slice(&section.kind.to_le_bytes());
        for (n, value) in [section.flags, section.addr, section.offset, section.size].into_iter().enumerate()
        {
            self.put(&mut bytes, 8 + n * self.0, value);
        }
        bytes
    }
}

impl<'a> Elf<'a> {
    pub(super) fn read(file: &'a File) -> io::Result<Self> {
        let data = file.metadata()?;
        let (length, owner) = (data.len(), data.uid());
        let is_others = owner != 0 && owner != rustix::process::geteuid().as_raw();
        let width = match read(file, length, 0, 16)?[..6] {
            [0x7f, b'E', b'L', b'F', 2, 1] => Width(8),
            [0x7f, b'E', b'L', b'F', 1, 1] => Width(4),
            _ => return Err(broken("it is no ELF file of this kind of machine")),
        };
        let head = read(file, length, 0, width.head() as u64)?;
        let [program_size, programs, section_size, sections, names] =
            [1, 2, 3, 4, 5].map(|n| number::<2>(&head, width.count(n)));
        let [at_programs, at_sections] = width.tables().map(|at| width.long(&head, at, 0));
        if programs > 0 && program_size != width.program() as u64 {
            return Err(broken("its program headers have an unknown size"));
        }
        let programs = read(file, length, at_programs, programs * width.program() as u64)?;
        let has_sections = at_sections > 0 && section_size == width.section() as u64;
        let mut elf =
            Self { file, length, is_others, width, head, programs, sections: Vec::new(), names: Vec::new() };
        if has_sections {
            elf.read_sections(at_sections, sections, names)?;
        }
        Ok(elf)
    }

    fn read_sections(&mut self, at: u64, mut count: u64, mut names: u64) -> io::Result<()> {
        let (width, size) = (self.width, self.width.section() as u64);
        let first = self.bytes(at, size)?;
        // Numbers that are too large for the file's head stand in the first section's: the count as
        // its size, the index of the names as its link, behind the size.
        if count == 0 {
            count = width.read_section(&first).size;
        }
        if names == 0xffff {
            names = number::<4>(&first, 8 + 4 * width.0);
        }
        if count > MOST_SECTIONS {
            return Err(broken("it has too many sections"));
        }
        let table = self.bytes(at, count * size)?;
        self.sections = table.chunks_exact(width.section()).map(|bytes| width.read_section(bytes)).collect();
        if let Some(section) = self.sections.get(names as usize) {
            self.names = self.bytes(section.offset, section.size.min(MOST_NAMES))?;
        }
        Ok(())
    }

    /// Compares without looking for the name's end: in a table of sixteen megabytes there may be
    /// none, for any section.
    fn is_named(&self, section: &Section, name: &[u8]) -> bool {
        let rest = self.names.get(section.name as usize..).unwrap_or_default();
        rest.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<&Section> {
        let is_there = |section: &&Section| section.kind != SHT_NULL && section.kind != SHT_NOBITS;
        self.sections.iter().filter(is_there).find(|section| self.is_named(section, name))
    }

    /// Bytes of the file, which must have them.
    pub(super) fn bytes(&self, at: u64, size: u64) -> io::Result<Vec<u8>> {
        read(self.file, self.length, at, size)
    }

    /// A part of the file, as long as it is said to be.
    pub(super) fn part(&self, at: u64, size: u64) -> io::Result<Take<&'a File>> {
        if at.checked_add(size).is_none_or(|end| end > self.length) {
            return Err(broken("a section of it reaches beyond its end"));
        }
        let mut file = self.file;
        file.seek(SeekFrom::Start(at))?;
        Ok(file.take(size))
    }

    /// Whether a section is not compressed, or in the way that [`Elf::inflated`] reads.
    pub(super) fn is_inflatable(&self, section: &Section) -> bool {
        section.flags & SHF_COMPRESSED == 0 || {
            let kind = self.bytes(section.offset, 4).map_or(0, |kind| number::<4>(&kind, 0) as u32);
            kind == ELFCOMPRESS_ZLIB || kind == ELFCOMPRESS_ZSTD && packed::IS_READ
        }
    }

    /// The decompressed content of a compressed section, and its declared length. The caller may
    /// read less but must not read more.
    pub(super) fn inflated(&self, section: &Section) -> io::Result<(Box<dyn Read + 'a>, u64)> {
        let head = self.width.compressed() as u64;
        let size =
            section.size.checked_sub(head).ok_or_else(|| broken("a compressed section is too short"))?;
        let bytes = self.bytes(section.offset, head)?;
        let packed = self.part(section.offset + head, size)?;
        let content: Box<dyn Read> = match number::<4>(&bytes, 0) as u32 {
            ELFCOMPRESS_ZLIB => Box::new(ZlibDecoder::new(packed)),
            ELFCOMPRESS_ZSTD => packed::zstd(packed)?,
            _ => return Err(broken("a section is compressed in an unknown way")),
        };
        Ok((content, self.width.long(&bytes, 0, 1)))
    }

    /// The bytes of a section that is small and not compressed.
    pub(super) fn small(&self, section: &Section) -> Option<Vec<u8>> {
        let is_small = section.flags & SHF_COMPRESSED == 0 && section.size <= MOST_SMALL;
        is_small.then(|| self.bytes(section.offset, section.size).ok()).flatten()
    }

    /// Whether it is a program or a library, in which nothing is to be relocated before it is read.
    pub(super) fn is_linked(&self) -> bool {
        matches!(number::<2>(&self.head, 16), ET_EXEC | ET_DYN)
    }

    pub(super) fn build_id(&self) -> Option<Vec<u8>> {
        let notes = self.sections.iter().filter(|section| section.kind == SHT_NOTE);
        notes.filter_map(|section| self.small(section)).find_map(|notes| id_in(&notes))
    }

    pub(super) fn link(&self) -> Option<Link> {
        let bytes = self.small(self.find(b".gnu_debuglink")?)?;
        let name = CStr::from_bytes_until_nul(&bytes).ok()?.to_bytes();
        let crc = (name.len() + 1).next_multiple_of(4);
        let crc = u32::from_le_bytes(bytes.get(crc..crc + 4)?.try_into().ok()?);
        Some(Link { name: OsString::from_vec(name.to_owned()), crc })
    }

    pub(super) fn loads(&self) -> Vec<Load> {
        let programs = self.programs.chunks_exact(self.width.program());
        let loads = programs.filter(|program| number::<4>(program, 0) as u32 == PT_LOAD);
        loads
            .map(|program| {
                let [offset, addr, size, in_memory] = [1, 2, 4, 5].map(|n| self.width.long(program, 0, n));
                let flags = number::<4>(program, if self.width.is_wide() { 4 } else { 24 }) as u32;
                Load { offset, addr, size, in_memory, is_code: flags & PF_X != 0 }
            })
            .collect()
    }
}

/// The build id in a file.
pub(super) fn build_id(file: &File) -> Option<Vec<u8>> {
    Elf::read(file).ok()?.build_id()
}

/// The build id among notes.
fn id_in(mut notes: &[u8]) -> Option<Vec<u8>> {
    while notes.len() >= 12 {
        let [name, size] = [0, 4].map(|at| number::<4>(notes, at) as usize);
        let kind = number::<4>(notes, 8) as u32;
        let value = 12_usize.checked_add(name.checked_next_multiple_of(4)?)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return notes.get(value..value.checked_add(size)?).map(<[u8]>::to_vec);
        }
        notes = notes.get(value.checked_add(size.checked_next_multiple_of(4)?)?..)?;
    }
    None
}

/// Bytes of a file of that `length`, which must have them.
pub(super) fn read(file: &File, length: u64, at: u64, size: u64) -> io::Result<Vec<u8>> {
    if at.checked_add(size).is_none_or(|end| end > length) {
        return Err(broken("a part of it lies beyond its end"));
    }
    let size = usize::try_from(size).map_err(|_| broken("it is too long"))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    bytes.resize(size, 0);
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// A number of `N` bytes; zero where there are none.
pub(super) fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    if let Some(bytes) = bytes.get(at..at + N) {
        wide[..N].copy_from_slice(bytes);
    }
    u64::from_le_bytes(wide)
}

pub(super) fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
