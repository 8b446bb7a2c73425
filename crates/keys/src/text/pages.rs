//! Making code writable, and read-only again.
//!
//! # Safety
//!
//! Only whole pages of loaded objects' segments change their permissions, and they stay readable and
//! executable.
#![allow(unsafe_code)]

use std::ffi::c_void;

use rustix::mm::{MprotectFlags, mprotect};

use super::{Patch, Segment};
use crate::Error;

/// Runs of pages closer than this are made writable together: a system call and a flush of all processors'
/// translations costs more than passing over pages in between.
const MERGE_BYTES: usize = 1 << 20;

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

/// The pages of a batch's sites, writable until [`Writable::seal`].
#[derive(Debug)]
#[must_use = "the code stays writable until it is sealed"]
pub(crate) struct Writable {
    runs: Vec<Run>,
    /// Pages that hold a site.
    pub(crate) pages: usize,
}

impl Writable {
    /// Write permission for the pages of all (sorted) patches, or for none.
    pub(crate) fn open(patches: &[Patch], segments: &[Segment], length: usize) -> Result<Self, Error> {
        let (runs, pages) = runs(patches, segments, length);
        for (done, run) in runs.iter().enumerate() {
            if let Err(errno) = run.protect(MprotectFlags::WRITE) {
                // This one too: a refusal half-way through it leaves a part changed.
                seal(&runs[..=done]);
                return Err(Error::Denied {
                    what: "mprotect of code",
                    source: errno.into(),
                    setting: "allow writable code in this process \
                              (systemd: MemoryDenyWriteExecute=no; SELinux: execmod)",
                });
            }
        }
        Ok(Self { runs, pages })
    }

    /// Takes the write permission away again; says how many pages kept it, which only happens when there is no
    /// memory left for the mapping.
    pub(crate) fn seal(self) -> usize {
        seal(&self.runs)
    }
}

fn seal(runs: &[Run]) -> usize {
    let page = rustix::param::page_size();
    runs.iter()
        .filter(|run| run.protect(MprotectFlags::empty()).is_err())
        .map(|run| (run.end - run.start) / page)
        .sum()
}

/// The runs of pages that hold the first `length` bytes of the (sorted) patches, and how many pages do.
fn runs(patches: &[Patch], segments: &[Segment], length: usize) -> (Vec<Run>, usize) {
    let page = rustix::param::page_size();
    let mut runs: Vec<(usize, Run)> = Vec::new();
    let (mut pages, mut counted) = (0, 0);
    for patch in patches {
        let start = patch.site.code & !(page - 1);
        let end = (patch.site.code + length).next_multiple_of(page);
        pages += (end - start.max(counted).min(end)) / page;
        counted = counted.max(end);
        match runs.last_mut() {
            Some((segment, run)) if *segment == patch.segment && start <= run.end + MERGE_BYTES => {
                run.end = run.end.max(end);
            }
            _ => {
                let protection = segments[patch.segment].protection;
                runs.push((patch.segment, Run { start, end, protection }));
            }
        }
    }
    (runs.into_iter().map(|(_, run)| run).collect(), pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Site;
    use crate::text::object_of;

    fn patch(code: usize, segment: usize) -> Patch {
        let site = Site { code, target: code + 64, branch: false, segment: Some(segment) };
        Patch { site, segment, key: "k", enabled: true }
    }

    #[test]
    fn near_pages_are_one_run_and_far_ones_or_other_segments_are_not() {
        let (_, segments) = object_of(runs as *const () as usize).unwrap();
        let far = 0x1000 + 3 * MERGE_BYTES;
        let patches =
            [patch(0x1000, 0), patch(0x1ffe, 0), patch(0x5000, 0), patch(far, 0), patch(far + 8, 1)];
        for (length, first_end, expected_pages) in [(1, 0x6000, 3), (5, 0x6000, 4)] {
            let (runs, pages) = runs(&patches, &segments, length);
            let bounds: Vec<_> = runs.iter().map(|r| (r.start, r.end)).collect();
            assert_eq!(bounds, [(0x1000, first_end), (far, far + 0x1000), (far, far + 0x1000)]);
            // A site that crosses the end of its page needs the next one only where all of it is written.
            assert_eq!(pages, expected_pages, "{length} bytes a site");
        }
    }
}
