//! Registered objects, on lists that all copies of dormouse in a process share.
//!
//! # Safety
//!
//! See [`super`]; a list is read and changed under the patch lock.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use dormouse_sys::loader;
use dormouse_sys::readable::{Pages, is_readable};

use super::ObjectPtr;
use super::entry::Entry;
use super::segment::{Segment, segments_of};
use crate::Error;
use crate::key::Key;
use crate::patch_lock::PatchLock;

/// An object that is registered. The copy of dormouse that the object registers with makes it and
/// frees it; all copies read it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Registered {
    next: AtomicPtr<Registered>,
    pub(crate) object: ObjectPtr,
    /// The object's file name, on the heap of the copy that has made this.
    name: *const u8,
    name_bytes: usize,
    /// The object's segments, by address, there as well.
    segments: *const Segment,
    segment_count: usize,
    /// The bounds of its entries when it came.
    bounds: [*const Entry; 2],
    /// The last byte of the object that lies in its file; 0 for the executable, without which no
    /// thread is left to look.
    last_in_file: usize,
    /// Whether its sites have followed their keys once.
    has_followed: AtomicBool,
}

const _: () = assert!(
    size_of::<Registered>() == 80
        && align_of::<Registered>() == 8
        && offset_of!(Registered, object) == 8
        && offset_of!(Registered, name) == 16
        && offset_of!(Registered, segments) == 32
        && offset_of!(Registered, bounds) == 48
        && offset_of!(Registered, last_in_file) == 64
        && offset_of!(Registered, has_followed) == 72
);

impl Registered {
    pub(crate) fn new(object: ObjectPtr, loaded: &loader::Loaded) -> Self {
        let segments = Box::leak(segments_of(loaded).into_boxed_slice());
        let name = Box::leak(loaded.file_name().into_boxed_str());
        let last = segments.iter().filter_map(Segment::last_in_file).max();
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            object,
            name: name.as_ptr(),
            name_bytes: name.len(),
            segments: segments.as_ptr(),
            segment_count: segments.len(),
            bounds: object.bounds(),
            last_in_file: last.filter(|_| !loaded.is_executable()).unwrap_or_default(),
            has_followed: AtomicBool::new(false),
        }
    }

    pub(crate) fn name(&self) -> &str {
        // SAFETY: `new` had it from a text of that length, and `drop` frees it.
        unsafe { str::from_utf8_unchecked(std::slice::from_raw_parts(self.name, self.name_bytes)) }
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        // SAFETY: `new` had them from a slice of that length, and `drop` frees it.
        unsafe { std::slice::from_raw_parts(self.segments, self.segment_count) }
    }

    /// Whether the object's file has all that was mapped of it, and had it all the time. A file
    /// that is cut short in place (`cp new.so plugin.so` begins so) takes all pages behind the cut
    /// away, changed ones too; filled again, the pages are those of the new file. So the last byte
    /// must be readable, and the words that the loader has written into the object must still be
    /// there.
    pub(crate) fn is_there(&self) -> bool {
        self.last_in_file == 0
            || is_readable(self.last_in_file..self.last_in_file + 1)
                && is_readable(self.object.range())
                && self.object.bounds() == self.bounds
    }

    /// The object's entries, if they and everything that they point to can be read now.
    pub(crate) fn entries(&self) -> Option<&'static [Entry]> {
        if !self.is_there() {
            return None;
        }
        let entries = self.object.entries();
        let bytes = entries.as_ptr_range();
        let [mut slots, mut keys, mut names, mut files] = [const { Pages::new() }; 4];
        let is_readable = is_readable(bytes.start as usize..bytes.end as usize)
            && entries.iter().all(|entry| {
                let slot = entry.slot();
                if !slots.are_readable(slot..slot + size_of::<usize>()) {
                    return false;
                }
                let key = entry.key();
                if !keys.are_readable(key.address()..key.address() + size_of::<Key>()) {
                    return false;
                }
                let [name, file] = key.texts();
                names.are_readable(name) && files.are_readable(file)
            });
        is_readable.then_some(entries)
    }

    pub(crate) fn has_followed(&self, _: PatchLock<'_>) -> bool {
        self.has_followed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_followed(&self, _: PatchLock<'_>) {
        self.has_followed.store(true, Ordering::Relaxed);
    }

    /// The error for a part of the object that cannot be read.
    pub(crate) fn unreadable(&self) -> Error {
        Error::Unreadable { object: self.name().to_owned(), addr: self.object.address(), key: 0 }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let name = ptr::slice_from_raw_parts_mut(self.name.cast_mut(), self.name_bytes);
        let segments = ptr::slice_from_raw_parts_mut(self.segments.cast_mut(), self.segment_count);
        // SAFETY: `new` had both from boxes, and only the copy that has called it drops what it
        // made.
        unsafe {
            drop(Box::from_raw(name));
            drop(Box::from_raw(segments));
        }
    }
}

/// A list of objects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List<'a> {
    head: &'static AtomicPtr<c_void>,
    lock: PatchLock<'a>,
}

impl<'a> List<'a> {
    /// The objects whose sites follow their keys.
    pub(crate) fn following(lock: PatchLock<'a>) -> Self {
        Self { head: &lock.table.objects, lock }
    }

    /// The objects whose sites could not be brought to the state of their keys.
    pub(crate) fn waiting(lock: PatchLock<'a>) -> Self {
        Self { head: &lock.table.waiting, lock }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = &'a Registered> {
        // SAFETY: an object on the list is there until it is taken off, under the lock.
        let first = unsafe { self.head.load(Ordering::Relaxed).cast::<Registered>().as_ref() };
        // SAFETY: as above.
        std::iter::successors(first, |one| unsafe { one.next.load(Ordering::Relaxed).as_ref() })
    }

    pub(crate) fn contains(self, object: ObjectPtr) -> bool {
        self.iter().any(|one| one.object == object)
    }

    /// Puts an object on the list; copies build their indexes anew.
    pub(crate) fn push(self, one: Box<Registered>) {
        one.next.store(self.head.load(Ordering::Relaxed).cast(), Ordering::Relaxed);
        self.head.store(Box::into_raw(one).cast(), Ordering::Relaxed);
        self.lock.table.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes an object off, if it is there; copies build their indexes anew.
    pub(crate) fn remove(self, object: ObjectPtr) -> Option<Box<Registered>> {
        let one = self.iter().find(|one| one.object == object)?;
        let after = one.next.load(Ordering::Relaxed);
        let one = ptr::from_ref(one).cast_mut();
        match self.iter().find(|before| before.next.load(Ordering::Relaxed) == one) {
            Some(before) => before.next.store(after, Ordering::Relaxed),
            None => self.head.store(after.cast(), Ordering::Relaxed),
        }
        self.lock.table.generation.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `push` had it from a box, and nothing leads to it any more.
        Some(unsafe { Box::from_raw(one) })
    }
}

#[cfg(test)]
mod tests {
    use dormouse_sys::rendezvous;

    use super::*;
    use crate::object::Object;

    #[test]
    fn objects_are_taken_off_from_wherever_they_are() {
        let table = rendezvous::table().unwrap();
        let patch = table.patch.lock().unwrap();
        let list = List { head: Box::leak(Box::default()), lock: PatchLock::new(table, &patch) };
        let loaded =
            loader::find(objects_are_taken_off_from_wherever_they_are as *const () as usize).unwrap();
        let object = |_| {
            let words: &[u64; 4] = Box::leak(Box::new([32, 0, 0, 0]));
            // SAFETY: an object without flags, leaked.
            unsafe { ObjectPtr::new(words.as_ptr().cast::<Object>()) }
        };
        let objects: [ObjectPtr; 4] = std::array::from_fn(object);
        for object in objects {
            list.push(Box::new(Registered::new(object, &loaded)));
        }
        for (left, at) in [(3, 1), (2, 3), (1, 0), (0, 2)] {
            assert!(list.contains(objects[at]));
            assert!(list.remove(objects[at]).is_some() && list.remove(objects[at]).is_none());
            assert!(!list.contains(objects[at]));
            assert_eq!(list.iter().filter(|one| one.name() == loaded.file_name()).count(), left);
        }
        assert!(list.iter().next().is_none());
    }
}
