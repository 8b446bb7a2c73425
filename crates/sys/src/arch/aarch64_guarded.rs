//! Code that may be entered by marked instructions alone (BTI).
//!
//! An object whose functions all begin with such a mark says so in a note. Where the processor
//! knows the marks, the C library then gives the object's code the permission `PROT_BTI`, and the
//! kernel that of the loader and of static programs. It is in no header, and the kernel shows it
//! neither in `maps` nor by `PROCMAP_QUERY`. An `mprotect` without it takes it away; one that adds
//! it to code without marks ends the program at the next call by a register.
//!
//! # References
//!
//! ELF for the Arm 64-bit Architecture, "Program Property"; Linux `arch/arm64/include/asm/mman.h`
//! (`VM_ARCH_CLEAR`); glibc `sysdeps/aarch64/dl-bti.c`.
//!
//! # Safety
//!
//! The unsafe code asks for a word that the kernel gave the process at its start.
#![allow(unsafe_code)]

/// Whether the loader adds a permission to the code of an object with these properties (the note
/// `NT_GNU_PROPERTY_TYPE_0`). It may have been refused; that cannot be seen.
pub(crate) fn is_guarded(properties: &[u8]) -> bool {
    const BTI: libc::c_ulong = 1 << 17;
    // SAFETY: nothing is read but that word.
    let has_marks = || unsafe { libc::getauxval(libc::AT_HWCAP2) } & BTI != 0;
    is_marked(properties) && has_marks()
}

/// Whether an object's properties say that its code has the marks.
fn is_marked(note: &[u8]) -> bool {
    const TYPE_0: u32 = 5;
    const FEATURES: u32 = 0xc000_0000;
    const BTI: u32 = 1;
    let word = |from: &mut &[u8]| {
        let (word, rest) = from.split_first_chunk()?;
        *from = rest;
        Some(u32::from_le_bytes(*word))
    };
    let find = || {
        let mut rest = note;
        let [owner_length, length, kind] = [word(&mut rest)?, word(&mut rest)?, word(&mut rest)?];
        let (owner, rest) = rest.split_at_checked(owner_length as usize)?;
        let mut properties = rest.get(..length as usize)?;
        while kind == TYPE_0 && owner == b"GNU\0" {
            let [kind, length] = [word(&mut properties)?, word(&mut properties)?];
            let mut value = properties.get(..length as usize)?;
            if kind == FEATURES {
                return Some(word(&mut value)? & BTI != 0);
            }
            properties = properties.get((length as usize).next_multiple_of(8)..)?;
        }
        None
    };
    find().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A note of an owner with properties: kind and value.
    fn note(owner: &[u8; 4], kind: u32, properties: &[(u32, &[u32])]) -> Vec<u8> {
        let mut words = Vec::new();
        for (kind, value) in properties {
            words.extend([*kind, 4 * value.len() as u32].iter().chain(*value));
            words.resize(words.len().next_multiple_of(2), 0);
        }
        let head = [4, 4 * words.len() as u32, kind].map(u32::to_le_bytes).concat();
        let words = words.into_iter().flat_map(u32::to_le_bytes);
        head.into_iter().chain(*owner).chain(words).collect()
    }

    #[test]
    fn a_marked_object_is_told_by_its_note() {
        const FEATURES: u32 = 0xc000_0000;
        for (note, is) in [
            (note(b"GNU\0", 5, &[(FEATURES, &[1])]), true),
            (note(b"GNU\0", 5, &[(FEATURES, &[3])]), true),
            (note(b"GNU\0", 5, &[(1, &[7, 8]), (2, &[9]), (FEATURES, &[5])]), true),
            (note(b"GNU\0", 5, &[(FEATURES, &[2])]), false),
            (note(b"GNU\0", 5, &[(0xc000_0002, &[1])]), false),
            (note(b"GNU\0", 5, &[(FEATURES, &[])]), false),
            (note(b"GNU\0", 5, &[]), false),
            (note(b"GNU\0", 3, &[(FEATURES, &[1])]), false),
            (note(b"Go\0\0", 5, &[(FEATURES, &[1])]), false),
        ] {
            assert_eq!(is_marked(&note), is, "{note:?}");
        }
    }

    #[test]
    fn a_note_cut_anywhere_is_none() {
        let whole = note(b"GNU\0", 5, &[(1, &[7, 8]), (0xc000_0000, &[1])]);
        assert!((0..whole.len()).all(|length| !is_marked(&whole[..length])));
        // The length of a property leads beyond the note, and around.
        for length in [u32::MAX, u32::MAX - 7, 9] {
            let mut wrong = whole.clone();
            wrong[20..24].copy_from_slice(&length.to_le_bytes());
            assert!(!is_marked(&wrong));
        }
    }
}
