//! A page of a file, mapped as code, and its symbols.
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use dormouse_maps::symbols::{Symbol, Symbolizer};
use dormouse_maps::{AddressSpace, Mapping, MappingKind, Region};

pub(crate) const PAGE: u64 = 4096;

/// The page of a file in which a place lies, mapped as code.
pub(crate) struct Code {
    start: *mut libc::c_void,
    offset: u64,
}

// SAFETY: an address and a number; nobody reads or runs what is there.
unsafe impl Send for Code {}

impl Code {
    pub(crate) fn map(file: &File, offset: u64) -> Self {
        // SAFETY: a new mapping where the kernel likes it; nobody runs what is there.
        let start = unsafe {
            let prot = libc::PROT_READ | libc::PROT_EXEC;
            let at = (offset & !(PAGE - 1)) as libc::off_t;
            libc::mmap(ptr::null_mut(), PAGE as usize, prot, libc::MAP_PRIVATE, file.as_raw_fd(), at)
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Self { start, offset }
    }

    /// The kind of mapping and the symbol at the place.
    pub(crate) fn symbol(&self, symbolizer: &mut Symbolizer) -> (MappingKind, Arc<Symbol>) {
        let (mapping, symbol) = self.looked_up(symbolizer);
        (mapping.value.kind, symbol)
    }

    /// The mapping, and the symbol at the place.
    pub(crate) fn looked_up(&self, symbolizer: &mut Symbolizer) -> (Mapping<Region>, Arc<Symbol>) {
        let (space, addr) = (AddressSpace::own().unwrap(), self.start as u64 + self.offset % PAGE);
        let mapping = space.resolve_now(addr).unwrap().unwrap();
        let symbol = symbolizer.symbol(&space, &mapping, addr);
        (mapping, symbol)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody has a reference into it.
        unsafe { libc::munmap(self.start, PAGE as usize) };
    }
}

/// The symbol at `offset` of the file `path` when that is mapped.
pub(crate) fn symbol_in(path: &Path, offset: u64, symbolizer: &mut Symbolizer) -> Arc<Symbol> {
    Code::map(&File::open(path).unwrap(), offset).symbol(symbolizer).1
}
