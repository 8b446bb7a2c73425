//! Making code writable, and read-only again.
//!
//! # Safety
//!
//! Only whole pages of loaded objects' segments change their permissions, and they stay readable and
//! executable.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;

use rustix::mm::{MprotectFlags, mprotect};

use super::{Patch, Segment};

/// Runs of pages closer than this are made writable together: a system call and a flush of all processors'
/// translations costs more than passing over pages in between.
const MERGE_BYTES: usize = 1 << 20;

/// Pages of one segment that are made writable together.
#[derive(Debug)]
pub(super) struct Run {
    start: usize,
    end: usize,
    protection: MprotectFlags,
}

impl Run {
    /// The pages of the bytes that a patch writes.
    pub(super) fn of(patch: &Patch, segments: &[Segment]) -> Self {
        let page = rustix::param::page_size();
        let start = patch.site.code & !(page - 1);
        let end = (patch.site.code + patch.length()).next_multiple_of(page);
        Self { start, end, protection: segments[patch.segment].protection }
    }

    pub(super) fn open(&self) -> rustix::io::Result<()> {
        self.protect(MprotectFlags::WRITE)
    }

    /// Says how many pages stay writable.
    pub(super) fn seal(&self) -> usize {
        match self.protect(MprotectFlags::empty()) {
            Ok(()) => 0,
            Err(_) => (self.end - self.start) / rustix::param::page_size(),
        }
    }

    fn protect(&self, extra: MprotectFlags) -> rustix::io::Result<()> {
        // SAFETY: whole pages of a loaded object's segment. Code stays readable and executable, so who reads
        // or runs it notices nothing.
        unsafe { mprotect(self.start as *mut c_void, self.end - self.start, self.protection | extra) }
    }
}

/// The pages of a batch's sites, writable until [`Writable::seal`].
#[derive(Debug)]
#[must_use = "the code stays writable until it is sealed"]
pub(super) struct Writable {
    runs: Vec<Run>,
    /// Pages that hold a site.
    pub(super) pages: usize,
}

impl Writable {
    /// Write permission for all runs, or for none.
    pub(super) fn open(runs: Vec<Run>, pages: usize) -> io::Result<Self> {
        for (done, run) in runs.iter().enumerate() {
            if let Err(refused) = run.open() {
                // This one too: a refusal half-way through it leaves a part changed.
                seal(&runs[..=done]);
                return Err(refused.into());
            }
        }
        Ok(Self { runs, pages })
    }

    /// Takes the write permission away again; says how many pages kept it, which only happens when there is no
    /// memory left for the mapping.
    pub(super) fn seal(self) -> usize {
        seal(&self.runs)
    }
}

fn seal(runs: &[Run]) -> usize {
    runs.iter().map(Run::seal).sum()
}

/// The runs of pages that hold what the (sorted) patches write, and how many pages do.
pub(super) fn runs(patches: &[Patch], segments: &[Segment]) -> (Vec<Run>, usize) {
    let page = rustix::param::page_size();
    let mut runs: Vec<(usize, Run)> = Vec::new();
    let (mut pages, mut counted) = (0, 0);
    for patch in patches {
        let new = Run::of(patch, segments);
        pages += (new.end - new.start.max(counted).min(new.end)) / page;
        counted = counted.max(new.end);
        match runs.last_mut() {
            Some((segment, run)) if *segment == patch.segment && new.start <= run.end + MERGE_BYTES => {
                run.end = run.end.max(new.end);
            }
            _ => runs.push((patch.segment, new)),
        }
    }
    (runs.into_iter().map(|(_, run)| run).collect(), pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Form;
    use crate::registry::Site;
    use crate::text::object_of;

    fn patch(code: usize, segment: usize, by_int3: bool) -> Patch {
        let site = Site { code, target: code + 64, branch: false, form: Form::Test, segment: Some(segment) };
        Patch { by_int3, ..Patch::new(site, "k", true).unwrap() }
    }

    #[test]
    fn near_pages_are_one_run_and_far_ones_or_other_segments_are_not() {
        let (_, segments) = object_of(runs as *const () as usize).unwrap();
        let far = 0x1000 + 3 * MERGE_BYTES;
        for (by_int3, first_end, expected_pages) in [(false, 0x6000, 3), (true, 0x6000, 4)] {
            let patches = [(0x1000, 0), (0x1ffe, 0), (0x5000, 0), (far, 0), (far + 8, 1)]
                .map(|(code, segment)| patch(code, segment, by_int3));
            let (runs, pages) = runs(&patches, &segments);
            let bounds: Vec<_> = runs.iter().map(|r| (r.start, r.end)).collect();
            assert_eq!(bounds, [(0x1000, first_end), (far, far + 0x1000), (far, far + 0x1000)]);
            // A site that crosses the end of its page needs the next one only where all of it is written.
            assert_eq!(pages, expected_pages, "by int3: {by_int3}");
        }
    }
}
