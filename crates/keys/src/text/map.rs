//! Which memory is whose: the segments of all loaded objects.
//!
//! # Safety
//!
//! `dl_iterate_phdr` describes objects that are loaded while its callback runs; loaded objects stay loaded (see
//! [`crate::object`]).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use rustix::mm::MprotectFlags;

use crate::arch::LENGTH;

/// Part of a loaded object.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    start: usize,
    end: usize,
    /// What the segment's header gives.
    pub(crate) protection: MprotectFlags,
    /// Whether a part is mapped so that a write would reach the file, and with it other processes.
    pub(crate) is_shared: bool,
    object: Arc<str>,
}

/// The segments of all loaded objects.
#[derive(Debug, Default)]
pub(crate) struct CodeMap {
    /// By address.
    segments: Vec<Segment>,
}

impl CodeMap {
    pub(crate) fn load() -> Self {
        let mut map = Self::default();
        // SAFETY: the callback gets the reference that is passed here, and runs before the call returns.
        unsafe { libc::dl_iterate_phdr(Some(Self::visit), (&raw mut map).cast()) };
        map.segments.sort_unstable_by_key(|s| s.start);
        for shared in super::shared::shared_mappings() {
            let overlaps = |s: &&mut Segment| s.start < shared.end && shared.start < s.end;
            map.segments.iter_mut().filter(overlaps).for_each(|s| s.is_shared = true);
        }
        map
    }

    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: libc::size_t, map: *mut c_void) -> c_int {
        // SAFETY: `map` is the CodeMap of `load`; the loader passes a valid description with `dlpi_phnum`
        // headers and a terminated name.
        let (map, info, headers, name) = unsafe {
            let info = &*info;
            let headers = if info.dlpi_phdr.is_null() {
                &[][..]
            } else {
                std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize)
            };
            (&mut *map.cast::<Self>(), info, headers, CStr::from_ptr(info.dlpi_name))
        };
        let object: Arc<str> = object_name(name).into();
        for header in headers.iter().filter(|h| h.p_type == libc::PT_LOAD) {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            map.segments.push(Segment {
                start,
                end: start + header.p_memsz as usize,
                protection: protection(header.p_flags),
                is_shared: false,
                object: Arc::clone(&object),
            });
        }
        0
    }

    fn find(&self, address: usize) -> Option<usize> {
        let after = self.segments.partition_point(|s| s.start <= address);
        let at = after.checked_sub(1)?;
        (address < self.segments[at].end).then_some(at)
    }

    /// The index of the executable segment that holds a whole site at `code`.
    pub(crate) fn segment_of(&self, code: usize) -> Option<usize> {
        self.find(code).filter(|&at| {
            let segment = &self.segments[at];
            code + LENGTH <= segment.end
                && segment.protection.contains(MprotectFlags::READ | MprotectFlags::EXEC)
        })
    }

    /// The file name of the object that `address` lies in.
    pub(crate) fn object_of(&self, address: usize) -> Arc<str> {
        self.find(address).map_or_else(|| "".into(), |at| Arc::clone(&self.segments[at].object))
    }

    pub(crate) fn into_segments(self) -> Vec<Segment> {
        self.segments
    }
}

/// The loader gives the executable an empty name.
fn object_name(name: &CStr) -> String {
    let path = match name.to_bytes() {
        [] => std::env::current_exe().unwrap_or_default(),
        _ => Path::new(&*name.to_string_lossy()).to_owned(),
    };
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

fn protection(flags: u32) -> MprotectFlags {
    [(libc::PF_R, MprotectFlags::READ), (libc::PF_W, MprotectFlags::WRITE), (libc::PF_X, MprotectFlags::EXEC)]
        .into_iter()
        .filter(|(flag, _)| flags & flag != 0)
        .fold(MprotectFlags::empty(), |all, (_, one)| all | one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_map_knows_this_functions_segment_and_no_data() {
        let map = CodeMap::load();
        let code = the_code_map_knows_this_functions_segment_and_no_data as *const () as usize;
        assert!(map.segment_of(code).is_some());
        let data = Box::new(0u64);
        assert!(map.segment_of(std::ptr::from_ref(&*data) as usize).is_none());
        assert!(!map.object_of(code).is_empty());
    }
}
