//! The dynamic symbols of loaded objects: whether one has a thread-local of a given name.
//!
//! # Safety
//!
//! The unsafe code reads the tables that an object's dynamic section leads to. They lie in mapped
//! segments of the object, which each access is checked against; the loader itself has read them.
//!
//! # References
//!
//! elf(5); `DT_GNU_HASH` as in glibc's `elf/dl-lookup.c`.

use std::ffi::CStr;
use std::ops::Range;

use super::{Object, each};

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const STT_TLS: u8 = 6;

/// A symbol of a 64-bit object.
#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Whether the object of that address shows a thread-local of that name.
pub(crate) fn exports(address: usize, name: &CStr) -> bool {
    each(|object| object.contains(address).then(|| has_thread_local(object, name))).unwrap_or(false)
}

/// An address in another object that shows a thread-local of that name, unless that has a copy of
/// dormouse, too.
pub(crate) fn other_exporter(name: &CStr, own: usize) -> Option<usize> {
    each(|object| {
        let is_other = !object.contains(own) && !has_copy(object) && has_thread_local(object, name);
        is_other.then(|| object.segments().next().map(|segment| segment.range.start))?
    })
}

/// Whether it has dormouse's note; see [`crate::rendezvous`].
fn has_copy(object: Object<'_>) -> bool {
    let owner = b"dormouse\0";
    object.notes().any(|notes| {
        let length = notes.range.len();
        // SAFETY: `notes` shows readable segments alone.
        let bytes = unsafe { std::slice::from_raw_parts(notes.range.start as *const u8, length) };
        bytes.windows(owner.len()).any(|window| window == owner)
    })
}

fn has_thread_local(object: Object<'_>, name: &CStr) -> bool {
    let is_known = cfg!(target_pointer_width = "64") && !object.is_cut_short();
    is_known && Tables::of(object).and_then(|tables| tables.has(name)) == Some(true)
}

/// Where the symbols of an object are, and GNU's hash table of their names. (An object with only
/// the older table shows nothing: linkers have written this one for twenty years.)
struct Tables<'a> {
    object: Object<'a>,
    symbols: usize,
    strings: usize,
    hash: usize,
}

impl<'a> Tables<'a> {
    fn of(object: Object<'a>) -> Option<Self> {
        let dynamic = object.of_kind(libc::PT_DYNAMIC).next()?.range;
        let [mut symbols, mut strings, mut hash] = [None; 3];
        for at in dynamic.step_by(16) {
            let [tag, value]: [u64; 2] = read(object, at)?;
            let table = match tag {
                0 => break,
                DT_SYMTAB => &mut symbols,
                DT_STRTAB => &mut strings,
                DT_GNU_HASH => &mut hash,
                _ => continue,
            };
            // glibc relocates these words in place, musl leaves them.
            let value = value as usize;
            let is_there = object.contains(value);
            *table = Some(if is_there { value } else { value.wrapping_add(object.base) });
        }
        Some(Self { object, symbols: symbols?, strings: strings?, hash: hash? })
    }

    /// Looks through the chain of the name's hash.
    fn has(&self, name: &CStr) -> Option<bool> {
        let [buckets, first, words, _]: [u32; 4] = read(self.object, self.hash)?;
        let hash = name
            .to_bytes()
            .iter()
            .fold(5381_u32, |hash, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let bucket_at = self.hash + 16 + 8 * words as usize;
        let chain_at = bucket_at + 4 * buckets as usize;
        let mut index = read::<u32>(self.object, bucket_at + 4 * hash.checked_rem(buckets)? as usize)?;
        loop {
            let there: u32 = read(self.object, chain_at + 4 * index.checked_sub(first)? as usize)?;
            let symbol: Symbol = read(self.object, self.symbols + index as usize * size_of::<Symbol>())?;
            if there | 1 == hash | 1 && self.is_named(symbol, name) {
                return Some(symbol.info & 0xf == STT_TLS && symbol.section != 0);
            }
            if there & 1 != 0 {
                return Some(false);
            }
            index = index.checked_add(1)?;
        }
    }

    fn is_named(&self, symbol: Symbol, name: &CStr) -> bool {
        let start = self.strings.wrapping_add(symbol.name as usize);
        let bytes = name.to_bytes_with_nul();
        is_mapped(self.object, start..start.wrapping_add(bytes.len()))
            // SAFETY: mapped.
            && unsafe { std::slice::from_raw_parts(start as *const u8, bytes.len()) } == bytes
    }
}

fn is_mapped(object: Object<'_>, range: Range<usize>) -> bool {
    object
        .segments()
        .any(|s| s.flags & libc::PF_R != 0 && s.range.start <= range.start && range.end <= s.range.end)
}

fn read<T: Copy>(object: Object<'_>, at: usize) -> Option<T> {
    let is_there = is_mapped(object, at..at.checked_add(size_of::<T>())?);
    // SAFETY: mapped and readable; `T` is made of integers, which have any bits.
    is_there.then(|| unsafe { (at as *const T).read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_shows_its_thread_locals() {
        let libc = libc::getpid as *const () as usize;
        assert!(exports(libc, c"errno") || cfg!(not(target_env = "gnu")));
        assert!(!exports(libc, c"getpid"), "no thread-local");
        assert!(!exports(the_c_library_shows_its_thread_locals as *const () as usize, c"errno"));
    }
}
