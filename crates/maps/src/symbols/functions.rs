//! The functions in an object's symbol table, by address.
//!
//! Tables of lines name a function without its path, which is in its symbol. The reader could look
//! that up, but first sorts all symbols, which takes as long as all else that it does for a first
//! address. Here the first addresses are searched from one end to the other; what is sorted for
//! those that follow is small; and names are read when they are asked for.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::io::{self, Read as _};
use std::panic::catch_unwind;

use super::copy::Copied;
use super::demangle::in_source_form;
use super::elf::{Elf, SHF_COMPRESSED, number, read};
use super::symbol::{Frame, Names};

/// Bytes of a table of symbols, and those that are read at once: a number of whole symbols.
const MOST_SYMBOLS: u64 = 256 << 20;
const READ: usize = 48 << 11;
/// Look-ups that take as long as sorting.
const UNSORTED: u32 = 8;
/// Bytes that are read of a name at first, and of a long one.
const NAME: u64 = 256;
const LONGEST_NAME: u64 = 1 << 14;

const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
const SHN_UNDEF: u64 = 0;

/// The functions of an object.
#[derive(Debug)]
pub(super) struct Functions {
    /// After some look-ups by beginning; the longest of those that begin at one address first.
    all: RefCell<Vec<Function>>,
    /// Look-ups so far.
    asked: Cell<u32>,
    /// Where their names are in the file.
    names: (u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Function {
    begin: u64,
    /// 0 if it is not known: then the next one ends it.
    size: u64,
    name: u32,
}

impl Functions {
    /// The functions in the symbol table of a copy; none if it has no table.
    pub(super) fn of(copied: &Copied) -> io::Result<Self> {
        let elf = Elf::read(&copied.file)?;
        let mut found = Self { all: RefCell::default(), asked: Cell::new(0), names: (0, 0) };
        let (Some(symbols), Some(names)) = (elf.find(b".symtab"), elf.find(b".strtab")) else {
            return Ok(found);
        };
        if (symbols.flags | names.flags) & SHF_COMPRESSED != 0 || symbols.size > MOST_SYMBOLS {
            return Ok(found);
        }
        let is_wide = elf.width.is_wide();
        let size = if is_wide { 24 } else { 16 };
        let (mut table, mut bytes) = (elf.part(symbols.offset, symbols.size)?, vec![0; READ]);
        found.names = (names.offset, names.size);
        let all = found.all.get_mut();
        all.reserve_exact(symbols.size as usize / size);
        loop {
            let read = READ.min(table.limit() as usize / size * size);
            if read == 0 {
                return Ok(found);
            }
            table.read_exact(&mut bytes[..read])?;
            all.extend(bytes[..read].chunks_exact(size).filter_map(|it| function(it, is_wide)));
        }
    }

    /// The function that contains an address, with its path.
    pub(super) fn at(&self, addr: u64, copied: &Copied, names: &mut Names) -> Option<Frame> {
        let function = self.function(addr)?;
        let raw = self.name(&function, copied)?;
        // A name at which a demangler panics stands as it is.
        let name = names.intern(&catch_unwind(|| in_source_form(&raw)).unwrap_or(raw));
        Some(Frame { function: name, offset: Some(addr - function.begin), source: None })
    }

    /// The longest of the functions that begin last at or before an address.
    fn function(&self, addr: u64) -> Option<Function> {
        let order = |it: &Function| (it.begin, Reverse(it.size), it.name);
        let (mut all, asked) = (self.all.borrow_mut(), self.asked.get());
        if asked == UNSORTED {
            all.sort_unstable_by_key(order);
        }
        self.asked.set(asked.saturating_add(1));
        let first = if asked < UNSORTED {
            let before = all.iter().filter(|it| it.begin <= addr);
            *before.min_by_key(|it| (Reverse(it.begin), Reverse(it.size), it.name))?
        } else {
            let next = all.partition_point(|it| it.begin <= addr);
            let begin = all[..next].last()?.begin;
            all[all[..next].partition_point(|it| it.begin < begin)]
        };
        // The next one ends a function of unknown length.
        (first.size == 0 || addr - first.begin < first.size).then_some(first)
    }

    fn name(&self, function: &Function, copied: &Copied) -> Option<String> {
        let (from, size) = self.names;
        let (left, end) = (size.checked_sub(function.name.into())?, from.checked_add(size)?);
        [NAME, LONGEST_NAME].into_iter().find_map(|most| {
            let (at, most) = (from + u64::from(function.name), most.min(left));
            let mut bytes = read(&copied.file, end, at, most).ok()?;
            bytes.truncate(memchr::memchr(0, &bytes)?);
            String::from_utf8(bytes).ok()
        })
    }

    /// How much memory they take.
    pub(super) fn bytes(&self) -> u64 {
        (self.all.borrow().capacity() * size_of::<Function>()) as u64
    }
}

fn function(symbol: &[u8], is_wide: bool) -> Option<Function> {
    let (info, section) = if is_wide { (4, 6) } else { (12, 14) };
    if !matches!(symbol[info] & 15, STT_FUNC | STT_GNU_IFUNC) || number::<2>(symbol, section) == SHN_UNDEF {
        return None;
    }
    let (begin, size) = if is_wide {
        (number::<8>(symbol, 8), number::<8>(symbol, 16))
    } else {
        (number::<4>(symbol, 4), number::<4>(symbol, 8))
    };
    Some(Function { begin, size, name: number::<4>(symbol, 0) as u32 })
}
