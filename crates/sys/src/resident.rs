//! How much of dormouse's own memory is resident: the pages that were written to.
//!
//! The kernel gives a page when it is first used, so a mapping says little. The thread's `pagemap`
//! has a word for each page of the process, and the reader counts those of dormouse's ranges that
//! are there and of this process alone. Not counted are pages that are shared with a parent or a
//! child, the kernel's page of zeros, and pages in swap.
//!
//! Mappings are listed where they are made: this costs a few stores beside the system call.
//!
//! # References
//!
//! Linux, `Documentation/admin-guide/mm/pagemap.rst`

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::brief::BriefFile;

/// The mappings that are listed. All of further ones counts.
const MOST: usize = 8192;

/// By the thread: the process's own has none once its first thread has ended.
const PAGEMAP: &str = "/proc/thread-self/pagemap";

/// How many places are tried for a mapping.
const TRIES: usize = 16;

const WORD: usize = size_of::<u64>();

/// The page is there, and this process alone has it.
const OWN: u64 = 1 << 63 | 1 << 56;

#[derive(Debug)]
struct Listed {
    /// The address; 0: the place is free.
    start: AtomicUsize,
    length: AtomicUsize,
}

static LISTED: [Listed; MOST] =
    [const { Listed { start: AtomicUsize::new(0), length: AtomicUsize::new(0) } }; MOST];

/// How many were listed so far.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The bytes of all mappings, listed or not.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// A mapping was made at this address.
pub(crate) fn is_mapped(start: usize, length: usize) {
    MAPPED.fetch_add(length, Ordering::Relaxed);
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut places = (first..first.wrapping_add(TRIES)).map(|at| &LISTED[at % MOST]);
    let take = |place: &&Listed| {
        place.start.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    if let Some(place) = places.find(take) {
        place.length.store(length, Ordering::Relaxed);
    }
}

/// That mapping is about to be unmapped.
pub(crate) fn is_unmapped(start: usize, length: usize) {
    MAPPED.fetch_sub(length, Ordering::Relaxed);
    if let Some(place) = LISTED.iter().find(|place| place.start.load(Ordering::Relaxed) == start) {
        place.length.store(0, Ordering::Relaxed);
        place.start.store(0, Ordering::Relaxed);
    }
}

/// The address space of all mappings, in bytes.
pub fn mapped_bytes() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnMemory {
    /// In bytes.
    pub bytes: usize,
    /// Whether it is resident. Otherwise the kernel does not show which pages are, or there are too
    /// many mappings, and some of it is address space.
    pub is_resident: bool,
}

/// The memory of all mappings, and of `more`.
///
/// # Cost
///
/// A system call for each mapping, and a word for each page. Nothing is allocated.
pub fn own_memory(more: impl Iterator<Item = Range<usize>> + Clone) -> OwnMemory {
    let places = LISTED.iter().take(NEXT.load(Ordering::Relaxed).saturating_add(TRIES));
    let listed = places.filter_map(|place| {
        let [start, length] = [&place.start, &place.length].map(|word| word.load(Ordering::Relaxed));
        (start != 0 && length != 0).then(|| start..start.wrapping_add(length))
    });
    let all = mapped_bytes();
    let unlisted = all.saturating_sub(listed.clone().map(|range| range.len()).sum());
    match BriefFile::open(PAGEMAP).ok().and_then(|file| pages(&file, listed.chain(more.clone()))) {
        Some(pages) => {
            OwnMemory { bytes: unlisted + pages * rustix::param::page_size(), is_resident: unlisted == 0 }
        }
        None => OwnMemory { bytes: all + more.map(|range| range.len()).sum::<usize>(), is_resident: false },
    }
}

/// How many pages that begin in these ranges are there, and of this process alone.
fn pages(pagemap: &BriefFile, ranges: impl Iterator<Item = Range<usize>>) -> Option<usize> {
    let page = rustix::param::page_size();
    let mut words = [0; 512 * WORD];
    let mut pages = 0;
    for range in ranges {
        let (mut at, end) = (range.start.div_ceil(page), range.end.div_ceil(page));
        while at < end {
            let words = &mut words[..(end - at).min(512) * WORD];
            let length = pagemap.read_at(words, (at * WORD) as u64).ok()?;
            if length < words.len() {
                return None;
            }
            let words = words.as_chunks::<WORD>().0.iter().map(|word| u64::from_ne_bytes(*word));
            at += words.len();
            pages += words.filter(|word| word & OWN == OWN).count();
        }
    }
    Some(pages)
}

#[cfg(all(test, not(any(loom, miri))))]
mod tests {
    use super::*;

    #[test]
    fn pages_count_once_they_are_written() {
        const PAGES: usize = 700;
        let page = rustix::param::page_size();
        // SAFETY: a new mapping, which is unmapped below.
        #[expect(unsafe_code, reason = "to make a mapping")]
        let start = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let start = libc::mmap(std::ptr::null_mut(), PAGES * page, protection, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            // Huge pages would be there as a whole.
            libc::madvise(start, PAGES * page, libc::MADV_NOHUGEPAGE);
            start.cast::<u8>()
        };
        let range = start.addr()..start.addr() + PAGES * page;
        let count = |range: Range<usize>| {
            let file = BriefFile::open(PAGEMAP).unwrap();
            pages(&file, std::iter::once(range)).unwrap()
        };
        assert_eq!(count(range.clone()), 0);
        for at in [0, 1, 511, 512, 699] {
            // SAFETY: within the mapping.
            #[expect(unsafe_code, reason = "to write to a page")]
            unsafe {
                start.add(at * page).write_volatile(1);
            }
        }
        // SAFETY: as above. The kernel shows its page of zeros.
        #[expect(unsafe_code, reason = "to read a page")]
        let zero = unsafe { start.add(300 * page).read_volatile() };
        assert_eq!((count(range.clone()), zero), (5, 0));
        assert_eq!(count(range.start + 1..range.end), 4, "it does not begin in the range");
        // SAFETY: the mapping from above.
        #[expect(unsafe_code, reason = "to unmap it")]
        let unmapped = unsafe { libc::munmap(start.cast(), PAGES * page) };
        assert_eq!(unmapped, 0);
    }
}
