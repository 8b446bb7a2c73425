//! The index of an object's entries (`.eh_frame_hdr`): the address of each function, sorted, and
//! where its entry is.

use std::hash::{DefaultHasher, Hasher as _};

use crate::bytes::MappedBytes;
use crate::memory::{self, MemorySource};

/// How the index is written: four bytes a number; addresses relative to it.
const COUNT: u8 = 0x03;
const PLACES: u8 = 0x3b;
/// The bytes of its head that are read.
const HEAD: usize = 32;
/// The bytes of a function: where it begins, and where its entry is.
const FUNCTION: usize = 8;
/// The functions that are read at once at the end of a search.
const BLOCK: u64 = 64;

/// An index that can be searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Index {
    /// Its address, and that of the list.
    address: u64,
    list: u64,
    count: u64,
    /// A hash of the list's first functions and its last ones. Those of another file mostly differ.
    mark: u64,
}

/// A function in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) start: u64,
    /// The address of its entry.
    pub(crate) entry: u64,
}

/// The functions around an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Around {
    /// The last one that begins at the address or below.
    pub(crate) function: Option<Function>,
    /// Where the next one begins.
    pub(crate) next: Option<u64>,
}

impl Index {
    /// Reads the head of the index at an address. `None` if it cannot be read, or has another
    /// format than linkers write.
    pub(crate) fn read(memory: &impl MemorySource, address: u64) -> Option<Self> {
        let bytes: [u8; HEAD] = memory::array(memory, address)?;
        let mut head = MappedBytes { address, bytes: &bytes }.at(address)?;
        let [version, place, count, places] = [head.byte()?, head.byte()?, head.byte()?, head.byte()?];
        if version != 1 || count != COUNT || places != PLACES {
            return None;
        }
        head.skip_pointer(place)?;
        let count = u64::from(head.word()?);
        let mut index = Self { address, list: head.address(), count, mark: 0 };
        let (mut hasher, mut functions) = (DefaultHasher::new(), [0; BLOCK as usize * FUNCTION]);
        for first in [0, count.saturating_sub(BLOCK)] {
            let functions = &mut functions[..count.min(BLOCK) as usize * FUNCTION];
            // A count that is not true leads behind the list.
            let read = memory.read(index.place(first), functions)?;
            hasher.write(&functions[..read]);
        }
        index.mark = hasher.finish();
        (count > 0).then_some(index)
    }

    /// Whether it is still where it was.
    pub(crate) fn is_there(&self, memory: &impl MemorySource) -> bool {
        Self::read(memory, self.address).as_ref() == Some(self)
    }

    /// The number of functions.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    fn function(&self, bytes: [u8; FUNCTION]) -> Function {
        let [start, entry] = [[0, 1, 2, 3], [4, 5, 6, 7]].map(|places: [usize; 4]| {
            let distance = i32::from_ne_bytes(places.map(|at| bytes[at]));
            self.address.wrapping_add_signed(distance.into())
        });
        Function { start, entry }
    }

    fn place(&self, number: u64) -> u64 {
        self.list.wrapping_add(number.wrapping_mul(FUNCTION as u64))
    }

    /// The function with a number.
    pub(crate) fn get(&self, memory: &impl MemorySource, number: u64) -> Option<Function> {
        Some(self.function(memory::array(memory, self.place(number))?))
    }

    /// The functions around an address.
    pub(crate) fn find(&self, memory: &impl MemorySource, address: u64) -> Option<Around> {
        // Below `first` all begin at the address or below it, from `end` on behind it.
        let (mut first, mut end) = (0, self.count);
        while end - first > BLOCK {
            let middle = first + (end - first) / 2;
            if self.get(memory, middle)?.start <= address {
                first = middle + 1;
            } else {
                end = middle;
            }
        }
        // With the last one before, and the first one behind.
        let (from, to) = (first.saturating_sub(1), (end + 1).min(self.count));
        let mut bytes = [0; (BLOCK as usize + 2) * FUNCTION];
        let bytes = bytes.get_mut(..(to - from) as usize * FUNCTION)?;
        if memory.read(self.place(from), bytes)? != bytes.len() {
            return None;
        }
        let mut around = Around { function: None, next: None };
        for bytes in bytes.as_chunks().0 {
            let function = self.function(*bytes);
            if function.start > address {
                around.next = Some(function.start);
                break;
            }
            around.function = Some(function);
        }
        Some(around)
    }
}
