//! The note that each copy carries, and the election by it.
//!
//! # Safety
//!
//! A note of our version, in an object that stays loaded, leads to a table of the layout that the
//! version stands for. The unsafe code reads notes of other objects only inside mapped segments.
#![allow(unsafe_code)]

use std::ops::Range;

use super::table::{ABI, Conflict, TABLE, Table};
use crate::loader::{self, Object};

// The word, not the note, is relocated: the note is read-only. By way of a word, because in a Rust
// dylib the table is a symbol that another object could provide.
std::arch::global_asm!(
    ".pushsection .note.dormouse,\"a\",@note",
    ".balign 4",
    concat!(".globl ", of_this_version!("dormouse_note_v1")),
    concat!(".hidden ", of_this_version!("dormouse_note_v1")),
    concat!(of_this_version!("dormouse_note_v1"), ":"),
    ".4byte 9, 8, 1",
    ".asciz \"dormouse\"",
    ".balign 4",
    ".4byte {abi}",
    concat!(".4byte ", of_this_version!(".Ldormouse_table_v1"), " - ."),
    ".popsection",
    ".pushsection .data.rel.ro.dormouse_table_v1,\"aw\",@progbits",
    ".balign 8",
    concat!(of_this_version!(".Ldormouse_table_v1"), ":"),
    ".8byte {table}",
    ".popsection",
    abi = const ABI,
    table = sym TABLE,
);

unsafe extern "C" {
    #[link_name = of_this_version!("dormouse_note_v1")]
    static OWN: Note;
}

/// A note of a copy of dormouse, as it lies in memory.
#[derive(Debug)]
#[repr(C)]
struct Note {
    name_length: u32,
    length: u32,
    kind: u32,
    name: [u8; 12],
    abi: u32,
    /// From this field to the word.
    word: i32,
}

const _: () = assert!(size_of::<Note>() == 32);

const NAME: [u8; 12] = *b"dormouse\0\0\0\0";

#[inline(never)]
fn own() -> usize {
    (&raw const OWN) as usize
}

/// # Safety
///
/// A note of ours is there.
unsafe fn abi(note: usize) -> u32 {
    // SAFETY: the caller's promise. Volatile: a linker or a tool may have changed the word behind
    // the compiler's back.
    unsafe { (&raw const (*(note as *const Note)).abi).read_volatile() }
}

/// The table that a note of our version leads to.
///
/// # Safety
///
/// A note of ours of this version is there, in an object that stays.
unsafe fn table(note: usize) -> &'static Table {
    // SAFETY: the caller's promise. The word has been relocated: constructors of objects that were
    // loaded together run after that.
    unsafe {
        let field = &raw const (*(note as *const Note)).word;
        let word = (field as usize).wrapping_add_signed(field.read_volatile() as isize);
        &**(word as *const *const Table)
    }
}

/// The first note of ours in the loader's list.
fn first() -> Option<usize> {
    loader::each(|object| object.notes().find_map(|segment| find(object, segment.range)))
}

/// Looks through a segment of notes. Names and contents are padded to four bytes; the segments that
/// pad to eight hold contents of such lengths.
fn find(object: Object<'_>, segment: Range<usize>) -> Option<usize> {
    let readable = |s: &loader::Segment| {
        s.flags & libc::PF_R != 0 && s.range.start <= segment.start && segment.end <= s.range.end
    };
    object.segments().find(readable)?;
    let mut at = segment.start;
    while at.checked_add(12)? <= segment.end && at.is_multiple_of(4) {
        // SAFETY: three words inside a mapped, readable segment.
        let [name, length, kind] = unsafe { (at as *const [u32; 3]).read_volatile() };
        let next = at
            .checked_add(12)?
            .checked_add((name as usize).next_multiple_of(4))?
            .checked_add((length as usize).next_multiple_of(4))?;
        if next > segment.end {
            return None;
        }
        if (name, length, kind) == (9, 8, 1) {
            // SAFETY: the note of that size ends inside the segment.
            let owner = unsafe { (&raw const (*(at as *const Note)).name).read_volatile() };
            if owner == NAME {
                return Some(at);
            }
        }
        at = next;
    }
    None
}

/// Finds the copy that leads, and sees to it that it stays.
pub(super) fn elect() -> Result<&'static Table, Conflict> {
    let mut refused = None;
    loop {
        // None at all: a tool has stripped the notes.
        let Some(leader) = first().filter(|&note| note != own()) else { return Ok(&TABLE) };
        // Before anything is read: it may be leaving, and then it is not there at the next reading.
        if let Err(error) = loader::pin(leader) {
            if refused.replace(leader) == Some(leader) {
                return Err(error.into());
            }
            continue;
        }
        // SAFETY: found in an object that stays now, and our own.
        let (version, leaders) = unsafe { (abi(own()), abi(leader)) };
        if version != leaders {
            return Err(Conflict::Version {
                object: loader::object_of(own()),
                version,
                leader: loader::object_of(leader),
                leaders,
            });
        }
        // SAFETY: of our version, in an object that stays.
        return Ok(unsafe { table(leader) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_copy_finds_its_own_note_and_leads() {
        assert_eq!(first(), Some(own()));
        // SAFETY: our own note.
        unsafe {
            assert_eq!(abi(own()), ABI);
            assert!(std::ptr::eq(table(own()), &raw const TABLE));
        }
        assert!(std::ptr::eq(elect().unwrap(), &raw const TABLE));
    }

    #[test]
    fn foreign_and_cut_notes_are_passed_over() {
        let gnu: [u32; 7] = [4, 8, 3, u32::from_ne_bytes(*b"GNU\0"), 1, 2, 0];
        let mut notes = gnu[..6].to_vec();
        let at = 4 * notes.len();
        notes.extend([9, 8, 1]);
        notes.extend(NAME.as_chunks::<4>().0.iter().map(|&c| u32::from_ne_bytes(c)));
        notes.extend([ABI, 0]);
        let start = notes.as_ptr() as usize;
        let header = libc::Elf64_Phdr {
            p_type: libc::PT_LOAD,
            p_flags: libc::PF_R,
            p_offset: 0,
            p_vaddr: start as u64,
            p_paddr: 0,
            p_filesz: 0,
            p_memsz: 4 * notes.len() as u64,
            p_align: 8,
        };
        let headers = [header];
        let object = Object::of_headers(&headers);
        let end = start + 4 * notes.len();
        assert_eq!(find(object, start..end), Some(start + at));
        assert_eq!(find(object, start..end - 4), None, "cut");
        assert_eq!(find(object, start..end + 4), None, "not mapped");
        notes[0] = u32::MAX;
        assert_eq!(find(object, start..end), None, "a length beyond the end");
    }
}
