//! A site, and the segment in which it was found.

use super::entry::Entry;
use super::segment::{Segment, segment_of};

/// One place in the code that branches on a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    pub(crate) code: usize,
    pub(crate) target: usize,
    pub(crate) branch: bool,
    segment: u32,
}

// A large batch reads very many.
const _: () = assert!(size_of::<Site>() == 24);

impl Site {
    const NOWHERE: u32 = u32::MAX;

    pub(crate) fn new(code: usize, target: usize, branch: bool, segment: Option<usize>) -> Self {
        Self { code, target, branch, segment: segment.map_or(Self::NOWHERE, |at| at as u32) }
    }

    /// The site of an entry, if it lies in code of these segments.
    pub(crate) fn of(entry: &Entry, segments: &[Segment]) -> Self {
        let code = entry.code();
        Self::new(code, entry.target(), entry.branch(), segment_of(segments, code))
    }

    /// The index of its segment; `None`: the site is not in any object's code.
    pub(crate) fn segment(&self) -> Option<u32> {
        Some(self.segment).filter(|&at| at != Self::NOWHERE)
    }
}
