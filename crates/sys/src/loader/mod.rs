//! The objects that the loader has loaded into this process: listing them, and keeping one loaded.
//!
//! # Locking
//!
//! The loader runs constructors and destructors under a lock of its own, and the functions here
//! take that lock or one inside it. So they are never called under a lock that a constructor or
//! destructor of dormouse takes.
//!
//! # Safety
//!
//! The unsafe code is `dl_iterate_phdr`, the slices of headers and the names that its descriptions
//! lead to, and `dlopen` of objects that are loaded already, which runs no code. Descriptions are
//! valid while the callback runs, and only leave it as references that end with it. Headers and
//! notes lie in pages of the object's file, which may be gone ([`crate::readable`]): an object that
//! has lost them is shown without any. If the file is cut short between that check and the access,
//! the process ends by SIGBUS.
#![allow(unsafe_code)]

use std::collections::TryReserveError;
use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_pointer_width = "32")]
use libc::Elf32_Phdr as Header;
#[cfg(target_pointer_width = "64")]
use libc::Elf64_Phdr as Header;

use self::inside::Inside;
use crate::arch;
use crate::readable::is_readable;

mod exports;
mod inside;

pub(crate) use self::exports::{exports, other_exporter};

/// The kind of header that leads to an object's properties.
const PT_GNU_PROPERTY: u32 = 0x6474_e553;

/// The loader's report about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The loader's name for it: a path, empty for the executable.
    name: CString,
    /// Whether this is the executable, which never leaves.
    is_executable: bool,
    /// The object's mapped parts.
    pub segments: Vec<Segment>,
    unwind_index: Option<usize>,
    is_guarded: bool,
}

/// A loaded object, while [`each`] shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'a> {
    name: &'a CStr,
    base: usize,
    is_executable: bool,
    headers: &'a [Header],
    /// How many objects the loader has loaded and unloaded so far.
    changes: u64,
}

/// A mapped part of an object, or its notes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The addresses of this part.
    pub range: Range<usize>,
    /// The header's flags: `PF_R`, `PF_W`, `PF_X`.
    pub flags: u32,
    /// The end of the part that is backed by the file.
    pub file_end: usize,
}

/// Why an object cannot be kept loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object} cannot be kept loaded: {reason}")]
pub struct PinError {
    /// The file name of the object.
    pub object: String,
    /// The reason that the loader reports.
    pub reason: String,
}

impl<'a> Object<'a> {
    /// The parts that are mapped.
    pub(crate) fn segments(self) -> impl Iterator<Item = Segment> + 'a {
        self.of_kind(libc::PT_LOAD)
    }

    /// The parts that hold notes.
    pub(crate) fn notes(self) -> impl Iterator<Item = Segment> + 'a {
        self.of_kind(libc::PT_NOTE).filter(|notes| is_readable(notes.range.clone()))
    }

    /// Whether its code may have a permission beside those of its headers.
    fn is_guarded(self) -> bool {
        self.of_kind(PT_GNU_PROPERTY).filter(|it| is_readable(it.range.clone())).any(|properties| {
            let (start, length) = (properties.range.start, properties.range.len());
            // SAFETY: readable, in a segment of the object.
            arch::is_guarded(unsafe { std::slice::from_raw_parts(start as *const u8, length) })
        })
    }

    fn of_kind(self, kind: u32) -> impl Iterator<Item = Segment> + 'a {
        self.headers.iter().filter(move |h| h.p_type == kind).map(move |h| {
            let start = self.base.wrapping_add(h.p_vaddr as usize);
            let [end, file_end] = [h.p_memsz, h.p_filesz].map(|length| start.wrapping_add(length as usize));
            Segment { range: start..end, flags: h.p_flags, file_end }
        })
    }

    #[cfg(test)]
    pub(crate) fn of_headers(headers: &'a [Header]) -> Self {
        Self { name: c"", base: 0, is_executable: false, headers, changes: 0 }
    }

    /// Whether its file was cut short in place since: then pages are gone that the loader may look
    /// at.
    fn is_cut_short(self) -> bool {
        let last =
            |s: Segment| (s.flags & libc::PF_R != 0 && s.file_end > s.range.start).then(|| s.file_end - 1);
        self.headers.is_empty() || !self.segments().filter_map(last).all(|last| is_readable(last..last + 1))
    }

    fn contains(self, address: usize) -> bool {
        self.segments().any(|s| s.range.contains(&address))
    }
}

impl Loaded {
    /// Whether this is the executable, which is never unloaded.
    pub fn is_executable(&self) -> bool {
        self.is_executable
    }

    /// The address of the index of the object's unwind tables (`.eh_frame_hdr`).
    pub fn unwind_index(&self) -> Option<usize> {
        self.unwind_index
    }

    /// Whether the loader may have given the object's code a permission that the headers do not
    /// have, and that an `mprotect` with theirs would take away for good.
    pub fn is_guarded(&self) -> bool {
        self.is_guarded
    }

    /// The name of the object's file, without the path.
    pub fn file_name(&self) -> String {
        let path = match self.name.to_bytes() {
            [] => std::env::current_exe().unwrap_or_default(),
            _ => Path::new(&*self.name.to_string_lossy()).to_owned(),
        };
        path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

/// Shows `visit` every loaded object of the caller's namespace, in the order of loading, until it
/// finds something. The executable is the first of its own namespace, and in no other (`dlmopen`).
///
/// `visit` runs under the loader's lock: it allocates nothing, because allocators that take their
/// own backtraces take the two locks the other way round.
pub(crate) fn each<B>(visit: impl FnMut(Object<'_>) -> Option<B>) -> Option<B> {
    struct Walk<F, B> {
        visit: F,
        /// Where the kernel has put the executable's headers.
        executable: usize,
        found: Option<B>,
    }

    unsafe extern "C" fn step<F: FnMut(Object<'_>) -> Option<B>, B>(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        walk: *mut c_void,
    ) -> c_int {
        // SAFETY: `walk` is the one below; the loader passes a valid description, with `dlpi_phnum`
        // headers and a terminated name.
        let (walk, base, headers, name, changes) = unsafe {
            let info = &*info;
            let (first, count) = (info.dlpi_phdr, info.dlpi_phnum as usize);
            let is_there = is_readable(first as usize..first.wrapping_add(count) as usize);
            let headers =
                if is_there && !first.is_null() { std::slice::from_raw_parts(first, count) } else { &[][..] };
            let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
            let changes = info.dlpi_adds.wrapping_add(info.dlpi_subs);
            (&mut *walk.cast::<Walk<F, B>>(), info.dlpi_addr as usize, headers, name, changes)
        };
        let is_executable = headers.as_ptr() as usize == walk.executable;
        walk.found = (walk.visit)(Object { name, base, is_executable, headers, changes });
        c_int::from(walk.found.is_some())
    }

    fn run<F: FnMut(Object<'_>) -> Option<B>, B>(mut walk: Walk<F, B>) -> Option<B> {
        let _inside = Inside::enter();
        // SAFETY: the callback gets the walk that is passed here, and runs before the call returns.
        unsafe { libc::dl_iterate_phdr(Some(step::<F, B>), (&raw mut walk).cast()) };
        walk.found
    }

    if cfg!(miri) {
        // No loader to ask.
        return None;
    }
    // SAFETY: reads a value that the kernel gave the process at its start.
    let executable = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    run(Walk { visit, executable, found: None })
}

/// How many objects the loader has loaded and unloaded so far. While it stays the same, so do the
/// objects.
pub fn changes() -> u64 {
    each(|object| Some(object.changes)).unwrap_or(0)
}

/// Whether `address` lies in the executable.
pub fn is_in_executable(address: usize) -> bool {
    each(|object| object.is_executable.then(|| object.contains(address))).unwrap_or(false)
}

/// The object that `address` lies in.
pub fn find(address: usize) -> Option<Loaded> {
    loop {
        // Counted first: nothing is allocated under the loader's lock.
        let (name, segments) = look(address, |o| (o.name.count_bytes(), o.segments().count()))?;
        let (mut bytes, mut found) = (Vec::with_capacity(name + 1), Vec::with_capacity(segments));
        let whole = look(address, |object| {
            // Another object may have come in its place.
            let fits = object.name.count_bytes() <= name && object.segments().count() <= segments;
            if fits {
                bytes.extend_from_slice(object.name.to_bytes());
                found.extend(object.segments());
            }
            let index = object.of_kind(libc::PT_GNU_EH_FRAME).next();
            fits.then(|| (object.is_executable, index, object.is_guarded()))
        })?;
        if let Some((is_executable, index, is_guarded)) = whole {
            // A name holds no zero byte: it was terminated by one.
            let name = CString::new(bytes).unwrap_or_default();
            let unwind_index = index.map(|index| index.range.start);
            return Some(Loaded { name, is_executable, segments: found, unwind_index, is_guarded });
        }
    }
}

fn look<T>(address: usize, mut see: impl FnMut(Object<'_>) -> T) -> Option<T> {
    each(|object| object.contains(address).then(|| see(object)))
}

/// The file name of the object that `address` lies in.
pub fn object_of(address: usize) -> String {
    find(address).map(|object| object.file_name()).unwrap_or_default()
}

/// The mapped ranges of all loaded objects, in order of address.
pub fn mapped() -> Result<Vec<Range<usize>>, TryReserveError> {
    loop {
        // Counted first: nothing is allocated under the loader's lock.
        let mut count = 0;
        each(|object| -> Option<()> {
            count += object.segments().count();
            None
        });
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(count)?;
        let full = each(|object| {
            let fits = object.segments().count() <= count - ranges.len();
            ranges.extend(object.segments().map(|segment| segment.range).filter(|_| fits));
            (!fits).then_some(())
        });
        // Another object may have come meanwhile.
        if full.is_none() {
            ranges.sort_unstable_by_key(|range| range.start);
            return Ok(ranges);
        }
    }
}

/// Keeps the object that contains `address` loaded until the process ends, and returns its mapped
/// parts. (They are not one range: other objects may lie between its segments.) `None` if the
/// address lies in no object.
///
/// # Errors
///
/// The object is being unloaded, or the loader refuses to keep it.
pub fn pin(address: usize) -> Result<Option<Vec<Segment>>, PinError> {
    let Some(object) = find(address) else { return Ok(None) };
    if object.is_executable {
        return Ok(Some(object.segments));
    }
    let fail = |reason: &str| PinError { object: object.file_name(), reason: reason.into() };
    // The loader compares the name with the names of the objects, up to this one, and reads them
    // where they lie.
    let look = |other: Object<'_>| {
        let is_cut_short = other.is_cut_short();
        (is_cut_short || other.contains(address)).then_some(is_cut_short)
    };
    if each(look) == Some(true) {
        return Err(fail(
            "the file of an object that was loaded earlier was cut short, which ends whoever asks the loader",
        ));
    }
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: a terminated name of something that is loaded, or else nothing is done. The handle is
    // never closed.
    if unsafe { libc::dlopen(object.name.as_ptr(), flags) }.is_null() {
        return Err(fail("it is being unloaded"));
    }
    // The object of this name stays from now on. It may be another one than before.
    if find(address).as_ref() != Some(&object) {
        return Err(fail("another object has taken its place"));
    }
    Ok(Some(object.segments))
}

static IS_SELF_PINNED: AtomicBool = AtomicBool::new(false);

/// Keeps the object that contains this copy of dormouse loaded until the process ends: for code
/// that leaves something behind which calls it later (a signal handler, a thread, a thread's
/// destructor).
///
/// # Cost
///
/// The first call waits for the loader, and so must not be made under a lock that a constructor
/// takes.
pub fn pin_self() -> Result<(), PinError> {
    if !is_self_pinned() {
        pin(&raw const IS_SELF_PINNED as usize)?;
        IS_SELF_PINNED.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether [`pin_self`] has succeeded.
pub fn is_self_pinned() -> bool {
    // It comes true once, and orders nothing.
    IS_SELF_PINNED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_first_and_holds_this_function() {
        let code = the_executable_is_first_and_holds_this_function as *const () as usize;
        assert!(is_in_executable(code));
        let own = std::env::current_exe().unwrap();
        assert_eq!(object_of(code), own.file_name().unwrap().to_string_lossy());
        assert!(pin(code).unwrap().unwrap().iter().any(|segment| segment.range.contains(&code)));
    }

    #[test]
    fn a_library_is_pinned_by_any_address() {
        let segments = pin(libc::getpid as *const () as usize).unwrap().unwrap();
        assert!(!segments.is_empty() && !is_in_executable(segments[0].range.start));
        let heap = Box::new(0);
        let heap = std::ptr::from_ref(&*heap) as usize;
        assert_eq!(pin(heap), Ok(None));
        let mapped = mapped().unwrap();
        assert!(segments.iter().all(|segment| mapped.contains(&segment.range)));
        assert!(mapped.is_sorted_by_key(|range| range.start));
        assert!(!mapped.iter().any(|range| range.contains(&heap)));
    }
}
