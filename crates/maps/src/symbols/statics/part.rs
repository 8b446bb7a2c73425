//! One section of an untrusted file, read where it is needed.
//!
//! A section is read by `pread`, so a file that is cut off meanwhile is an error. A compressed one
//! is inflated into memory, to no more than is allowed.

use std::fs::File;
use std::io::{self, Read as _};

use crate::symbols::copy::memory;
use crate::symbols::elf::{Elf, SHF_COMPRESSED, broken, read};

/// Bytes of a string.
pub(super) const LONGEST_STRING: u64 = 4096;

/// A section of a file, or its content.
pub(super) struct Part<'a> {
    source: Source<'a>,
    at: u64,
    pub(super) size: u64,
}

enum Source<'a> {
    File(&'a File),
    Inflated(File),
}

impl<'a> Part<'a> {
    /// The section of that name; an empty one if there is none. The bytes of an
    /// inflated section are taken from `room`.
    pub(super) fn of(elf: &Elf<'a>, name: &[u8], room: &mut u64) -> io::Result<Self> {
        let Some(section) = elf.find(name) else {
            return Ok(Self { source: Source::File(elf.file), at: 0, size: 0 });
        };
        if section.flags & SHF_COMPRESSED == 0 {
            return Ok(Self { source: Source::File(elf.file), at: section.offset, size: section.size });
        }
        let (content, size) = elf.inflated(section)?;
        *room = room.checked_sub(size).ok_or_else(|| broken("its sections are too long"))?;
        let mut file = memory()?;
        if io::copy(&mut content.take(size), &mut file)? != size {
            return Err(broken("a section is cut off"));
        }
        Ok(Self { source: Source::Inflated(file), at: 0, size })
    }

    /// Bytes of it, which it must have.
    pub(super) fn bytes(&self, at: u64, size: u64) -> io::Result<Vec<u8>> {
        let file = match &self.source {
            Source::File(file) => file,
            Source::Inflated(file) => file,
        };
        if at.checked_add(size).is_none_or(|end| end > self.size) {
            return Err(broken("it names a place beyond a section's end"));
        }
        let end = self.at.checked_add(self.size).ok_or_else(|| broken("a section has no end"))?;
        read(file, end, self.at + at, size)
    }

    /// The bytes from `at` on, at most `most`.
    pub(super) fn up_to(&self, at: u64, most: u64) -> io::Result<Vec<u8>> {
        self.bytes(at, self.size.saturating_sub(at).min(most))
    }

    /// The string that begins there, or as much as anybody reads of one.
    pub(super) fn string(&self, at: u64) -> io::Result<String> {
        let bytes = self.up_to(at, LONGEST_STRING)?;
        let end = memchr::memchr(0, &bytes).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}
