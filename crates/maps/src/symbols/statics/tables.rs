//! The variables and functions in an object's symbol tables.
//!
//! # References
//!
//! `elf(5)`, "String and symbol tables".

use std::io;

use crate::symbols::elf::{Elf, SHF_COMPRESSED, broken, number};

/// Bytes of a table of symbols, of which each takes 24, and of all of their names.
const MOST_SYMBOLS: u64 = 256 << 20;
const MOST_NAMES: u64 = 512 << 20;
/// Bytes of a name.
const LONGEST_NAME: usize = 1 << 14;

const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STT_TLS: u8 = 6;
const SHN_UNDEF: u64 = 0;
const SHN_ABS: u64 = 0xfff1;

/// The symbols of an object, and their names.
pub(super) struct Table {
    symbols: Vec<u8>,
    names: Vec<u8>,
    is_wide: bool,
}

/// The kind of symbol that is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Variable,
    Function,
}

/// A variable or function in a table.
pub(super) struct Entry<'a> {
    pub(super) name: &'a [u8],
    /// By the linker; of a thread-local where in the memory of a thread.
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) is_thread_local: bool,
}

impl Table {
    /// All symbols of an object.
    pub(super) fn whole(elf: &Elf<'_>) -> io::Result<Option<Self>> {
        Self::read(elf, [b".symtab", b".strtab"])
    }

    /// Those that other objects may use, which stripping leaves.
    pub(super) fn dynamic(elf: &Elf<'_>) -> io::Result<Option<Self>> {
        Self::read(elf, [b".dynsym", b".dynstr"])
    }

    fn read(elf: &Elf<'_>, [symbols, names]: [&[u8]; 2]) -> io::Result<Option<Self>> {
        let (Some(symbols), Some(names)) = (elf.find(symbols), elf.find(names)) else { return Ok(None) };
        if (symbols.flags | names.flags) & SHF_COMPRESSED != 0 {
            return Err(broken("its symbols are compressed"));
        }
        if symbols.size > MOST_SYMBOLS || names.size > MOST_NAMES {
            return Err(broken("it has too many symbols"));
        }
        Ok(Some(Self {
            symbols: elf.bytes(symbols.offset, symbols.size)?,
            names: elf.bytes(names.offset, names.size)?,
            is_wide: elf.width.is_wide(),
        }))
    }

    /// The symbols of a kind. Ends at names that overlap so that reading all of them would take
    /// long.
    pub(super) fn entries(&self, wanted: Kind) -> impl Iterator<Item = Entry<'_>> {
        let kinds = match wanted {
            Kind::Variable => [STT_OBJECT, STT_TLS],
            Kind::Function => [STT_FUNC; 2],
        };
        let size = if self.is_wide { 24 } else { 16 };
        let mut left = 2 * self.names.len();
        self.symbols.chunks_exact(size).filter_map(move |symbol| {
            let (info, section) = if self.is_wide { (4, 6) } else { (12, 14) };
            let kind = symbol[info] & 15;
            let section = number::<2>(symbol, section);
            if !kinds.contains(&kind) || matches!(section, SHN_UNDEF | SHN_ABS) || left == 0 {
                return None;
            }
            let name = self.names.get(number::<4>(symbol, 0) as usize..)?;
            let name = &name[..name.len().min(LONGEST_NAME)];
            let end = memchr::memchr(0, name);
            left = left.saturating_sub(end.unwrap_or(name.len()) + 1);
            let name = &name[..end?];
            let (addr, size) = if self.is_wide {
                (number::<8>(symbol, 8), number::<8>(symbol, 16))
            } else {
                (number::<4>(symbol, 4), number::<4>(symbol, 8))
            };
            Some(Entry { name, addr, size, is_thread_local: kind == STT_TLS })
        })
    }
}
