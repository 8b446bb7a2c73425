//! Finding callers in a copy of a stack by the tables that compilers write for exceptions
//! (`.eh_frame`): for programs without frame pointers.
//!
//! `framehop` reads the tables; a function without one is assumed to have a frame pointer. The
//! tables are those of the mapped files (`files.rs`), copied into memory of ours. They may contain
//! anything: then the reader may return nonsense, or panic, after which it is not used again; it
//! cannot go beyond the copied stack and [`MOST_CALLERS`], and tables in which it could loop are
//! not used (`tables.rs`).
//!
//! FIXME: the reader subtracts 8 from addresses that a table computes, unchecked. In a program that
//! checks overflows *and* aborts when it panics, a table that computes an address below 8 ends the
//! program. No compiler writes such a table.

mod tables;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use framehop::{Module, Unwinder as _};

use super::elf::Elf;
use super::files::mapped;
use crate::{AddressSpace, Mapping, ObjectId, Perms, Region};
use tables::{FrameTables, TableBytes};

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{CacheAarch64 as Rules, UnwindRegsAarch64, UnwinderAarch64 as Reader};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{CacheX86_64 as Rules, UnwindRegsX86_64, UnwinderX86_64 as Reader};

/// The most callers of one stack.
const MOST_CALLERS: usize = 128;
/// The most bytes of all tables: those of the largest programs have a hundred megabytes.
const MOST_TABLES: usize = 512 << 20;

/// The unwind tables of a program.
pub struct StackUnwinder {
    /// None after it has panicked.
    reader: Option<Reader<TableBytes>>,
    /// Some ten thousand bytes.
    rules: Box<Rules>,
    /// The code that was mapped at the last look, by address.
    code: Vec<Mapping<Region>>,
    /// The tables of the files behind it; none of a file that has none. A file may have many
    /// mappings: a page that was written to is one for itself.
    files: HashMap<ObjectId, Option<FrameTables>>,
}

/// How the search for callers in a copied stack ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnwindEnd {
    /// At the outermost function of the thread.
    Outermost,
    /// At the end of the copy.
    CopyEnd,
    /// At code without a table that keeps no frame pointer, or at the limit of callers.
    Lost,
}

impl fmt::Debug for StackUnwinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackUnwinder").finish_non_exhaustive()
    }
}

impl StackUnwinder {
    /// Reads the tables of all code that is mapped in `space` now.
    ///
    /// # Cost
    ///
    /// Reads all bytes of the tables: some tens of milliseconds for a large program.
    pub fn new(space: &AddressSpace) -> Self {
        let (reader, rules) = (Some(Reader::new()), Box::new(Rules::new()));
        let mut unwinder = Self { reader, rules, code: Vec::new(), files: HashMap::new() };
        unwinder.update(space);
        unwinder
    }

    /// Reads the tables of code that was mapped since the last update, and drops those of code that
    /// is gone.
    pub fn update(&mut self, space: &AddressSpace) {
        let Some(reader) = &mut self.reader else { return };
        // Without an answer everything stays as it is.
        let Ok(mut now) = space.mappings() else { return };
        now.retain(|mapping| mapping.value.perms.contains(Perms::EXECUTE));
        let is_in = |list: &[Mapping<Region>], one: &Mapping<Region>| {
            list.binary_search_by_key(&one.start, |mapping| mapping.start).is_ok_and(|at| list[at] == *one)
        };
        for gone in self.code.iter().filter(|old| !is_in(&now, old)) {
            reader.remove_module(gone.start);
        }
        let used: HashSet<ObjectId> = now.iter().map(|mapping| mapping.value.object).collect();
        self.files.retain(|id, _| used.contains(id));
        let mut size: usize = self.files.values().flatten().map(FrameTables::size).sum();
        for new in now.iter().filter(|new| !is_in(&self.code, new)) {
            let tables = self.files.entry(new.value.object).or_insert_with(|| {
                let read = tables_of(space, new).filter(|read| size + read.size() <= MOST_TABLES);
                size += read.as_ref().map_or(0, FrameTables::size);
                read
            });
            if let Some(tables) = tables
                && let Some(module) = module(new, tables)
            {
                reader.add_module(module);
            }
        }
        self.code = now;
    }

    /// Whether `addr` lay in code at the last update.
    pub fn is_code(&self, addr: u64) -> bool {
        let behind = self.code.partition_point(|mapping| mapping.start <= addr);
        behind.checked_sub(1).is_some_and(|at| self.code[at].contains(addr))
    }

    /// The return addresses of the callers, the innermost first, of a thread with these registers
    /// (the instruction pointer, the stack pointer, the frame pointer, and on arm64 the link
    /// register) and the stack from its stack pointer on.
    pub fn callers(&mut self, registers: [u64; 4], stack: &[u8]) -> Vec<u64> {
        let mut callers = Vec::new();
        self.unwind(registers, stack, &mut callers);
        callers
    }

    /// Appends the result of [`StackUnwinder::callers`] to `into`, and returns why there are no
    /// more.
    pub fn unwind(&mut self, registers: [u64; 4], stack: &[u8], into: &mut Vec<u64>) -> UnwindEnd {
        let Self { reader, rules, .. } = self;
        let Some(tables) = reader else { return UnwindEnd::Lost };
        // No stack is there, and the reader reads the word below a frame.
        if registers[1] < 8 {
            return UnwindEnd::Lost;
        }
        let before = into.len();
        let found = catch_unwind(AssertUnwindSafe(|| {
            let [ip, sp, fp, _link] = registers;
            let mut is_beyond = false;
            let mut word = |addr: u64| {
                let at = usize::try_from(addr.checked_sub(sp).ok_or(())?).map_err(|_| ())?;
                let bytes = stack.get(at..).and_then(<[u8]>::first_chunk);
                is_beyond = bytes.is_none();
                Ok(u64::from_le_bytes(*bytes.ok_or(())?))
            };
            #[cfg(target_arch = "x86_64")]
            let registers = UnwindRegsX86_64::new(ip, sp, fp);
            #[cfg(target_arch = "aarch64")]
            let registers = UnwindRegsAarch64::new(_link, sp, fp);
            let mut frames = tables.iter_frames(ip, registers, rules, &mut word);
            // The first is the instruction itself.
            let mut left = MOST_CALLERS + 1;
            let end = loop {
                match frames.next() {
                    Ok(None) => break UnwindEnd::Outermost,
                    Ok(Some(_)) if left == 0 => break UnwindEnd::Lost,
                    Ok(Some(framehop::FrameAddress::InstructionPointer(_))) => {}
                    Ok(Some(caller)) => into.push(caller.address()),
                    Err(_) => break UnwindEnd::Lost,
                }
                left -= 1;
            };
            if end == UnwindEnd::Lost && is_beyond { UnwindEnd::CopyEnd } else { end }
        }));
        found.unwrap_or_else(|_| {
            *reader = None;
            into.truncate(before);
            UnwindEnd::Lost
        })
    }
}

/// The tables of the file behind a mapping, while there is room for them.
fn tables_of(space: &AddressSpace, mapping: &Mapping<Region>) -> Option<FrameTables> {
    let object = space.object(mapping.value.object)?;
    let file = mapped(space, mapping, &object, object.file()?)?;
    Some(FrameTables::read(&Elf::read(&file).ok()?))
}

fn module(mapping: &Mapping<Region>, tables: &FrameTables) -> Option<Module<TableBytes>> {
    let first = tables.addr(mapping.value.offset)?;
    let range = mapping.start..mapping.last.checked_add(1)?;
    Some(Module::new(String::new(), range, mapping.start.wrapping_sub(first), tables.sections()))
}
