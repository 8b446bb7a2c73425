//! The head of a mapped object says where the object lies, and where the index of its entries is.

use std::ops::Range;

use crate::memory::{self, MemorySource};

/// Kinds of segments.
const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// The size of the description of a segment, and the most of them.
const SEGMENT: usize = 56;
const MOST_SEGMENTS: usize = 128;
/// 64 bits, in this machine's order.
const MAGIC: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, if cfg!(target_endian = "big") { 2 } else { 1 }];

/// The head of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// From its first segment to the end of its last.
    pub(crate) range: Range<u64>,
    /// The address of the index of its entries.
    pub(crate) index: Option<u64>,
}

impl Head {
    /// Reads the head at an address, to which the first byte of the object's file is mapped.
    pub(crate) fn read(memory: &impl MemorySource, address: u64) -> Option<Self> {
        let header: [u8; 64] = memory::array(memory, address)?;
        if !header.starts_with(&MAGIC) {
            return None;
        }
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let segments = u64::from_ne_bytes(*header[32..].first_chunk()?);
        let (size, count) = (usize::from(half(54)), usize::from(half(56)).min(MOST_SEGMENTS));
        if size < SEGMENT {
            return None;
        }
        let (mut moved, mut extent, mut index) = (None, None::<Range<u64>>, None);
        for number in 0..count {
            let at = address.checked_add(segments)?.checked_add((number * size) as u64)?;
            let segment: [u8; SEGMENT] = memory::array(memory, at)?;
            let word = |at: usize| segment[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
            let (kind, offset, start, length) = (word(0) as u32, word(8), word(16), word(40));
            match kind {
                PT_LOAD => {
                    if offset == 0 {
                        moved.get_or_insert(address.wrapping_sub(start));
                    }
                    let end = start.checked_add(length)?;
                    let known = extent.get_or_insert(start..end);
                    *known = known.start.min(start)..known.end.max(end);
                }
                PT_GNU_EH_FRAME => index = Some(start),
                _ => {}
            }
        }
        let (moved, extent) = (moved?, extent?);
        let range = moved.wrapping_add(extent.start)..moved.wrapping_add(extent.end);
        let index = index.map(|index| moved.wrapping_add(index)).filter(|index| range.contains(index));
        (range.start < range.end).then_some(Self { range, index })
    }
}
