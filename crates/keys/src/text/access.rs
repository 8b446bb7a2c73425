//! The ladder: by which way code can be written, tried anew for every batch, because a process may give up rights
//! at any time.
//!
//! 1. *mprotect*: the pages become writable, the bytes are stored, the pages are sealed again. Two system calls for
//!    each run of pages, however many sites. Refused where code must not become writable (`PR_SET_MDWE`,
//!    systemd's `MemoryDenyWriteExecute=`, `mseal`, a policy on `execmod`, a filter of system calls).
//! 2. *`/proc/self/mem`*: one system call for each write; the pages never become writable. Refused without `/proc`, to
//!    a process that is not dumpable and has not opened it before, and by `proc_mem.force_override=`.
//!
//! Nothing is stored before all of a batch can be, and everything that could be refused has been.
//!
//! # Safety
//!
//! A plain store goes to a page that [`super::pages`] has made writable.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

use super::memory::Memory;
use super::pages::{self, Writable};
use super::{Patch, Segment};
use crate::Error;
use crate::registry::Site;

/// A way to write the sites of a batch.
#[derive(Debug)]
pub(super) enum Access {
    /// Their pages are writable.
    Pages(Writable),
    /// Through `/proc/self/mem`.
    Memory {
        memory: Memory,
        /// Pages that hold a site.
        pages: usize,
    },
}

impl Access {
    /// The first step of the ladder that takes all of the (sorted) patches.
    pub(super) fn open(patches: &[Patch], segments: &[Segment]) -> Result<Self, Error> {
        let (runs, pages) = pages::runs(patches, segments);
        let mprotect = match Writable::open(runs, pages) {
            Ok(writable) => return Ok(Self::Pages(writable)),
            Err(refused) => refused,
        };
        match Memory::open(patches) {
            Ok(memory) => Ok(Self::Memory { memory, pages }),
            Err(memory) => Err(unwritable(mprotect, memory)),
        }
    }

    /// Writes some bytes of a site, the first to the last.
    pub(super) fn store(&self, address: usize, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::Pages(_) => {
                for (at, &byte) in bytes.iter().enumerate() {
                    // SAFETY: inside a site whose pages are writable; instruction fetches of other threads are not
                    // data accesses.
                    unsafe { AtomicU8::from_ptr((address + at) as *mut u8) }.store(byte, Ordering::Release);
                }
                Ok(())
            }
            Self::Memory { memory, .. } => memory.write(address, bytes).map_err(|errno| Error::Denied {
                what: "writing code through /proc/self/mem",
                source: errno.into(),
                setting: "it was possible a moment before: let nobody close descriptors that are not theirs",
            }),
        }
    }

    /// How many pages hold a site.
    pub(super) fn pages(&self) -> usize {
        match self {
            Self::Pages(writable) => writable.pages,
            Self::Memory { pages, .. } => *pages,
        }
    }

    /// Ends the writing; says how many pages stay writable, which only happens when there is no memory left for
    /// the mapping.
    pub(super) fn close(self) -> usize {
        match self {
            Self::Pages(writable) => writable.seal(),
            Self::Memory { .. } => 0,
        }
    }
}

fn unwritable(mprotect: io::Error, memory: io::Error) -> Error {
    // The second is the easier to allow: no code becomes writable by it.
    let setting = for_memory(&memory).unwrap_or_else(|| for_mprotect(&mprotect));
    Error::Unwritable { mprotect, memory, setting }
}

/// What to change so that pages can be made writable.
fn for_mprotect(refused: &io::Error) -> &'static str {
    match refused.raw_os_error() {
        Some(libc::EACCES) => "allow writable code (systemd: MemoryDenyWriteExecute=no; SELinux: execmod)",
        Some(libc::ENOMEM) => "raise vm.max_map_count, or the limit of memory",
        _ => "allow mprotect(PROT_WRITE | PROT_EXEC) in the filter of system calls, and leave code unsealed",
    }
}

/// What to change so that `/proc/self/mem` can be written, where that is known.
fn for_memory(refused: &io::Error) -> Option<&'static str> {
    match refused.raw_os_error()? {
        libc::ENOENT => Some("mount /proc, or call dormouse_keys::prepare() before it is out of reach"),
        libc::EACCES | libc::EPERM => Some(
            "call dormouse_keys::prepare() before the process becomes undumpable or filters its system calls",
        ),
        // A write that the kernel would have to force.
        libc::EIO => Some("boot with proc_mem.force_override=always"),
        _ => None,
    }
}

/// What each step of the ladder says; if it does not work, with what to change.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) mprotect: Result<(), (io::Error, Option<&'static str>)>,
    pub(crate) memory: Result<(), (io::Error, Option<&'static str>)>,
}

/// Tries each step on a site, changing nothing; for the capability report.
pub(crate) fn steps(site: Site, segments: &[Segment]) -> Option<Steps> {
    let patches = [Patch::new(site, "", false)?];
    let (runs, pages) = pages::runs(&patches, segments);
    let mprotect = Writable::open(runs, pages).map(|writable| {
        writable.seal();
    });
    let memory = Memory::open(&patches).map(|_| ());
    Some(Steps {
        mprotect: mprotect.map_err(|refused| {
            let setting = for_mprotect(&refused);
            (refused, Some(setting))
        }),
        memory: memory.map_err(|refused| {
            let setting = for_memory(&refused);
            (refused, setting)
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_to_change_follows_from_what_was_refused() {
        let os = io::Error::from_raw_os_error;
        for (mprotect, memory, expected) in [
            (libc::EACCES, libc::ENOENT, "/proc"),
            (libc::EACCES, libc::EACCES, "prepare()"),
            (libc::EPERM, libc::EIO, "force_override"),
            (libc::EACCES, libc::EMFILE, "MemoryDenyWriteExecute"),
            (libc::EPERM, libc::EMFILE, "filter"),
        ] {
            let error = unwritable(os(mprotect), os(memory)).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
