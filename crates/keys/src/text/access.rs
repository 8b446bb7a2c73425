//! The ways to write code. They are tried anew for every batch, because a process may give up
//! privileges at any time.
//!
//! 1. *mprotect*: the pages become writable, the bytes are stored, the pages are sealed again. Two
//!    system calls for each run of pages, for any number of sites. Refused where code must not
//!    become writable (`PR_SET_MDWE`, systemd's `MemoryDenyWriteExecute=`, `mseal`, a policy on
//!    `execmod`, a filter of system calls).
//! 2. *The memory file*, `/proc/thread-self/mem`: four system calls for each first unit (a read and
//!    a write, before each a check of the file), and four for a trial of each page before. The
//!    pages never become writable. Refused without `/proc`, to a process that is not dumpable and
//!    has not opened it before, and by `proc_mem.force_override=`.
//!
//! Pages whose permissions differ from their header's, or may do so unseen, go to the second way at
//! once ([`super::pages`]). A way by which written code takes no effect ([`trial`]) is not used. If
//! that is the second way, pages whose permissions are shown as others are treated like all others.
//!
//! No byte changes before a way is open for every site of the batch. A write can still be refused;
//! then the protocol puts back what it has written.
//!
//! # The first unit
//!
//! Units are exchanged, not stored: an `int3` of a debugger or uprobe that was set after the bytes
//! were verified is detected, left alone, and makes the batch fail. Through the memory file the
//! unit is read again right before it is written, because the kernel offers no exchange there.
//!
//! # Safety
//!
//! Plain accesses go only to pages that [`super::pages`] has made writable, and that were readable
//! when the batch began. If the page's file is cut short in the microseconds since then, the access
//! ends the process by SIGBUS, as running the site would.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::memory::Memory;
use super::pages::{self, Layout, Run};
use super::patch::Patch;
use super::trial::{self, By};
use crate::arch::{AtomicUnit, LENGTH, UNIT, Unit};
use crate::object::{Segment, Site};
use crate::patch_lock::PatchLock;
use crate::{Error, StaticKey};

/// A way to write the sites of a batch.
#[derive(Debug)]
pub(super) struct Access {
    /// Pages that were made writable: those of all sites but the foreign ones', or none.
    writable: Vec<Run>,
    /// For the others.
    memory: Option<Memory>,
    foreign: Vec<Range<usize>>,
    /// How many pages hold a site.
    pub(super) pages: usize,
}

impl Access {
    /// The first way by which the first `length` bytes of all (sorted) patches can be written.
    pub(super) fn open(patches: &[Patch], length: usize, segments: &[Segment]) -> Result<Self, Error> {
        let mut layout = Layout::of(patches, length, segments)?;
        if !layout.foreign.is_empty() && trial::is_futile(By::Memory, segments) {
            // An emulator shows the permissions that its own mappings have.
            layout = Layout::by_headers(patches, length, segments)?;
        }
        let Layout { runs, foreign, count: pages } = layout;
        let is_futile = !runs.is_empty() && trial::is_futile(By::Mprotect, segments);
        let opened = if is_futile { Err(trial::refusal()) } else { pages::open(&runs) };
        let (writable, refused) = match opened {
            Ok(()) => (runs, None),
            Err(refused) => (Vec::new(), Some(refused)),
        };
        let mut access = Self { writable, memory: None, foreign, pages };
        if patches.is_empty() || !access.writable.is_empty() && access.foreign.is_empty() {
            return Ok(access);
        }
        let others = patches.iter().filter(|patch| access.is_outside(patch.code));
        let is_futile = trial::is_futile(By::Memory, segments);
        let memory = if is_futile { Err(trial::refusal()) } else { Memory::open(others, length) };
        match memory {
            Ok(memory) => {
                access.memory = Some(memory);
                Ok(access)
            }
            Err(memory) => {
                access.close();
                Err(unwritable(refused.unwrap_or_else(foreign_page), memory))
            }
        }
    }

    /// Whether a site is written through the memory file.
    fn is_outside(&self, address: usize) -> bool {
        let after = self.foreign.partition_point(|pages| pages.start <= address);
        self.writable.is_empty() || after > 0 && address < self.foreign[after - 1].end
    }

    /// The memory file, for a site that is written through it.
    pub(super) fn outside(&self, address: usize) -> Option<&Memory> {
        self.memory.as_ref().filter(|_| self.is_outside(address))
    }

    /// Asks for the line of a site that will be written: an exchange waits for it, where a store
    /// would not.
    pub(super) fn prefetch(patch: &Patch) {
        dormouse_sys::prefetch_for_write(std::ptr::without_provenance(patch.code));
    }

    /// Writes the first unit of a site that holds `from`, or `to` already.
    pub(super) fn exchange(&self, patch: &Patch, from: Unit, to: Unit) -> Result<(), Error> {
        let address = patch.code;
        let held = if let Some(memory) = self.outside(address) {
            let mut held = [0; UNIT];
            memory.read(address, &mut held).map_err(interrupted)?;
            let held = Unit::from_ne_bytes(held);
            if held == from {
                memory.write(address, &to.to_ne_bytes()).map_err(interrupted)?;
            }
            held
        } else {
            // SAFETY: inside a site whose pages are writable; instruction fetches of other threads
            // are not data accesses.
            let unit = unsafe { AtomicUnit::from_ptr(address as *mut Unit) };
            // Behind whatever was written before, for processors that fetch it.
            let exchanged = unit.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
            exchanged.unwrap_or_else(|other| other)
        };
        // It is there already where a linker has kept two entries of one site.
        if [from, to].contains(&held) { Ok(()) } else { Err(self.unexpected(patch, from, held)) }
    }

    /// Somebody has written to a site since it was verified.
    fn unexpected(&self, patch: &Patch, from: Unit, held: Unit) -> Error {
        let [mut expected, mut found] = [patch.old(); 2];
        match self.outside(patch.code) {
            // If even this cannot be read, the first unit alone is reported.
            Some(memory) => drop(memory.read(patch.code, &mut found)),
            // SAFETY: as in `exchange`.
            None => found = unsafe { std::ptr::read_volatile(patch.code as *const [u8; LENGTH]) },
        }
        expected[..UNIT].copy_from_slice(&from.to_ne_bytes());
        found[..UNIT].copy_from_slice(&held.to_ne_bytes());
        Error::UnexpectedText { key: patch.key.name(), addr: patch.code, expected, found }
    }

    /// Ends the writing. Returns how many pages stay writable, which only happens when there is no
    /// memory left for the mapping.
    pub(super) fn close(self) -> usize {
        pages::seal(&self.writable)
    }
}

fn foreign_page() -> io::Error {
    io::Error::other(
        "its page has other permissions than its header: other code has changed them, or the loader has added BTI",
    )
}

pub(super) fn interrupted(errno: Errno) -> Error {
    Error::Denied {
        what: "writing code through /proc/thread-self/mem",
        source: errno.into(),
        setting: "it was possible a moment before: no code may close descriptors that are not its own",
    }
}

fn unwritable(mprotect: io::Error, memory: io::Error) -> Error {
    // The second is the easier to allow: no code becomes writable by it.
    let setting = for_memory(&memory).unwrap_or_else(|| for_mprotect(&mprotect));
    Error::Unwritable { mprotect, memory, setting }
}

/// The setting that lets pages become writable.
fn for_mprotect(refused: &io::Error) -> &'static str {
    match refused.raw_os_error() {
        Some(libc::EACCES) => "allow writable code (systemd: MemoryDenyWriteExecute=no; SELinux: execmod)",
        None if [By::Mprotect, By::Memory].into_iter().any(trial::was_futile) => trial::SETTING,
        Some(libc::ENOMEM) => "raise vm.max_map_count, or the limit of memory",
        _ => "allow mprotect(PROT_WRITE | PROT_EXEC) in the filter of system calls, and leave code unsealed",
    }
}

/// The setting that lets the memory file be written, where one is known.
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

/// Whether a way works; one that does not has the setting to change beside its refusal.
pub(crate) type Way = Result<(), (io::Error, Option<&'static str>)>;

/// Tries mprotect and the memory file on a site, changing nothing; for the capability report.
pub(crate) fn steps(_: PatchLock<'_>, site: &Site, segments: &[Segment]) -> Option<[Way; 2]> {
    static NO_KEY: StaticKey<false> = StaticKey::new("", "", 0);
    let patches = [Patch::new(site, NO_KEY.key(), false)?];
    let mut layout = Layout::of(&patches, UNIT, segments).ok()?;
    let is_futile = [By::Mprotect, By::Memory].map(|by| trial::is_futile(by, segments));
    if is_futile[1] {
        layout = Layout::by_headers(&patches, UNIT, segments).ok()?;
    }
    let mprotect = if is_futile[0] {
        Err((trial::refusal(), Some(trial::SETTING)))
    } else if layout.runs.is_empty() {
        Err((foreign_page(), None))
    } else {
        pages::open(&layout.runs).map(|()| _ = pages::seal(&layout.runs)).map_err(|refused| {
            let setting = for_mprotect(&refused);
            (refused, Some(setting))
        })
    };
    let memory = if is_futile[1] {
        Err((trial::refusal(), Some(trial::SETTING)))
    } else {
        Memory::open(patches.iter(), UNIT).map(drop).map_err(|refused| {
            let setting = for_memory(&refused);
            (refused, setting)
        })
    };
    Some([mprotect, memory])
}

#[cfg(test)]
mod tests {
    use dormouse_sys::readable::Pages;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;
    use crate::object::segments_of;
    use crate::text::patch::Bytes;

    #[test]
    fn a_breakpoint_set_after_the_look_stays() {
        static KEY: StaticKey<false> = StaticKey::new("k", "", 0);

        let usual = MprotectFlags::READ | MprotectFlags::EXEC;
        let object = dormouse_sys::loader::find(unwritable as *const () as usize).unwrap();
        let text = segments_of(&object).into_iter().find(|segment| segment.protection() == usual).unwrap();
        let _registry = crate::registry::lock().unwrap();
        let size = rustix::param::page_size();
        // The second page has other permissions than the header's: the memory file writes it.
        for extra in [ProtFlags::empty(), ProtFlags::WRITE] {
            let protection = ProtFlags::READ | ProtFlags::EXEC | extra;
            // SAFETY: a new mapping overlaps no other.
            let page = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE) };
            let page = page.unwrap();
            let address = page as usize;
            let patch =
                Patch::new(&Site::new(address, address + 64, false, Some(0)), KEY.key(), true).unwrap();
            let memory = Memory::open([patch].iter(), LENGTH).unwrap();
            memory.write(address, &patch.old()).unwrap();
            assert_eq!(patch.look(&mut Pages::default()).unwrap(), Bytes::Old);
            let access = Access::open(&[patch], 1, std::slice::from_ref(&text)).unwrap();
            assert_eq!(access.is_outside(address), !extra.is_empty());

            memory.write(address, &[0xcc]).unwrap();
            let error = access.exchange(&patch, patch.old_unit(), patch.new_unit()).unwrap_err();
            assert_eq!(access.close(), 0);

            let mut broken = patch.old();
            broken[0] = 0xcc;
            let Error::UnexpectedText { addr, expected, found, .. } = error else { panic!("{error}") };
            assert_eq!((addr, expected, found), (address, patch.old(), broken));
            let mut held = [0; LENGTH];
            memory.read(address, &mut held).unwrap();
            assert_eq!(held, broken);
            // SAFETY: the page is the test's own, and nothing refers to it any more.
            unsafe { munmap(page, size) }.unwrap();
        }
    }

    #[test]
    fn a_way_without_effect_is_not_taken() {
        dormouse_testkit::in_child(|| {
            static KEY: StaticKey<false> = StaticKey::new("k", "", 0);

            let usual = MprotectFlags::READ | MprotectFlags::EXEC;
            let object = dormouse_sys::loader::find(unwritable as *const () as usize).unwrap();
            let text =
                segments_of(&object).into_iter().find(|segment| segment.protection() == usual).unwrap();
            let segments = std::slice::from_ref(&text);
            let _registry = crate::registry::lock().unwrap();
            let size = rustix::param::page_size();
            // Writable, so that the memory file would be taken.
            let protection = ProtFlags::READ | ProtFlags::EXEC | ProtFlags::WRITE;
            // SAFETY: a new mapping overlaps no other.
            let page = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE) };
            let address = page.unwrap() as usize;
            let patches =
                [Patch::new(&Site::new(address, address + 64, false, Some(0)), KEY.key(), true).unwrap()];
            // Shared memory is refused all the same: its file would change.
            let flags = MapFlags::SHARED;
            // SAFETY: a new mapping overlaps no other.
            let shared = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, flags) };
            let shared = shared.unwrap() as usize;
            let shared =
                [Patch::new(&Site::new(shared, shared + 64, false, Some(0)), KEY.key(), true).unwrap()];
            let is_refused = || matches!(Access::open(&shared, 1, segments), Err(Error::SharedText { .. }));
            let is_outside = || {
                let access = Access::open(&patches, 1, segments).unwrap();
                let is_outside = access.is_outside(address);
                access.close();
                is_outside
            };
            assert!(is_outside() && is_refused());
            trial::find_futile(By::Memory);
            assert!(!is_outside() && is_refused());
            trial::find_futile(By::Mprotect);
            let error = Access::open(&patches, 1, segments).unwrap_err().to_string();
            assert!(error.contains("takes no effect here") && error.contains(trial::SETTING), "{error}");
        });
    }

    #[test]
    fn the_setting_follows_from_the_refusals() {
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
