//! Pages of code: making them writable, and sealing them again.
//!
//! A *run* is a range that is made writable together: pages of one mapping that have the
//! permissions of their segment's header. It never includes pages with other permissions, so
//! nothing that a host has changed is changed by us, or reset to what we think is right. Pages with
//! a site whose permissions are not the header's are *foreign*: they are written through the memory
//! file, which changes no permissions. The code that has changed them may be doing so now, or may
//! do so again. All pages of an object are foreign if the loader may have given them a permission
//! that neither header nor kernel shows ([`Segment::is_guarded`]).
//!
//! # Limits
//!
//! Two patchers that change the permissions of one page at the same time disturb each other: if the
//! other makes a page writable after we have read the permissions, and stores after we have sealed
//! it, it faults. There is no lock that both would take. The window is the time of a batch: tens of
//! microseconds.
//!
//! # Safety
//!
//! Only whole pages of loaded objects' segments change their permissions, and they stay readable
//! and executable.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ops::Range;

use rustix::io::Errno;
use rustix::mm::{MprotectFlags, MsyncFlags, mprotect, msync};

use super::maps::{Mapping, Maps};
use super::patch::Patch;
use crate::Error;
use crate::object::Segment;
use crate::room::extend;

/// Runs of pages closer than this are made writable together: a system call and a flush of all
/// processors' translations costs more than passing over pages in between.
const MERGE_BYTES: usize = 1 << 20;

/// Pages of one mapping that are made writable together.
#[derive(Debug)]
pub(super) struct Run {
    pages: Range<usize>,
    protection: MprotectFlags,
    /// Whether there are pages without a site in it.
    has_gaps: bool,
}

/// The pages of the first `length` bytes of a site.
fn pages_of(patch: &Patch, length: usize, page: usize) -> Range<usize> {
    patch.code & !(page - 1)..(patch.code + length + page - 1) & !(page - 1)
}

impl Run {
    /// The pages of the first `length` bytes of a site in this segment, whose permissions they
    /// have. `None`: they may have more, which would be lost.
    pub(super) fn of(patch: &Patch, length: usize, segment: &Segment) -> Option<Self> {
        let pages = pages_of(patch, length, rustix::param::page_size());
        let protection = segment.protection();
        (!segment.is_guarded()).then_some(Self { pages, protection, has_gaps: false })
    }

    pub(super) fn open(&self) -> rustix::io::Result<()> {
        self.protect(MprotectFlags::WRITE)
    }

    /// Says how many pages stay writable.
    pub(super) fn seal(&self) -> usize {
        match self.protect(MprotectFlags::empty()) {
            Ok(()) => 0,
            Err(_) => self.pages.len() / rustix::param::page_size(),
        }
    }

    fn protect(&self, extra: MprotectFlags) -> rustix::io::Result<()> {
        // SAFETY: whole pages of a loaded object's segment. Code stays readable and executable, so
        // who reads or runs it notices nothing.
        unsafe { mprotect(self.start(), self.pages.len(), self.protection | extra) }
    }

    fn start(&self) -> *mut c_void {
        self.pages.start as *mut c_void
    }

    /// Whether the kernel would copy every page of the run, not only those that are written: it
    /// does where memory is locked, since a locked mapping has no page that is yet to come.
    fn is_locked(&self) -> bool {
        let flags = MsyncFlags::ASYNC | MsyncFlags::INVALIDATE;
        // SAFETY: a query only. Nothing is written back, because the mapping is private; the flag
        // only finds out that pages were locked (Linux: `mm/msync.c`).
        let answer = unsafe { msync(self.start(), self.pages.len(), flags) };
        answer == Err(Errno::BUSY)
    }
}

/// The pages of a batch, by the way in which they are written.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) runs: Vec<Run>,
    /// In order of address.
    pub(super) foreign: Vec<Range<usize>>,
    /// The number of pages that hold bytes to write.
    pub(super) count: usize,
}

impl Layout {
    /// The runs for the first `length` bytes of (sorted) patches. Refuses patches in memory whose
    /// writes would reach a file.
    pub(super) fn of(patches: &[Patch], length: usize, segments: &[Segment]) -> Result<Self, Error> {
        let layout = Self::merged(patches, length, segments, MERGE_BYTES)?;
        if layout.runs.iter().any(|run| run.has_gaps && run.is_locked()) {
            return Self::merged(patches, length, segments, 0);
        }
        Ok(layout)
    }

    /// Takes the permissions from the headers alone, where those that the kernel shows mean
    /// nothing. [`Self::of`] has refused shared memory before, so the kernel is not asked again.
    pub(super) fn by_headers(patches: &[Patch], length: usize, segments: &[Segment]) -> Result<Self, Error> {
        Self::by(patches, length, segments, 0, |_| Ok(None))
    }

    fn merged(patches: &[Patch], length: usize, segments: &[Segment], nearer: usize) -> Result<Self, Error> {
        let mut maps = Maps::default();
        Self::by(patches, length, segments, nearer, |at| maps.at(at))
    }

    /// `ask` is given an address.
    fn by(
        patches: &[Patch],
        length: usize,
        segments: &[Segment],
        nearer: usize,
        mut ask: impl FnMut(usize) -> Result<Option<Mapping>, Error>,
    ) -> Result<Self, Error> {
        let page = rustix::param::page_size();
        let mut layout = Self { runs: Vec::new(), foreign: Vec::new(), count: 0 };
        let (mut mapping, mut counted, mut before) = (None::<Mapping>, 0, (0..0, 0));
        for patch in patches {
            let pages = pages_of(patch, length, page);
            // A large batch has many sites on a page.
            if (&pages, patch.segment()) == (&before.0, before.1) {
                continue;
            }
            before = (pages.clone(), patch.segment());
            layout.count += (pages.end - pages.start.max(counted).min(pages.end)) / page;
            counted = counted.max(pages.end);
            let segment = &segments[patch.segment()];
            let usual = segment.protection();
            let known = mapping.take().filter(|mapping| mapping.range.contains(&pages.start));
            let is_known = known.is_some();
            let here = match known {
                Some(here) => here,
                // No answer: only the site's own pages are touched, and are assumed to have the
                // header's permissions.
                None => ask(pages.start)?.unwrap_or_else(|| Mapping {
                    range: pages.clone(),
                    protection: usual,
                    is_shared: false,
                }),
            };
            if here.is_shared {
                return Err(Error::SharedText { key: patch.key.name(), addr: patch.code });
            }
            let is_usual = here.protection == usual && pages.end <= here.range.end;
            match (Run::of(patch, length, segment).filter(|_| is_usual), layout.runs.last_mut()) {
                (None, _) if layout.foreign.last() == Some(&pages) => {}
                (None, _) => extend(&mut layout.foreign, [pages])?,
                (Some(_), Some(run)) if is_known && pages.start <= run.pages.end + nearer => {
                    run.has_gaps |= pages.start > run.pages.end;
                    run.pages.end = run.pages.end.max(pages.end);
                }
                (Some(run), _) => extend(&mut layout.runs, [run])?,
            }
            mapping = Some(here);
        }
        Ok(layout)
    }
}

/// Write permission for all runs, or for none.
pub(super) fn open(runs: &[Run]) -> io::Result<()> {
    for (done, run) in runs.iter().enumerate() {
        if let Err(refused) = run.open() {
            // This one too: a refusal half-way through it leaves a part changed.
            seal(&runs[..=done]);
            return Err(refused.into());
        }
    }
    Ok(())
}

/// Removes the write permission. Returns how many pages kept it, which only happens when there is
/// no memory left for the mapping.
pub(super) fn seal(runs: &[Run]) -> usize {
    runs.iter().map(Run::seal).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StaticKey;
    use crate::object::{Site, segments_of};

    static KEY: StaticKey<false> = StaticKey::new("k", "", 0);

    const R_X: MprotectFlags = MprotectFlags::READ.union(MprotectFlags::EXEC);

    fn patch(code: usize) -> Patch {
        Patch::new(&Site::new(code, code + 64, false, Some(0)), KEY.key(), true).unwrap()
    }

    fn layout_of(
        patches: &[Patch],
        length: usize,
        mappings: &[Mapping],
        nearer: usize,
    ) -> Result<Layout, Error> {
        let code = dormouse_sys::loader::find(layout_of as *const () as usize).unwrap();
        let text = segments_of(&code).into_iter().find(|segment| segment.protection() == R_X).unwrap();
        Layout::by(patches, length, &[text], nearer, |at| {
            Ok(mappings.iter().find(|mapping| mapping.range.contains(&at)).cloned())
        })
    }

    fn mapping(range: Range<usize>, protection: MprotectFlags) -> Mapping {
        Mapping { range, protection, is_shared: false }
    }

    fn foreign(layout: &Layout) -> Vec<(usize, usize)> {
        layout.foreign.iter().map(|pages| (pages.start, pages.end)).collect()
    }

    fn bounds(layout: &Layout) -> Vec<(usize, usize, bool)> {
        layout.runs.iter().map(|run| (run.pages.start, run.pages.end, run.has_gaps)).collect()
    }

    /// The beginning of the page with this number.
    fn page(number: usize) -> usize {
        number * rustix::param::page_size()
    }

    #[test]
    fn near_pages_of_one_mapping_are_one_run() {
        let far = page(1) + 3 * MERGE_BYTES;
        let mappings = [mapping(page(1)..far + page(1), R_X), mapping(far + page(1)..far + page(3), R_X)];
        for (length, expected_pages) in [(1, 4), (5, 5)] {
            let patches = [page(1), page(2) - 2, page(5), far, far + page(1) + 8].map(patch);
            let layout = layout_of(&patches, length, &mappings, MERGE_BYTES).unwrap();
            assert_eq!(
                bounds(&layout),
                [
                    (page(1), page(6), true),
                    (far, far + page(1), false),
                    (far + page(1), far + page(2), false)
                ]
            );
            // A site that crosses the end of its page needs the next one only where all of it is
            // written.
            assert_eq!((layout.count, layout.foreign.len()), (expected_pages, 0), "{length} bytes");
        }
    }

    #[test]
    fn runs_have_no_gaps_where_forbidden() {
        let patches = [page(1), page(2), page(5)].map(patch);
        for (mappings, nearer) in [(&[mapping(page(1)..page(9), R_X)][..], 0), (&[], MERGE_BYTES)] {
            let layout = layout_of(&patches, 1, mappings, nearer).unwrap();
            assert!(layout.runs.iter().all(|run| !run.has_gaps), "{:?}", layout.runs);
            let pages: usize = layout.runs.iter().map(|run| run.pages.len() / page(1)).sum();
            assert_eq!((pages, layout.count), (3, 3));
        }
    }

    #[test]
    fn what_has_other_permissions_is_in_no_run() {
        let rwx = R_X | MprotectFlags::WRITE;
        let mappings =
            [mapping(page(1)..page(3), R_X), mapping(page(3)..page(4), rwx), mapping(page(4)..page(9), R_X)];
        // One on each side, then one inside, then one that reaches into it.
        let layout = layout_of(&[page(1), page(5)].map(patch), 1, &mappings, MERGE_BYTES).unwrap();
        assert_eq!(bounds(&layout), [(page(1), page(2), false), (page(5), page(6), false)]);
        let layout =
            layout_of(&[page(1), page(3) + 8, page(5)].map(patch), 1, &mappings, MERGE_BYTES).unwrap();
        assert_eq!(bounds(&layout), [(page(1), page(2), false), (page(5), page(6), false)]);
        assert_eq!((foreign(&layout), layout.count), (vec![(page(3), page(4))], 3));
        let layout = layout_of(&[patch(page(3) - 2)], 5, &mappings, MERGE_BYTES).unwrap();
        assert_eq!((bounds(&layout), foreign(&layout)), (vec![], vec![(page(2), page(4))]));
    }

    #[test]
    fn a_guarded_object_is_in_no_run() {
        let code = dormouse_sys::loader::find(layout_of as *const () as usize).unwrap();
        let text = segments_of(&code).into_iter().find(|segment| segment.protection() == R_X).unwrap();
        let segments = [text.clone(), text.guarded()];
        let patches = [(1, 0), (2, 1), (2, 1), (3, 0), (4, 1)].map(|(number, segment)| {
            let code = page(number);
            Patch::new(&Site::new(code, code + 64, false, Some(segment)), KEY.key(), true).unwrap()
        });
        let known = mapping(page(1)..page(9), R_X);
        for answer in [Some(known), None] {
            let layout = Layout::by(&patches, 1, &segments, 0, |_| Ok(answer.clone())).unwrap();
            assert_eq!(bounds(&layout), [(page(1), page(2), false), (page(3), page(4), false)]);
            assert_eq!(foreign(&layout), [(page(2), page(3)), (page(4), page(5))]);
        }
    }

    #[test]
    fn shared_memory_is_refused() {
        let mappings = [Mapping { is_shared: true, ..mapping(page(1)..page(9), R_X) }];
        let error = layout_of(&[patch(page(1) + 8)], 1, &mappings, MERGE_BYTES).unwrap_err();
        assert!(matches!(error, Error::SharedText { addr, .. } if addr == page(1) + 8), "{error}");
    }
}
