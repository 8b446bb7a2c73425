//! An answer in a cache, with its tag.
//!
//! # Invariants
//!
//! An entry whose tag is not [`Tag::NONE`] holds a value: it gets its first tag together with one.
//!
//! # Safety
//!
//! The value of an entry that was never filled is not initialised, so that an entry of an
//! address-sized value takes half a cache line and a hit does not check a second time whether there
//! is one.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

use crate::generation::Tag;
use crate::mapping::{Extent, Mapping};

/// An answer and the tag under which it was looked up.
pub(crate) struct Entry<V> {
    start: Cell<u64>,
    /// `last - start`: one comparison decides whether an address is in the range.
    reach: Cell<u64>,
    tag: Cell<Tag>,
    value: Cell<MaybeUninit<V>>,
}

impl<V: Copy> Entry<V> {
    pub(crate) const fn empty() -> Self {
        Self {
            start: Cell::new(0),
            reach: Cell::new(0),
            tag: Cell::new(Tag::NONE),
            value: Cell::new(MaybeUninit::uninit()),
        }
    }

    #[inline]
    pub(crate) fn covers(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.start.get()) <= self.reach.get()
    }

    pub(crate) fn tag(&self) -> Tag {
        self.tag.get()
    }

    /// The answer of an entry that covers `addr` and bears `shown`, the tag that a map shows.
    #[inline]
    pub(crate) fn answer(&self, addr: u64, shown: Tag) -> Option<Mapping<V>> {
        debug_assert_ne!(shown, Tag::NONE);
        if !self.covers(addr) || self.tag.get() != shown {
            return None;
        }
        let start = self.start.get();
        // SAFETY: no map shows `NONE` (`Stamp`), so the entry has been filled (the invariant).
        let value = unsafe { self.value.get().assume_init() };
        Some(Mapping { start, last: start + self.reach.get(), value })
    }

    /// Its first and last address.
    pub(crate) fn extent(&self) -> Extent {
        let start = self.start.get();
        Extent { start, last: start + self.reach.get() }
    }

    /// Gives an answer that is still right the map's present tag.
    pub(crate) fn renew(&self, tag: Tag) {
        debug_assert_ne!(self.tag.get(), Tag::NONE);
        self.tag.set(tag);
    }

    pub(crate) fn swap(&self, other: &Self) {
        self.start.swap(&other.start);
        self.reach.swap(&other.reach);
        self.tag.swap(&other.tag);
        self.value.swap(&other.value);
    }

    pub(crate) fn fill(&self, mapping: &Mapping<V>, tag: Tag) {
        self.start.set(mapping.start);
        self.reach.set(mapping.last - mapping.start);
        self.value.set(MaybeUninit::new(mapping.value));
        self.tag.set(tag);
    }
}
