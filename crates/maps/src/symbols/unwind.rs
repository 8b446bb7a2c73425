//! Callers, found in a copy of a stack by the tables that compilers write for exceptions
//! (`.eh_frame`): for programs without frame pointers.
//!
//! `framehop` reads the tables; a function without one is taken to have a frame pointer. The tables
//! are those of the files that are mapped (`files.rs`), copied into memory of ours. A file may say
//! anything: the reader may give nonsense then, or panic, and is not asked again; it cannot go
//! beyond the copied stack and [`MOST_CALLERS`].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use framehop::{ExplicitModuleSectionInfo, Module, Unwinder as _};

use super::elf::{Elf, Load};
use super::files::mapped;
use crate::{AddressSpace, Mapping, Perms, Region};

#[cfg(target_arch = "aarch64")]
use framehop::aarch64::{CacheAarch64 as Rules, UnwindRegsAarch64, UnwinderAarch64 as Reader};
#[cfg(target_arch = "x86_64")]
use framehop::x86_64::{CacheX86_64 as Rules, UnwindRegsX86_64, UnwinderX86_64 as Reader};

/// The most callers of one stack.
const MOST_CALLERS: usize = 128;
/// The most bytes of one table.
const MOST_TABLE: u64 = 256 << 20;

/// The tables of a program.
pub struct StackUnwinder {
    /// None after it has panicked.
    reader: Option<Reader<Vec<u8>>>,
    /// Some ten thousand bytes.
    rules: Box<Rules>,
    /// The code that was mapped at the last look, by address.
    code: Vec<Mapping<Region>>,
}

/// How the callers in a copied stack came to an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnwindEnd {
    /// At the first function of the thread.
    Outermost,
    /// Where the copy ends.
    CopyEnd,
    /// At code without a table that keeps no frame pointer, or after as many as are followed.
    Lost,
}

impl fmt::Debug for StackUnwinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StackUnwinder").finish_non_exhaustive()
    }
}

impl StackUnwinder {
    /// Reads the tables of all code that a space has mapped now.
    ///
    /// # Cost
    ///
    /// The tables' bytes are read: some tens of milliseconds for a large program.
    pub fn new(space: &AddressSpace) -> Self {
        let mut unwinder =
            Self { reader: Some(Reader::new()), rules: Box::new(Rules::new()), code: Vec::new() };
        unwinder.update(space);
        unwinder
    }

    /// Reads the tables of code that a space has mapped since the last look, and forgets those of
    /// code that is gone.
    pub fn update(&mut self, space: &AddressSpace) {
        let Some(reader) = &mut self.reader else { return };
        // Without an answer everything stays as it is.
        let Ok(mut now) = space.mappings() else { return };
        now.retain(|mapping| mapping.value.perms.contains(Perms::EXECUTE));
        for gone in self.code.iter().filter(|old| !now.contains(old)) {
            reader.remove_module(gone.start);
        }
        for new in now.iter().filter(|new| !self.code.contains(new)) {
            if let Some(module) = module(space, new) {
                reader.add_module(module);
            }
        }
        self.code = now;
    }

    /// Whether an address lay in code at the last look.
    pub fn is_code(&self, addr: u64) -> bool {
        let behind = self.code.partition_point(|mapping| mapping.start <= addr);
        behind.checked_sub(1).is_some_and(|at| self.code[at].contains(addr))
    }

    /// The addresses to which the callers return, the innermost first, of a thread with these
    /// registers (the instruction, the stack pointer, the frame pointer, and on arm64 the link
    /// register) and the stack from its pointer on.
    pub fn callers(&mut self, registers: [u64; 4], stack: &[u8]) -> Vec<u64> {
        let mut callers = Vec::new();
        self.unwind(registers, stack, &mut callers);
        callers
    }

    /// Puts what [`StackUnwinder::callers`] gives behind what `into` has, and says why there are no
    /// more.
    pub fn unwind(&mut self, registers: [u64; 4], stack: &[u8], into: &mut Vec<u64>) -> UnwindEnd {
        let Self { reader, rules, .. } = self;
        let Some(tables) = reader else { return UnwindEnd::Lost };
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

/// The tables of the file behind a mapping.
fn module(space: &AddressSpace, mapping: &Mapping<Region>) -> Option<Module<Vec<u8>>> {
    let object = space.object(mapping.value.object)?;
    let file = mapped(space, mapping, &object, object.file()?)?;
    let elf = Elf::read(&file).ok()?;
    let section = |name: &[u8]| {
        let section = elf.find(name).filter(|section| section.size <= MOST_TABLE)?;
        let bytes = elf.bytes(section.offset, section.size).ok()?;
        Some((section.addr..section.addr.checked_add(section.size)?, bytes))
    };
    let (eh_frame_svma, eh_frame) = section(b".eh_frame").unzip();
    let (eh_frame_hdr_svma, eh_frame_hdr) = section(b".eh_frame_hdr").unzip();
    // The address in the file of the mapping's first byte.
    let offset = mapping.value.offset;
    let holds = |load: &Load| (load.offset & !0xfff..load.offset.saturating_add(load.size)).contains(&offset);
    // The last: the data before the code may end in the same page.
    let load = elf.loads().into_iter().rfind(holds)?;
    let first = load.addr.wrapping_add(offset.wrapping_sub(load.offset));
    let sections = ExplicitModuleSectionInfo {
        eh_frame_svma,
        eh_frame,
        eh_frame_hdr_svma,
        eh_frame_hdr,
        ..ExplicitModuleSectionInfo::default()
    };
    let range = mapping.start..mapping.last.checked_add(1)?;
    Some(Module::new(object.short_name().into_owned(), range, mapping.start.wrapping_sub(first), sections))
}
