//! Linked objects and their entries: the ABI between the assembler and the registry.
//!
//! # Object metadata, version 1
//!
//! An object with sites has one [`Object`] in its writable data. A constructor passes its address
//! to `register`, a destructor to `unregister` (both `void (*)(struct object *)` to C); a second
//! call does nothing, because linkers have kept several copies of a constructor (lld after thin
//! link-time optimisation):
//!
//! | at | bytes | | |
//! |---|---|---|---|
//! | 0 | 8 | `size` | of the fields that are filled in: 40, or 32 without `flags` |
//! | 8 | 8 | `start` | the first entry; null: none |
//! | 16 | 8 | `stop` | behind the last |
//! | 24 | 8 | `reserved` | 0 |
//! | 32 | 8 | `flags` | bit 0: a destructor calls `unregister` |
//!
//! An object without a guaranteed destructor (bit 0 clear, or a size of 32) is pinned when it
//! registers. Later versions of the structure are longer. An entry is 16 bytes ([`Entry`]), in a
//! section between `start` and `stop`.
//!
//! # Safety
//!
//! An [`Object`] and its entries are laid out by the site macro and the linker, and stay in place
//! from `register` to `unregister`. The addresses of code in them are used only after they were
//! found to lie in an executable segment. All of it lies in pages of the object's file, which may
//! be gone: entries and keys are read only after [`Registered::entries`] has found them readable.
#![allow(unsafe_code)]

mod entry;
mod list;
mod segment;
mod site;

pub(crate) use entry::Entry;
pub(crate) use list::{List, Registered};
#[cfg(test)]
pub(crate) use segment::segments_of;
pub(crate) use segment::{Segment, find, segment_of};
pub(crate) use site::Site;

/// The data that one linked object registers: see the module's documentation.
#[derive(Debug)]
#[repr(C)]
pub struct Object {
    size: u64,
    start: *const Entry,
    stop: *const Entry,
    reserved: u64,
    /// Present only if `size` includes it.
    flags: u64,
}

/// The size of an object without the field `flags`.
const WITHOUT_FLAGS: usize = 32;
const HAS_DESTRUCTOR: u64 = 1;

const _: () = assert!(size_of::<Object>() == 40 && std::mem::offset_of!(Object, flags) == WITHOUT_FLAGS);

// SAFETY: nothing of it is ever written.
unsafe impl Sync for Object {}

/// The place of an object's data, which may be shorter than [`Object`]: so fields are read through
/// a pointer, the size first, and no reference to the whole is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct ObjectPtr(*const Object);

// SAFETY: the data is never written.
unsafe impl Send for ObjectPtr {}
// SAFETY: as above.
unsafe impl Sync for ObjectPtr {}

impl ObjectPtr {
    /// # Safety
    ///
    /// `object` is of the layout and the life that the module's documentation describes, as long as
    /// the result is used.
    pub(crate) unsafe fn new(object: *const Object) -> Self {
        Self(object)
    }

    /// An address in the linked object.
    pub(crate) fn address(self) -> usize {
        self.0 as usize
    }

    /// The addresses that every object has.
    fn range(self) -> std::ops::Range<usize> {
        self.address()..self.address() + WITHOUT_FLAGS
    }

    fn size(self) -> usize {
        // SAFETY: each object has a size (`new`).
        unsafe { (&raw const (*self.0).size).read() as usize }
    }

    /// The bounds of the entries; null when the linker has dropped them all.
    fn bounds(self) -> [*const Entry; 2] {
        if self.size() < WITHOUT_FLAGS {
            return [std::ptr::null(); 2];
        }
        // SAFETY: the size includes them.
        unsafe { [(&raw const (*self.0).start).read(), (&raw const (*self.0).stop).read()] }
    }

    /// Whether a destructor will unregister the object.
    pub(crate) fn has_destructor(self) -> bool {
        // SAFETY: the size includes them.
        let flags = || unsafe { (&raw const (*self.0).flags).read() };
        self.size() > WITHOUT_FLAGS && flags() & HAS_DESTRUCTOR != 0
    }

    fn entries(self) -> &'static [Entry] {
        let [start, stop] = self.bounds();
        if start.is_null() {
            return &[];
        }
        let bytes = (stop as usize).saturating_sub(start as usize);
        // SAFETY: the linker sets the bounds around entries, in read-only data of a loaded object;
        // a part of one at the end is left out.
        unsafe { std::slice::from_raw_parts(start, bytes / size_of::<Entry>()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(size: u64, flags: u64) -> ObjectPtr {
        let nothing = std::ptr::null();
        let object = Object { size, start: nothing, stop: nothing, reserved: 0, flags };
        // SAFETY: leaked, and of the whole layout.
        unsafe { ObjectPtr::new(Box::leak(Box::new(object))) }
    }

    #[test]
    fn an_object_promises_its_destructor() {
        assert!(object(40, 1).has_destructor());
        assert!(object(48, 3).has_destructor(), "a later version");
        assert!(!object(40, 0).has_destructor());
        assert!(!object(32, 1).has_destructor(), "the memory behind it is not its own");
        assert!(object(40, 1).entries().is_empty());
    }

    #[test]
    fn a_short_object_is_read_no_further() {
        let first = Box::leak(Box::new([0_u8; 16])).as_ptr() as u64;
        let short: &[u64; 4] = Box::leak(Box::new([32, first, first + 16, 0]));
        // SAFETY: the layout of an object without flags, leaked.
        let short = unsafe { ObjectPtr::new(short.as_ptr().cast()) };
        assert!(!short.has_destructor());
        assert_eq!(short.bounds().map(|bound| bound as u64), [first, first + 16]);
        // SAFETY: less than that has no entries.
        let shorter = unsafe { ObjectPtr::new(Box::leak(Box::new([24_u64, first, first])).as_ptr().cast()) };
        assert!(shorter.entries().is_empty() && !shorter.has_destructor());
    }
}
