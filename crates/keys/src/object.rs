//! Linked objects and their site entries: the ABI between the assembler and the registry.
//!
//! # Locking
//!
//! The list of objects is pushed to without a lock, by constructors that run before `main`. Nothing leaves
//! it: unloading an object that has sites is not supported.
//!
//! # Safety
//!
//! An [`Object`] and the entries that it bounds are laid down by the site macro and the linker; what they say
//! of the text is not believed before [`crate::registry`] has found it to lie in an executable segment.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arch::Form;
use crate::key::Key;

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

/// What one linked object hands in.
#[derive(Debug)]
#[repr(C)]
pub struct Object {
    /// Bytes of this structure; later versions are longer.
    size: u64,
    start: *const Entry,
    stop: *const Entry,
    next: AtomicPtr<Object>,
}

const _: () = assert!(size_of::<Object>() == 32);

// SAFETY: the entries are never written, and `next` is written before the object is published.
unsafe impl Sync for Object {}

static OBJECTS: AtomicPtr<Object> = AtomicPtr::new(std::ptr::null_mut());

/// Puts an object on the list. Called by a constructor of the object: once, or, where a linker has kept several
/// copies of the constructor (lld after thin link-time optimisation), once more for each, one after the other.
#[doc(hidden)]
pub extern "C" fn register(object: &'static Object) {
    if all().any(|known| std::ptr::eq(known, object)) {
        return;
    }
    let mut first = OBJECTS.load(Ordering::Relaxed);
    loop {
        object.next.store(first, Ordering::Relaxed);
        let new = std::ptr::from_ref(object).cast_mut();
        // Pairs with the load in `all`.
        match OBJECTS.compare_exchange_weak(first, new, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

/// All objects, the latest first.
pub(crate) fn all() -> impl Iterator<Item = &'static Object> {
    // Pairs with the exchange in `register`.
    let first = OBJECTS.load(Ordering::Acquire);
    // SAFETY: what is on the list is static.
    std::iter::successors(unsafe { first.as_ref() }, |object| {
        // SAFETY: as above.
        unsafe { object.next.load(Ordering::Relaxed).as_ref() }
    })
}

impl Object {
    /// The object's entries; none when the linker has dropped them all.
    pub(crate) fn entries(&self) -> &'static [Entry] {
        if self.start.is_null() || self.size < size_of::<Self>() as u64 {
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
        // that the site names, a `StaticKey`, which is a `Key`.
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
}
