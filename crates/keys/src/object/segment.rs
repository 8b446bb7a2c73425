//! The memory that an object's code lies in, and its permissions.

use std::mem::offset_of;

use dormouse_sys::loader;
use rustix::mm::MprotectFlags;

use crate::arch::LENGTH;

/// Part of a loaded object. All copies of dormouse in a process share its layout.
#[derive(Debug, Clone)]
#[repr(C)]
pub(crate) struct Segment {
    start: usize,
    end: usize,
    /// The end of the part that lies in the file.
    file_end: usize,
    /// `PF_R`, `PF_W` and `PF_X`, as the segment's header gives them, and [`GUARDED`].
    flags: u32,
}

/// Among the flags of a segment: its pages may have a permission that the header has not. A bit
/// that systems may use, and Linux does not; older copies ignore it.
const GUARDED: u32 = 1 << 20;

const _: () = assert!(
    size_of::<Segment>() == 32
        && align_of::<Segment>() == 8
        && offset_of!(Segment, end) == 8
        && offset_of!(Segment, file_end) == 16
        && offset_of!(Segment, flags) == 24
);

/// The segments of a loaded object, by address.
pub(crate) fn segments_of(object: &loader::Loaded) -> Vec<Segment> {
    let guarded = if object.is_guarded() { GUARDED } else { 0 };
    let mut segments: Vec<Segment> = object.segments.iter().map(|one| Segment::of(one, guarded)).collect();
    segments.sort_unstable_by_key(|s| s.start);
    segments
}

impl Segment {
    fn of(segment: &loader::Segment, more: u32) -> Self {
        let (start, end) = (segment.range.start, segment.range.end);
        Self { start, end, file_end: segment.file_end, flags: segment.flags | more }
    }

    /// This segment, as if the loader had added a permission to its pages.
    #[cfg(test)]
    pub(crate) fn guarded(self) -> Self {
        Self { flags: self.flags | GUARDED, ..self }
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn contains(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// The last byte that lies in the file: it goes when the file is cut short anywhere before it.
    pub(crate) fn last_in_file(&self) -> Option<usize> {
        (self.file_end > self.start).then(|| self.file_end - 1)
    }

    /// Whether its pages may have a permission that [`Self::protection`] lacks, and that a change
    /// of permissions would take away for good.
    pub(crate) fn is_guarded(&self) -> bool {
        self.flags & GUARDED != 0
    }

    /// The permissions that the segment's header gives.
    pub(crate) fn protection(&self) -> MprotectFlags {
        let bits = [
            (libc::PF_R, MprotectFlags::READ),
            (libc::PF_W, MprotectFlags::WRITE),
            (libc::PF_X, MprotectFlags::EXEC),
        ];
        bits.into_iter().filter(|(flag, _)| self.flags & flag != 0).map(|(_, one)| one).collect()
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
        code + LENGTH <= segment.end
            && segment.protection().contains(MprotectFlags::READ | MprotectFlags::EXEC)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;

    use super::*;

    // Not read-only: some linkers put constants beside the code.
    static DATA: AtomicU8 = AtomicU8::new(0);

    #[test]
    fn an_object_knows_its_code_and_its_name() {
        let code = an_object_knows_its_code_and_its_name as *const () as usize;
        let object = loader::find(code).unwrap();
        let segments = segments_of(&object);
        assert!(object.is_executable());
        assert!(segment_of(&segments, code).is_some());
        let data = &raw const DATA as usize;
        assert!(find(&segments, data).is_some() && segment_of(&segments, data).is_none());
        let own = std::env::current_exe().unwrap();
        assert_eq!(object.file_name(), own.file_name().unwrap().to_string_lossy());
        let heap = Box::new(0u64);
        assert!(find(&segments, std::ptr::from_ref(&*heap) as usize).is_none());
    }
}
