//! Records of many threads in bounded memory: if there is no room the oldest are dropped.
//!
//! They lie one after another in chunks, each of one thread, after a header:
//!
//! | offset | type | what |
//! |---|---|---|
//! | 0 | `u32` | number of the ring in the pool |
//! | 4 | `u32` | id of the thread |
//! | 8 | `u64` | its start number |
//! | 16 | `u32` | bytes of the records |
//! | 20 | `u32` | number of the records |

use std::collections::{TryReserveError, VecDeque};

use dormouse_sys::records::RingOwner;

use crate::core::record::Reader;

/// Bytes before the records of a chunk.
const HEAD: usize = 24;

/// Where a record has its time stamp.
const TSC: usize = 8;

/// A queue of records that keeps the newest.
#[derive(Debug)]
pub(crate) struct RecordQueue {
    bytes: VecDeque<u8>,
    most: usize,
    /// Records in it.
    records: u64,
    /// Records that have made way, or found no memory.
    dropped: u64,
}

/// Records of one thread, one behind the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a> {
    /// The index of the ring in the pool.
    pub(crate) ring: usize,
    pub(crate) writer: RingOwner,
    pub(crate) bytes: &'a [u8],
    /// How many they are.
    pub(crate) records: u32,
}

impl Chunk<'_> {
    /// Without its oldest records, as long as it `is_too_long`.
    pub(crate) fn cut_while(mut self, is_too_long: impl Fn(&Self) -> bool) -> Self {
        while is_too_long(&self)
            && let Some(Ok((_, oldest))) = Reader::new(self.bytes).next_raw()
        {
            self.bytes = &self.bytes[oldest.len()..];
            self.records -= 1;
        }
        self
    }
}

/// The records that were in a queue, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Queued(Vec<u8>);

impl RecordQueue {
    /// An empty one, which takes memory as it grows, up to `most` bytes.
    pub(crate) const fn new(most: usize) -> Self {
        Self { bytes: VecDeque::new(), most, records: 0, dropped: 0 }
    }

    /// One that has all its memory.
    pub(crate) fn with_memory(most: usize) -> Result<Self, TryReserveError> {
        let mut queue = Self::new(most);
        queue.bytes.try_reserve_exact(most)?;
        Ok(queue)
    }

    /// Adds the records of one thread that `wanted` yields, with their number and size in bytes.
    pub(super) fn add<'a>(
        &mut self,
        (ring, writer): (usize, RingOwner),
        (count, length): (u32, usize),
        wanted: impl Iterator<Item = &'a [u8]>,
    ) {
        while self.bytes.len() + HEAD + length > self.most && self.drop_oldest() {}
        if self.bytes.len() + HEAD + length > self.most || self.reserve(HEAD + length).is_err() {
            self.dropped += u64::from(count);
            return;
        }
        self.bytes.extend((ring as u32).to_le_bytes());
        self.bytes.extend(writer.tid.to_le_bytes());
        self.bytes.extend(writer.start.to_le_bytes());
        self.bytes.extend((length as u32).to_le_bytes());
        self.bytes.extend(count.to_le_bytes());
        wanted.for_each(|record| self.bytes.extend(record));
        self.records += u64::from(count);
    }

    /// Makes room for some bytes more. It doubles its memory, but takes no more than it may:
    /// records that come and go pass through all that it has.
    fn reserve(&mut self, bytes: usize) -> Result<(), TryReserveError> {
        let wanted = self.bytes.len() + bytes;
        if wanted <= self.bytes.capacity() {
            return Ok(());
        }
        let capacity = wanted.max((2 * self.bytes.capacity()).min(self.most));
        self.bytes.try_reserve_exact(capacity - self.bytes.len())
    }

    /// Adds a chunk as another queue had it.
    pub(crate) fn add_chunk(&mut self, chunk: &Chunk<'_>) {
        let size = (chunk.records, chunk.bytes.len());
        self.add((chunk.ring, chunk.writer), size, std::iter::once(chunk.bytes));
    }

    /// False if there is none.
    fn drop_oldest(&mut self) -> bool {
        let mut head = [0; HEAD];
        if self.bytes.len() < HEAD {
            return false;
        }
        head.iter_mut().zip(&self.bytes).for_each(|(to, from)| *to = *from);
        let Chunk { records, .. } = chunk(&head, &[]);
        self.bytes.drain(..HEAD + length(&head));
        self.records -= u64::from(records);
        self.dropped += u64::from(records);
        true
    }

    /// Records in it, and the bytes that they take.
    pub(crate) fn size(&self) -> (u64, usize) {
        (self.records, self.bytes.len())
    }

    /// Its records chunk by chunk, the oldest first.
    pub(crate) fn chunks(&mut self) -> impl Iterator<Item = Chunk<'_>> {
        chunks(self.bytes.make_contiguous())
    }

    /// The time stamp of the first record of the oldest chunk.
    pub(crate) fn oldest_tsc(&self) -> Option<u64> {
        let mut stamp = [0; 8];
        let from = self.bytes.iter().skip(HEAD + TSC);
        let copied = stamp.iter_mut().zip(from).map(|(to, from)| *to = *from).count();
        (copied == stamp.len()).then(|| u64::from_le_bytes(stamp))
    }

    /// All records, which leave it.
    pub(crate) fn take(&mut self) -> Queued {
        self.records = 0;
        Queued(std::mem::take(&mut self.bytes).into())
    }

    /// A copy of all records; none without memory for it.
    pub(crate) fn copy(&self) -> Option<Queued> {
        let mut copy = Vec::new();
        copy.try_reserve_exact(self.bytes.len()).ok()?;
        let (first, second) = self.bytes.as_slices();
        copy.extend_from_slice(first);
        copy.extend_from_slice(second);
        Some(Queued(copy))
    }

    /// Records lost since the last call.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

impl Queued {
    /// Chunk by chunk, the oldest first.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        chunks(&self.0)
    }
}

fn chunks(mut rest: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    std::iter::from_fn(move || {
        let (head, behind) = rest.split_first_chunk()?;
        let (bytes, others) = behind.split_at(length(head));
        rest = others;
        Some(chunk(head, bytes))
    })
}

fn word(head: &[u8; HEAD], at: usize) -> u32 {
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

fn length(head: &[u8; HEAD]) -> usize {
    word(head, 16) as usize
}

fn chunk<'a>(head: &[u8; HEAD], bytes: &'a [u8]) -> Chunk<'a> {
    let start = u64::from(word(head, 12)) << 32 | u64::from(word(head, 8));
    let writer = RingOwner { tid: word(head, 4), start };
    Chunk { ring: word(head, 0) as usize, writer, bytes, records: word(head, 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(tid: u32) -> RingOwner {
        RingOwner { tid, start: u64::from(tid) << 33 | 7 }
    }

    #[test]
    fn a_full_queue_keeps_the_newest() {
        let mut queue = RecordQueue::new(1000);
        for number in 0..100_u32 {
            let records = [[number as u8; 8]; 3];
            let records = records.iter().map(|record| &record[..]);
            queue.add((number as usize % 5, owner(number)), (3, 24), records);
        }
        let (records, bytes) = queue.size();
        assert!(bytes <= 1000 && bytes > 1000 - 48, "{bytes}");
        assert_eq!(queue.bytes.capacity(), 1000);
        assert_eq!(records + queue.take_dropped(), 300);
        let copy = queue.copy().unwrap();
        let kept: Vec<u32> = copy.chunks().map(|chunk| chunk.writer.tid).collect();
        assert_eq!(kept, (100 - kept.len() as u32..100).collect::<Vec<_>>());
        for chunk in copy.chunks() {
            assert_eq!(chunk.writer, owner(chunk.writer.tid));
            assert_eq!((chunk.ring, chunk.records), (chunk.writer.tid as usize % 5, 3));
            assert_eq!(chunk.bytes, [chunk.writer.tid as u8; 24]);
        }
        assert_eq!(queue.take().chunks().count(), kept.len());
        assert_eq!((queue.size(), queue.take_dropped()), ((0, 0), 0));
    }

    #[test]
    fn a_chunk_is_cut_between_records() {
        // A record's length is its first two bytes.
        let record = |length: u16| [length.to_le_bytes().to_vec(), vec![0; usize::from(length) - 2]].concat();
        let bytes = [record(32), record(48), record(40)].concat();
        let chunk = Chunk { ring: 0, writer: owner(1), bytes: &bytes, records: 3 };
        let kept = |most: usize| {
            let cut = chunk.cut_while(|rest| rest.bytes.len() > most);
            (cut.records, cut.bytes.len())
        };
        assert_eq!([200, 119, 88, 87, 0].map(kept), [(3, 120), (2, 88), (2, 88), (1, 40), (0, 0)]);
    }

    #[test]
    fn records_beyond_all_room_are_counted() {
        let mut queue = RecordQueue::new(100);
        let records = [0_u8; 80];
        queue.add((0, owner(1)), (2, 16), std::iter::once(&records[..16]));
        queue.add((0, owner(1)), (10, 80), std::iter::once(&records[..]));
        assert_eq!((queue.size().0, queue.take_dropped()), (0, 12));
    }
}
