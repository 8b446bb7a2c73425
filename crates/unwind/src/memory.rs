//! The memory of a process, read by the kernel: it may be unmapped at any moment.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::os::unix::fs::FileExt as _;

use dormouse_sys::peek;
use dormouse_sys::perf::is_filtered;

use crate::bytes::MappedBytes;

/// The longest entry of a table.
const LONGEST: usize = 1 << 20;
/// The bytes of an entry that are read at first.
const FIRST: usize = 512;

/// Memory that can be read by address.
pub trait MemorySource {
    /// Copies memory from `address` on, up to the first byte that is not there. Returns the number
    /// of bytes; `None`: nothing can be read now, as where no descriptor is free.
    fn read(&self, address: u64, into: &mut [u8]) -> Option<usize>;
}

/// Memory, and whether a read of it has failed that may succeed later.
#[derive(Debug)]
pub(crate) struct Attempt<'a, M> {
    memory: &'a M,
    has_failed: Cell<bool>,
}

impl<'a, M> Attempt<'a, M> {
    pub(crate) const fn new(memory: &'a M) -> Self {
        Self { memory, has_failed: Cell::new(false) }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }
}

impl<M: MemorySource> MemorySource for Attempt<'_, M> {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<usize> {
        let read = self.memory.read(address, into);
        self.has_failed.set(self.has_failed() || read.is_none());
        read
    }
}

/// The memory of a process.
#[derive(Debug)]
pub struct ProcessMemory(Source);

#[derive(Debug)]
enum Source {
    /// This process's. No file stays open: the host may close all descriptors, and open others.
    Own,
    Other(File),
}

/// This process's memory.
const OWN: &str = "/proc/self/mem";

impl ProcessMemory {
    /// This process's memory.
    ///
    /// # Errors
    ///
    /// That of opening `/proc/self/mem`, by which it is read under a filter of system calls: a
    /// change of user forbids it, or `/proc` is not mounted.
    pub fn own() -> io::Result<Self> {
        File::open(OWN).map(|_| Self(Source::Own))
    }

    /// This process's memory, which was read before.
    pub(crate) const fn own_again() -> Self {
        Self(Source::Own)
    }

    /// The memory of another process.
    ///
    /// # Errors
    ///
    /// That of opening `/proc/PID/mem`: this process may not look into that one, or `/proc` is not
    /// mounted.
    pub fn of(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(|file| Self(Source::Other(file)))
    }
}

impl MemorySource for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<usize> {
        let from = |file: &File, into: &mut [u8]| file.read_at(into, address).unwrap_or(0);
        Some(match &self.0 {
            Source::Other(file) => from(file, into),
            Source::Own if is_filtered() => match File::open(OWN) {
                Ok(file) => from(&file, into),
                // A change of user forbids it, or `/proc` is gone: for good.
                Err(error) if matches!(error.kind(), PermissionDenied | NotFound) => 0,
                Err(_) => return None,
            },
            Source::Own => peek::copy_some(address as usize, into),
        })
    }
}

impl MemorySource for MappedBytes<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<usize> {
        let from =
            address.checked_sub(self.address).and_then(|at| self.bytes.get(usize::try_from(at).ok()?..));
        let there = from.unwrap_or_default();
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        Some(length)
    }
}

/// Exactly `N` bytes.
pub(crate) fn array<const N: usize>(memory: &impl MemorySource, address: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (memory.read(address, &mut bytes)? == N).then_some(bytes)
}

/// Fills `into` with the entry at an address: its length, and that many bytes.
pub(crate) fn entry<'a>(
    memory: &impl MemorySource,
    address: u64,
    into: &'a mut Vec<u8>,
) -> Option<MappedBytes<'a>> {
    let mut wanted = FIRST;
    loop {
        into.clear();
        into.try_reserve(wanted).ok()?;
        into.resize(wanted, 0);
        let length = memory.read(address, into)?;
        into.truncate(length);
        // A length of all ones announces a longer form, which no linker of today writes.
        let length = u32::from_ne_bytes(*into.first_chunk()?) as usize + size_of::<u32>();
        if length > LONGEST {
            return None;
        }
        if length <= into.len() {
            into.truncate(length);
            return Some(MappedBytes { address, bytes: into });
        }
        if wanted >= length {
            return None;
        }
        wanted = length;
    }
}

/// Memory of which one read fails.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Failing<M> {
    memory: M,
    /// The reads until then.
    before: Cell<u32>,
}

#[cfg(test)]
impl<M> Failing<M> {
    pub(crate) const fn new(memory: M) -> Self {
        Self { memory, before: Cell::new(u32::MAX) }
    }

    /// Has the read fail that comes after this number of others.
    pub(crate) fn fail_after(&self, reads: u32) {
        self.before.set(reads);
    }
}

#[cfg(test)]
impl<M: MemorySource> MemorySource for &Failing<M> {
    fn read(&self, address: u64, into: &mut [u8]) -> Option<usize> {
        let before = self.before.get();
        self.before.set(before.wrapping_sub(1));
        if before == 0 { None } else { self.memory.read(address, into) }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use dormouse_testkit::{Filter, in_child};
    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;

    #[test]
    fn filtered_memory_takes_a_free_descriptor() {
        in_child(|| {
            let (memory, there) = (ProcessMemory::own_again(), 7_u64);
            let read = |address| memory.read(address, &mut [0; 8]);
            Filter::kill(&[libc::SYS_process_vm_readv]).install();
            assert_eq!((read((&raw const there).addr() as u64), read(8)), (Some(8), Some(0)));
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
            assert_eq!((read((&raw const there).addr() as u64), read(8)), (None, None));
        });
    }
}
