//! The parts of a key that C can read: text and attachments, in layouts that do not depend on Rust.
//!
//! # Safety
//!
//! A [`Text`] and an [`Attached`] are made in Rust from `'static` references, or laid out in static
//! data by the macros of the C header. Both are read only.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr;

/// Text in static memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Text {
    start: *const u8,
    length: usize,
}

const _: () = assert!(size_of::<Text>() == 16);

// SAFETY: the bytes are static and never written.
unsafe impl Send for Text {}
// SAFETY: as above.
unsafe impl Sync for Text {}

impl Text {
    /// Makes the form that C can read.
    pub const fn new(text: &'static str) -> Self {
        Self { start: text.as_ptr(), length: text.len() }
    }

    /// Where it lies; nothing of it is read.
    #[cfg(dormouse_patching)]
    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + if self.start.is_null() { 0 } else { self.length }
    }

    /// The text as a `str`. C guarantees nothing about the encoding, so text that is not UTF-8
    /// reads as `(not UTF-8)`.
    pub fn as_str(&self) -> &'static str {
        if self.start.is_null() {
            return "";
        }
        // SAFETY: static bytes of that length, as the code that made this guarantees.
        let bytes = unsafe { std::slice::from_raw_parts(self.start, self.length) };
        std::str::from_utf8(bytes).unwrap_or("(not UTF-8)")
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A type that can be attached to a key: see [`StaticKey::with`](crate::StaticKey::with).
///
/// # Safety
///
/// `KIND` belongs to this type alone, and the layout behind a number never changes except by
/// growing at its end: an object that was built elsewhere, in C or with another version, may have
/// made the attachment. Numbers in use: 1, a probe; 2, a callsite of `tracing`.
pub unsafe trait Attachment: Sync + 'static {
    /// The number, not 0.
    const KIND: u32;
}

/// A pointer to data of the key's owner, or NULL. The number beside it is the kind of that data.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Attached(*const ());

// SAFETY: an `Attachment` is `Sync`, and a shared reference to it is all that is ever made of the
// pointer.
unsafe impl Send for Attached {}
// SAFETY: as above.
unsafe impl Sync for Attached {}

impl Attached {
    pub(crate) const NOTHING: Self = Self(ptr::null());

    pub(crate) const fn new<T: Attachment>(to: &'static T) -> Self {
        Self(ptr::from_ref(to).cast())
    }

    /// `kind` is the number that lies beside this one.
    pub(crate) fn get<T: Attachment>(&self, kind: u32) -> Option<&'static T> {
        // SAFETY: a number has one layout, as `Attachment` guarantees, and attached data is static.
        (kind == T::KIND).then(|| unsafe { self.0.cast::<T>().as_ref() }).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(u8);
    struct Two;

    // SAFETY: 101 is used here alone.
    unsafe impl Attachment for One {
        const KIND: u32 = 101;
    }
    // SAFETY: 102 is used here alone.
    unsafe impl Attachment for Two {
        const KIND: u32 = 102;
    }

    #[test]
    fn an_attachment_is_found_by_its_kind() {
        static ONE: One = One(7);
        let attached = Attached::new(&ONE);
        assert_eq!(attached.get::<One>(101).map(|one| one.0), Some(7));
        assert!(attached.get::<Two>(101).is_none());
        assert!(Attached::NOTHING.get::<One>(0).is_none());
    }

    #[test]
    fn text_that_is_not_utf8_is_hidden() {
        let bytes: &'static [u8] = b"\xff\xfe";
        assert_eq!(Text { start: bytes.as_ptr(), length: bytes.len() }.as_str(), "(not UTF-8)");
        assert_eq!(Text { start: ptr::null(), length: 3 }.as_str(), "");
        assert_eq!(Text::new("db.query").as_str(), "db.query");
    }
}
