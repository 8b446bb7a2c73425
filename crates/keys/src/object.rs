//! Linked objects and their site entries: the ABI between the assembler and the registry.
//!
//! # Object metadata, version 1
//!
//! An object with sites has one [`Object`] in its writable data. A constructor passes its address to
//! [`register`], a destructor to [`unregister`] (both `void (*)(struct object *)` to C); a second call is
//! nothing, because linkers have kept several copies of a constructor (lld after thin link-time optimisation):
//!
//! | at | bytes | | |
//! |---|---|---|---|
//! | 0 | 8 | `size` | of what is filled in: 40, or 32 without `flags` |
//! | 8 | 8 | `start` | the first entry; null: none |
//! | 16 | 8 | `stop` | behind the last |
//! | 24 | 8 | `reserved` | 0 |
//! | 32 | 8 | `flags` | bit 0: a destructor calls `unregister` |
//!
//! An object that does not promise a destructor (bit 0, or a size of 32) is pinned when it registers. Later
//! versions are longer. An entry is 16 bytes ([`Entry`]), in a section between `start` and `stop`.
//!
//! # Coming and leaving
//!
//! `register` brings the object's sites to the present state of their keys before it returns, so before the
//! loader does. What runs earlier, in constructors of a lower priority or called by those of objects that are
//! loaded together, finds the sites as they were assembled.
//!
//! `unregister` waits for a batch that is under way. When it returns, nothing here leads into the object
//! any more: whoever was given one of its keys has it pinned, and a pinned object does not leave.
//!
//! # Safety
//!
//! An [`Object`] and the entries that it bounds are laid down by the site macro and the linker, and stay where
//! they are from `register` to `unregister`. What they say of the text is not believed before
//! [`crate::registry`] has found it to lie in an executable segment. Lists are touched under the patch
//! lock only.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::Form;
use crate::key::Key;
use crate::registry;
use crate::text::Segment;

/// One site, as the assembler wrote it: offsets from the fields' own places.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    code: i32,
    target: i32,
    /// To the slot of the global offset table that holds the key's address.
    key: i32,
    /// Bit 0: a `likely!`; bit 1: the key's initial state; bit 2: a 5-byte nop where it falls through.
    flags: u32,
}

const _: () = assert!(size_of::<Entry>() == 16 && align_of::<Entry>() == 4);

/// What one linked object hands in: see the module's documentation.
#[derive(Debug)]
#[repr(C)]
pub struct Object {
    size: u64,
    start: *const Entry,
    stop: *const Entry,
    reserved: u64,
    /// Only there if `size` says so.
    flags: u64,
}

/// What an object has that says nothing of a destructor.
const WITHOUT_FLAGS: u64 = 32;
const HAS_DESTRUCTOR: u64 = 1;

const _: () =
    assert!(size_of::<Object>() == 40 && std::mem::offset_of!(Object, flags) == WITHOUT_FLAGS as usize);

// SAFETY: nothing of it is ever written.
unsafe impl Sync for Object {}

/// Takes an object in. Called by a constructor of the object.
///
/// # Safety
///
/// `object` is of the layout and the life that the module's documentation describes.
#[doc(hidden)]
pub unsafe extern "C" fn register(object: *const Object) {
    // SAFETY: the caller's promise; static as long as it is registered.
    registry::add(unsafe { &*object });
}

/// Lets an object go. Called by a destructor of the object.
///
/// # Safety
///
/// As of [`register`].
#[doc(hidden)]
pub unsafe extern "C" fn unregister(object: *const Object) {
    // SAFETY: the caller's promise.
    registry::remove(unsafe { &*object });
}

/// An object that is registered. Made by the copy of dormouse that the object registers with, which frees it, and
/// read by all.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Registered {
    next: AtomicPtr<Registered>,
    pub(crate) object: &'static Object,
    /// The object's file name.
    pub(crate) name: Box<str>,
    pub(crate) segments: Box<[Segment]>,
}

impl Registered {
    pub(crate) fn new(object: &'static Object, name: String, segments: Vec<Segment>) -> Self {
        let next = AtomicPtr::new(std::ptr::null_mut());
        Self { next, object, name: name.into(), segments: segments.into() }
    }

    /// Whether a site is changed by int3 whatever the protocol.
    pub(crate) fn needs_int3(&self) -> bool {
        self.object.entries().iter().any(|entry| entry.form() == Form::Nop)
    }
}

/// A list of objects, under the patch lock. All copies of dormouse in a process share it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List(pub(crate) &'static AtomicPtr<c_void>);

impl List {
    pub(crate) fn iter<'a>(self) -> impl Iterator<Item = &'a Registered> {
        // SAFETY: what is on the list is there until it is taken off, and the lock is held meanwhile.
        let first = unsafe { self.0.load(Ordering::Relaxed).cast::<Registered>().as_ref() };
        // SAFETY: as above.
        std::iter::successors(first, |one| unsafe { one.next.load(Ordering::Relaxed).as_ref() })
    }

    pub(crate) fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }

    pub(crate) fn contains(self, object: &Object) -> bool {
        self.iter().any(|one| std::ptr::eq(one.object, object))
    }

    pub(crate) fn push(self, one: Box<Registered>) {
        one.next.store(self.0.load(Ordering::Relaxed).cast(), Ordering::Relaxed);
        self.0.store(Box::into_raw(one).cast(), Ordering::Relaxed);
    }

    /// Takes an object off, if it is there.
    pub(crate) fn remove(self, object: &Object) -> Option<Box<Registered>> {
        let one = self.iter().find(|one| std::ptr::eq(one.object, object))?;
        let after = one.next.load(Ordering::Relaxed);
        let one = std::ptr::from_ref(one).cast_mut();
        match self.iter().find(|before| before.next.load(Ordering::Relaxed) == one) {
            Some(before) => before.next.store(after, Ordering::Relaxed),
            None => self.0.store(after.cast(), Ordering::Relaxed),
        }
        // SAFETY: `push` had it from a box, and nothing leads to it any more.
        Some(unsafe { Box::from_raw(one) })
    }
}

impl Object {
    /// An address in the linked object.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Whether a destructor will say that the object leaves.
    pub(crate) fn has_destructor(&self) -> bool {
        // Not as a field: a shorter structure does not have it.
        let flags = &raw const self.flags;
        // SAFETY: the size says that it is there.
        self.size > WITHOUT_FLAGS && unsafe { flags.read() } & HAS_DESTRUCTOR != 0
    }

    /// The object's entries; none when the linker has dropped them all.
    pub(crate) fn entries(&self) -> &'static [Entry] {
        if self.start.is_null() || self.size < WITHOUT_FLAGS {
            return &[];
        }
        let bytes = (self.stop as usize).saturating_sub(self.start as usize);
        // SAFETY: the linker sets the bounds around whole entries, in read-only data of a loaded object.
        unsafe { std::slice::from_raw_parts(self.start, bytes / size_of::<Entry>()) }
    }
}

fn follow(field: &i32) -> usize {
    (std::ptr::from_ref(field) as usize).wrapping_add_signed(*field as isize)
}

impl Entry {
    /// Where the instruction is.
    pub(crate) fn code(&self) -> usize {
        follow(&self.code)
    }

    /// Where it jumps to.
    pub(crate) fn target(&self) -> usize {
        follow(&self.target)
    }

    /// The key.
    pub(crate) fn key(&self) -> &'static Key {
        // SAFETY: the field leads to a slot that the dynamic linker has filled with the address of the static
        // that the site names, a `StaticKey`, which is a `Key`. The loader keeps the key's object as long
        // as this one.
        unsafe { &**(follow(&self.key) as *const *const Key) }
    }

    /// Whether the site is a `likely!`.
    pub(crate) fn branch(&self) -> bool {
        self.flags & 1 != 0
    }

    /// What the site is made of.
    pub(crate) fn form(&self) -> Form {
        if self.flags & 4 == 0 { Form::Test } else { Form::Nop }
    }

    /// The state of the key that the site is assembled for.
    pub(crate) fn initial(&self) -> bool {
        self.flags & 2 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(size: u64, flags: u64) -> &'static Object {
        let nothing = std::ptr::null();
        Box::leak(Box::new(Object { size, start: nothing, stop: nothing, reserved: 0, flags }))
    }

    #[test]
    fn only_an_object_that_promises_a_destructor_has_one() {
        assert!(object(40, 1).has_destructor());
        assert!(object(48, 3).has_destructor(), "a later version");
        assert!(!object(40, 0).has_destructor());
        assert!(!object(32, 1).has_destructor(), "what lies behind it is not its own");
        assert!(object(40, 1).entries().is_empty());
    }

    #[test]
    fn objects_are_taken_off_from_wherever_they_are() {
        let list = List(Box::leak(Box::default()));
        let objects: Vec<&Object> = (0..4).map(|_| object(40, 1)).collect();
        for object in &objects {
            list.push(Box::new(Registered::new(object, String::new(), Vec::new())));
        }
        for (left, at) in [(3, 1), (2, 3), (1, 0), (0, 2)] {
            assert!(list.contains(objects[at]));
            assert!(list.remove(objects[at]).is_some() && list.remove(objects[at]).is_none());
            assert!(!list.contains(objects[at]));
            assert_eq!(list.iter().count(), left);
        }
        assert!(list.is_empty());
    }
}
