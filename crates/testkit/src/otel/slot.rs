//! The thread-local `otel_thread_ctx_v1`, by *Thread-Local Variable Resolution* of OTEP 4947: found
//! among the dynamic symbols of each object, and reached as the object itself reaches it.
//!
//! # References
//!
//! *ELF Handling For Thread-Local Storage* (Drepper), variant II; the TLS descriptors of x86-64.
//! glibc: `elf/tlsdesc`, `dl_tls.h` (`struct tlsdesc_dynamic_arg`, `dtv_t`).

use std::collections::BTreeSet;
use std::fs;

use object::elf::{self, FileHeader64, ProgramHeader64};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _, RelocationFlags, RelocationTarget};

use super::tracee::{Tracee, memory};

const SYMBOL: &str = "otel_thread_ctx_v1";

/// How to get from a thread to its pointer.
#[derive(Debug, Clone)]
pub struct ThreadSlot {
    /// The file of the object that has the symbol.
    pub object: String,
    way: Way,
}

#[derive(Debug, Clone, Copy)]
enum Way {
    /// At this offset from the thread pointer.
    Offset(u64),
    /// By the descriptor at this address.
    Descriptor(u64),
    /// By a module and an offset, at this address.
    Module(u64),
}

impl ThreadSlot {
    /// Searches all objects of a process for the symbol. Panics if two have it.
    pub fn find(pid: u32) -> Option<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let field = |line: &str, n| line.split_ascii_whitespace().nth(n).map(str::to_owned);
        let files: BTreeSet<_> = maps.lines().filter_map(|line| field(line, 5)).collect();
        let mut found = None;
        for file in files.into_iter().filter(|file| file.starts_with('/')) {
            let of_file = |line: &&str| field(line, 5).is_some_and(|name| name == file);
            let start = maps.lines().find(of_file).and_then(|line| line.split('-').next()).unwrap();
            let start = u64::from_str_radix(start, 16).unwrap();
            let Ok(data) = fs::read(&file) else { continue };
            if let Some(way) = way(&data, start) {
                let before = found.replace(Self { object: file, way });
                assert!(before.is_none(), "in two objects: {before:?}, {found:?}");
            }
        }
        found
    }

    /// Where the pointer of a stopped thread is; `None` if the thread has no place for it yet.
    pub(super) fn address(&self, tracee: &Tracee) -> Option<u64> {
        let (pid, pointer) = (tracee.pid, tracee.thread_pointer);
        match self.way {
            Way::Offset(offset) => Some(pointer.wrapping_add(offset)),
            Way::Descriptor(at) => {
                let [_, argument] = memory::<u64, 2>(pid, at)?;
                if argument.cast_signed() < 0 {
                    // In the static block, below the thread pointer.
                    return Some(pointer.wrapping_add(argument));
                }
                in_module(tracee, argument)
            }
            Way::Module(at) => in_module(tracee, at),
        }
    }
}

/// By glibc's vector of modules, whose address is the second word at the thread pointer.
fn in_module(tracee: &Tracee, index: u64) -> Option<u64> {
    let [module, offset] = memory::<u64, 2>(tracee.pid, index)?;
    let [vector] = memory::<u64, 1>(tracee.pid, tracee.thread_pointer + 8)?;
    // The word before its first entry is the number of entries.
    let [entries] = memory::<u64, 1>(tracee.pid, vector - 16)?;
    if module > entries {
        return None;
    }
    let [block] = memory::<u64, 1>(tracee.pid, vector + 16 * module)?;
    (block != u64::MAX).then(|| block + offset)
}

fn way(data: &[u8], start: u64) -> Option<Way> {
    let file = ElfFile64::<Endianness>::parse(data).ok()?;
    let symbol =
        file.dynamic_symbols().find(|symbol| symbol.name() == Ok(SYMBOL) && !symbol.is_undefined())?;
    assert_eq!((symbol.kind(), symbol.size()), (object::SymbolKind::Tls, 8));
    let headers = file.elf_program_headers();
    let first = of_kind(headers, elf::PT_LOAD).map(|load| load.p_vaddr(Endianness::Little) & !0xfff).min()?;
    let base = start.wrapping_sub(first);
    let mut relocations = file.dynamic_relocations().into_iter().flatten();
    let found = relocations.find_map(|(at, relocation)| {
        let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
        let is_its = relocation.target() == RelocationTarget::Symbol(symbol.index());
        let at = base.wrapping_add(at);
        match r_type {
            elf::R_X86_64_TLSDESC if is_its => Some(Way::Descriptor(at)),
            elf::R_X86_64_DTPMOD64 if is_its => Some(Way::Module(at)),
            _ => None,
        }
    });
    let is_executable = file.elf_header().e_type(Endianness::Little) == elf::ET_EXEC
        || of_kind(headers, elf::PT_INTERP).next().is_some()
        || is_position_independent_executable(&file);
    found.or_else(|| {
        assert!(is_executable, "a shared object says how its thread-local is reached");
        let block = of_kind(headers, elf::PT_TLS).next().unwrap();
        let (size, align) = (block.p_memsz(Endianness::Little), block.p_align(Endianness::Little).max(1));
        Some(Way::Offset(symbol.address().wrapping_sub(size.next_multiple_of(align))))
    })
}

fn of_kind(
    headers: &[ProgramHeader64<Endianness>],
    kind: u32,
) -> impl Iterator<Item = &ProgramHeader64<Endianness>> {
    headers.iter().filter(move |header| header.p_type(Endianness::Little) == kind)
}

/// `DF_1_PIE`: a static executable has no interpreter.
fn is_position_independent_executable(file: &ElfFile64<'_, Endianness>) -> bool {
    let header: &FileHeader64<Endianness> = file.elf_header();
    let headers = header.program_headers(Endianness::Little, file.data()).unwrap_or_default();
    let mut dynamic =
        headers.iter().filter_map(|h| h.dynamic(Endianness::Little, file.data()).ok().flatten());
    dynamic.any(|entries| {
        entries.iter().any(|entry| {
            entry.d_tag.get(Endianness::Little) == u64::from(elf::DT_FLAGS_1)
                && entry.d_val.get(Endianness::Little) & u64::from(elf::DF_1_PIE) != 0
        })
    })
}
