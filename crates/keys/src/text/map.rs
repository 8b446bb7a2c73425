//! Which memory is code, and with what permissions.

use dormouse_sys::loader;
use rustix::mm::MprotectFlags;

use crate::arch::LENGTH;

/// Part of a loaded object.
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct Segment {
    start: usize,
    end: usize,
    /// What the segment's header gives.
    pub(crate) protection: MprotectFlags,
    /// Whether a part is mapped so that a write would reach the file, and with it other processes: see
    /// [`mark_shared`].
    pub(crate) is_shared: bool,
}

/// An object's file name and its segments, by address. It asks the loader, so it is not called under the patch
/// lock (see [`dormouse_sys::loader`]).
pub(crate) fn object_of(address: usize) -> Option<(String, Vec<Segment>)> {
    let object = loader::find(address)?;
    let mut segments: Vec<Segment> = object.segments.iter().map(Segment::of).collect();
    segments.sort_unstable_by_key(|s| s.start);
    Some((object.file_name(), segments))
}

impl Segment {
    fn of(segment: &loader::Segment) -> Self {
        let protection = protection(segment.flags);
        Self { start: segment.range.start, end: segment.range.end, protection, is_shared: false }
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }
}

/// The index of the segment, of those in order of address, that holds `address`.
pub(crate) fn find(segments: &[Segment], address: usize) -> Option<usize> {
    let after = segments.partition_point(|s| s.start <= address);
    let at = after.checked_sub(1)?;
    (address < segments[at].end).then_some(at)
}

/// The index of the executable segment that holds a whole site at `code`.
pub(crate) fn segment_of(segments: &[Segment], code: usize) -> Option<usize> {
    find(segments, code).filter(|&at| {
        let segment = &segments[at];
        code + LENGTH <= segment.end && segment.protection.contains(MprotectFlags::READ | MprotectFlags::EXEC)
    })
}

/// Finds out which segments are shared with their files.
pub(crate) fn mark_shared(segments: &mut [Segment]) {
    for shared in super::shared::shared_mappings() {
        let overlaps = |s: &&mut Segment| s.start < shared.end && shared.start < s.end;
        segments.iter_mut().filter(overlaps).for_each(|s| s.is_shared = true);
    }
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

    static DATA: u8 = 0;

    #[test]
    fn an_object_knows_its_code_and_its_name() {
        let code = an_object_knows_its_code_and_its_name as *const () as usize;
        let (name, segments) = object_of(code).unwrap();
        assert!(segment_of(&segments, code).is_some());
        let data = &raw const DATA as usize;
        assert!(find(&segments, data).is_some() && segment_of(&segments, data).is_none());
        let own = std::env::current_exe().unwrap();
        assert_eq!(name, own.file_name().unwrap().to_string_lossy());
        let heap = Box::new(0u64);
        assert!(find(&segments, std::ptr::from_ref(&*heap) as usize).is_none());
    }
}
