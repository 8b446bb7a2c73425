//! Writing code: which memory it is, whether it holds what it should, and the flip protocol.
//!
//! # Invariants
//!
//! 1. Nothing is written unless every site of the batch holds its old bytes.
//! 2. On every way out, each site is whole, old or new, and all of a batch are the same of the two.
//! 3. Pages have the permissions that their segment's header gives, before and after. (In between they are
//!    writable *and* executable: other threads run them.)
//!
//! # Locking
//!
//! The caller holds the patch lock: two batches on one page would take each other's write permission away.
//!
//! # Safety
//!
//! Addresses come from [`crate::registry`] with the segment that they were found in; loaded objects stay
//! loaded (see [`crate::object`]).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::path::Path;
use std::sync::Arc;

use rustix::mm::{MprotectFlags, mprotect};

use crate::arch::{LENGTH, encode, store};
use crate::registry::Site;
use crate::{Error, barrier};

/// Runs of pages closer than this are made writable together: a system call and a flush of all processors'
/// translations costs more than passing over pages in between.
const MERGE_BYTES: usize = 1 << 20;

/// Part of a loaded object.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    start: usize,
    end: usize,
    protection: MprotectFlags,
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

/// One site that is to change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patch {
    pub(crate) site: Site,
    pub(crate) key: &'static str,
    /// The key's state after the batch.
    pub(crate) enabled: bool,
}

impl Patch {
    fn jumps(&self) -> bool {
        self.enabled ^ self.site.branch
    }

    fn verify(&self) -> Result<(), Error> {
        let addr = self.site.code;
        let expected = encode(addr, self.site.target, !self.jumps());
        // SAFETY: `segment` is set, so the site lies in a readable segment. Other threads only execute it.
        let found = unsafe { std::ptr::read_volatile(addr as *const [u8; LENGTH]) };
        if found == expected {
            Ok(())
        } else {
            Err(Error::UnexpectedText { key: self.key, addr, expected, found })
        }
    }
}

/// What writing a batch took.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) pages: usize,
    pub(crate) barriers: usize,
    pub(crate) unsealed: usize,
}

/// Pages of one segment that are made writable together.
#[derive(Debug)]
struct Run {
    start: usize,
    end: usize,
    protection: MprotectFlags,
}

impl Run {
    fn protect(&self, extra: MprotectFlags) -> rustix::io::Result<()> {
        // SAFETY: whole pages of a loaded object's segment. Code stays readable and executable, so who reads
        // or runs it notices nothing.
        unsafe { mprotect(self.start as *mut c_void, self.end - self.start, self.protection | extra) }
    }
}

/// The flip protocol: verify all, make writable, store one byte a site, one barrier, make read-only.
pub(crate) fn flip(patches: &mut [Patch], segments: &[Segment]) -> Result<Written, Error> {
    if patches.is_empty() {
        return Ok(Written::default());
    }
    patches.sort_unstable_by_key(|p| p.site.code);

    // 1. Nothing is touched before everything is known to be in order.
    for patch in &*patches {
        if patch.site.segment.is_none() {
            return Err(Error::NotText { key: patch.key, addr: patch.site.code });
        }
        patch.verify()?;
    }
    barrier::register()?;

    // 2. Write permission for all, or for none.
    let (runs, pages) = runs(patches, segments);
    for (done, run) in runs.iter().enumerate() {
        if let Err(errno) = run.protect(MprotectFlags::WRITE) {
            seal(&runs[..done]);
            return Err(Error::Denied {
                what: "mprotect of code",
                source: errno.into(),
                setting: "allow writable code in this process (systemd: MemoryDenyWriteExecute=no; SELinux: execmod)",
            });
        }
    }

    // 3. One byte a site. This cannot fail.
    for patch in &*patches {
        // SAFETY: a verified site in memory that step 2 made writable.
        unsafe { store(patch.site.code, patch.jumps()) };
    }

    // 4. When this returns, no thread runs on the old bytes.
    let synced = barrier::sync();
    if synced.is_err() {
        for patch in &*patches {
            // SAFETY: as in step 3.
            unsafe { store(patch.site.code, !patch.jumps()) };
        }
    }

    // 5. Out of memory for the merged mapping is the one way this can fail: the code then stays writable.
    let unsealed = seal(&runs);
    synced.map(|()| Written { pages, barriers: 1, unsealed })
}

/// Takes the write permission away again; says how many pages kept it.
fn seal(runs: &[Run]) -> usize {
    let page = rustix::param::page_size();
    runs.iter()
        .filter(|run| run.protect(MprotectFlags::empty()).is_err())
        .map(|run| (run.end - run.start) / page)
        .sum()
}

/// The runs of pages that hold the first bytes of the (sorted) patches, and how many pages have one.
fn runs(patches: &[Patch], segments: &[Segment]) -> (Vec<Run>, usize) {
    let page = rustix::param::page_size();
    let mut runs: Vec<(usize, Run)> = Vec::new();
    let (mut pages, mut last) = (0, None);
    for patch in patches {
        let Some(segment) = patch.site.segment else { continue };
        let start = patch.site.code & !(page - 1);
        if last != Some(start) {
            pages += 1;
            last = Some(start);
        }
        match runs.last_mut() {
            Some((s, run)) if *s == segment && start <= run.end + MERGE_BYTES => {
                run.end = run.end.max(start + page);
            }
            _ => {
                let protection = segments[segment].protection;
                runs.push((segment, Run { start, end: start + page, protection }));
            }
        }
    }
    (runs.into_iter().map(|(_, run)| run).collect(), pages)
}

/// Whether a page of code can be made writable and read-only again; for the capability report.
pub(crate) fn probe_write(site: Site, segments: &[Segment]) -> rustix::io::Result<()> {
    let Some(segment) = site.segment else { return Ok(()) };
    let page = rustix::param::page_size();
    let start = site.code & !(page - 1);
    let run = Run { start, end: start + page, protection: segments[segment].protection };
    run.protect(MprotectFlags::WRITE)?;
    run.protect(MprotectFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(code: usize, segment: usize) -> Patch {
        let site = Site { code, target: code + 64, branch: false, segment: Some(segment) };
        Patch { site, key: "k", enabled: true }
    }

    fn segment() -> Segment {
        Segment {
            start: 0,
            end: usize::MAX,
            protection: MprotectFlags::READ | MprotectFlags::EXEC,
            object: "".into(),
        }
    }

    #[test]
    fn near_pages_are_one_run_and_far_ones_or_other_segments_are_not() {
        let far = 0x1000 + 3 * MERGE_BYTES;
        let patches =
            [patch(0x1000, 0), patch(0x1ffe, 0), patch(0x5000, 0), patch(far, 0), patch(far + 8, 1)];
        let (runs, pages) = runs(&patches, &[segment(), segment()]);
        let bounds: Vec<_> = runs.iter().map(|r| (r.start, r.end)).collect();
        assert_eq!(bounds[0], (0x1000, 0x6000));
        assert_eq!(bounds[1], (far, far + 0x1000));
        assert_eq!(bounds.len(), 3);
        // 0x1000, 0x5000 and far: the last patch shares far's page.
        assert_eq!(pages, 3);
    }

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
