//! The entry of one site, as the assembler wrote it.
//!
//! # Safety
//!
//! See [`super`].
#![allow(unsafe_code)]

use crate::key::Key;

/// One site, as the assembler wrote it: offsets from the fields' own places.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    code: i32,
    target: i32,
    /// To the slot of the global offset table that holds the key's address.
    key: i32,
    /// Bit 0: a `likely!`; bit 1: the key's initial state; the others are 0.
    flags: u32,
}

const _: () = assert!(size_of::<Entry>() == 16 && align_of::<Entry>() == 4);

fn follow(field: &i32) -> usize {
    (std::ptr::from_ref(field) as usize).wrapping_add_signed(*field as isize)
}

impl Entry {
    /// The address of the instruction.
    pub(super) fn code(&self) -> usize {
        follow(&self.code)
    }

    /// The address that the instruction jumps to.
    pub(super) fn target(&self) -> usize {
        follow(&self.target)
    }

    /// The place of the key's address.
    pub(super) fn slot(&self) -> usize {
        follow(&self.key)
    }

    /// The key.
    pub(crate) fn key(&self) -> &'static Key {
        // SAFETY: the field leads to a slot that the dynamic linker has filled with the address of
        // the static that the site names, a `StaticKey`, which is a `Key`. The loader keeps the
        // key's object as long as this one.
        unsafe { &**(self.slot() as *const *const Key) }
    }

    /// Whether the site is a `likely!`.
    pub(super) fn branch(&self) -> bool {
        self.flags & 1 != 0
    }

    /// The state of the key that the site is assembled for.
    pub(crate) fn initial(&self) -> bool {
        self.flags & 2 != 0
    }
}
