//! The objects that the loader has put into this process: a look at them, and keeping one there.
//!
//! # Locking
//!
//! The loader runs constructors and destructors under a lock of its own, and what is here takes that lock or
//! one inside it. So whatever lock a constructor or destructor of dormouse takes, nothing of this is called
//! under it.
//!
//! # Safety
//!
//! The unsafe code is `dl_iterate_phdr`, whose descriptions are valid while its callback runs and leave
//! it as references that end with it, and `dlopen` of what is loaded already, which runs no code.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::{ControlFlow, Range};
use std::path::Path;

#[cfg(target_pointer_width = "32")]
use libc::Elf32_Phdr as Header;
#[cfg(target_pointer_width = "64")]
use libc::Elf64_Phdr as Header;

/// What the loader knew of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// As the loader calls it: a path, empty for the executable.
    name: CString,
    /// Whether this is the executable, which never leaves.
    is_executable: bool,
    /// What is mapped of it.
    pub segments: Vec<Segment>,
}

/// A loaded object, while [`each`] shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object<'a> {
    name: &'a CStr,
    base: usize,
    is_executable: bool,
    headers: &'a [Header],
}

/// A part of an object, or its notes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Where it lies.
    pub range: Range<usize>,
    /// The header's flags: `PF_R`, `PF_W`, `PF_X`.
    pub flags: u32,
}

/// Why an object cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{object} cannot be kept loaded: {reason}")]
pub struct PinError {
    /// Its file name.
    pub object: String,
    /// What the loader says.
    pub reason: String,
}

impl<'a> Object<'a> {
    /// The parts that are mapped.
    pub(crate) fn segments(self) -> impl Iterator<Item = Segment> + 'a {
        self.of_kind(libc::PT_LOAD)
    }

    /// The parts that hold notes.
    pub(crate) fn notes(self) -> impl Iterator<Item = Segment> + 'a {
        self.of_kind(libc::PT_NOTE)
    }

    fn of_kind(self, kind: u32) -> impl Iterator<Item = Segment> + 'a {
        self.headers.iter().filter(move |h| h.p_type == kind).map(move |h| {
            let start = self.base.wrapping_add(h.p_vaddr as usize);
            Segment { range: start..start.wrapping_add(h.p_memsz as usize), flags: h.p_flags }
        })
    }

    #[cfg(test)]
    pub(crate) fn of_headers(headers: &'a [Header]) -> Self {
        Self { name: c"", base: 0, is_executable: false, headers }
    }

    fn contains(self, address: usize) -> bool {
        self.segments().any(|s| s.range.contains(&address))
    }
}

impl Loaded {
    /// The name of its file, without the path.
    pub fn file_name(&self) -> String {
        let path = match self.name.to_bytes() {
            [] => std::env::current_exe().unwrap_or_default(),
            _ => Path::new(&*self.name.to_string_lossy()).to_owned(),
        };
        path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// From the first to the last mapped byte.
    fn range(&self) -> Range<usize> {
        let ranges = self.segments.iter().map(|s| s.range.clone());
        ranges.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }
}

/// Shows `visit` every loaded object, the executable first, then in the order of loading, until it breaks.
///
/// `visit` runs under the loader's lock: it allocates nothing, because allocators that take their own
/// backtraces take the two locks the other way round.
pub(crate) fn each<B>(visit: impl FnMut(Object<'_>) -> ControlFlow<B>) -> Option<B> {
    struct Walk<F, B> {
        visit: F,
        first: bool,
        found: Option<B>,
    }

    unsafe extern "C" fn step<F: FnMut(Object<'_>) -> ControlFlow<B>, B>(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        walk: *mut c_void,
    ) -> c_int {
        // SAFETY: `walk` is the one below; the loader passes a valid description, with `dlpi_phnum` headers and
        // a terminated name.
        let (walk, base, headers, name) = unsafe {
            let info = &*info;
            let headers = if info.dlpi_phdr.is_null() {
                &[][..]
            } else {
                std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize)
            };
            let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
            (&mut *walk.cast::<Walk<F, B>>(), info.dlpi_addr as usize, headers, name)
        };
        let is_executable = std::mem::take(&mut walk.first);
        match (walk.visit)(Object { name, base, is_executable, headers }) {
            ControlFlow::Continue(()) => 0,
            ControlFlow::Break(found) => {
                walk.found = Some(found);
                1
            }
        }
    }

    fn run<F: FnMut(Object<'_>) -> ControlFlow<B>, B>(mut walk: Walk<F, B>) -> Option<B> {
        if cfg!(miri) {
            // No loader to ask.
            return None;
        }
        // SAFETY: the callback gets the walk that is passed here, and runs before the call returns.
        unsafe { libc::dl_iterate_phdr(Some(step::<F, B>), (&raw mut walk).cast()) };
        walk.found
    }

    run(Walk { visit, first: true, found: None })
}

/// Whether `address` lies in the executable.
pub fn is_in_executable(address: usize) -> bool {
    each(|object| ControlFlow::Break(object.contains(address))).unwrap_or(false)
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
            fits.then_some(object.is_executable)
        })?;
        if let Some(is_executable) = whole {
            // A name holds no zero byte: it was terminated by one.
            let name = CString::new(bytes).unwrap_or_default();
            return Some(Loaded { name, is_executable, segments: found });
        }
    }
}

fn look<T>(address: usize, mut see: impl FnMut(Object<'_>) -> T) -> Option<T> {
    each(
        |object| {
            if object.contains(address) { ControlFlow::Break(see(object)) } else { ControlFlow::Continue(()) }
        },
    )
}

/// The file name of the object that `address` lies in.
pub fn object_of(address: usize) -> String {
    find(address).map(|object| object.file_name()).unwrap_or_default()
}

/// Has the object that `address` lies in stay until the process ends, and says which addresses are its.
/// `None`: it lies in no object.
///
/// An object that is leaving while this is called is one that cannot be kept.
pub fn pin(address: usize) -> Result<Option<Range<usize>>, PinError> {
    let Some(object) = find(address) else { return Ok(None) };
    if object.is_executable {
        return Ok(Some(object.range()));
    }
    let fail = |reason: &str| PinError { object: object.file_name(), reason: reason.into() };
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: a terminated name of something that is loaded, or else nothing is done. The handle is never closed.
    if unsafe { libc::dlopen(object.name.as_ptr(), flags) }.is_null() {
        return Err(fail("it is being unloaded"));
    }
    // Whatever has this name stays from now on. Is it what was there before?
    if find(address).as_ref() != Some(&object) {
        return Err(fail("another object has taken its place"));
    }
    Ok(Some(object.range()))
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
        assert!(pin(code).unwrap().unwrap().contains(&code));
    }

    #[test]
    fn a_library_is_pinned_by_any_address_in_it_and_the_heap_is_nobodys() {
        let range = pin(libc::getpid as *const () as usize).unwrap().unwrap();
        assert!(!range.is_empty() && !is_in_executable(range.start));
        let heap = Box::new(0);
        assert_eq!(pin(std::ptr::from_ref(&*heap) as usize), Ok(None));
    }
}
