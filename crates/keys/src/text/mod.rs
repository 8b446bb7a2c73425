//! Writing code: whether it holds what it should, by which way it can be written, and by which protocol it changes.
//!
//! # Invariants
//!
//! 1. Nothing is written unless every site of the batch holds its old bytes, and nothing that could be refused is
//!    left to be asked for after the first byte.
//! 2. On every way out, each site is whole, old or new, and all of a batch are the same of the two. (The one
//!    exception has an error of its own: [`Error::HalfWritten`].)
//! 3. Pages have the permissions that their segment's header gives, before and after. (In between they may be
//!    writable *and* executable: other threads run them.)
//!
//! # Locking
//!
//! The caller holds the patch lock: two batches on one page would take each other's write permission away.
//!
//! # Safety
//!
//! Addresses come from [`crate::registry`] with the segment that they were found in; while the patch lock is
//! held, no object with sites leaves (see [`crate::object`]).
#![allow(unsafe_code)]

mod access;
mod alone;
mod flip;
mod int3;
mod map;
mod memory;
mod pages;
mod resume;
mod shared;

pub(crate) use access::{Steps, steps};
pub(crate) use alone::{in_forked_child, write_alone};
pub(crate) use int3::{fallback, obstacle, take_signal};
pub use int3::{look_up, midway};
pub(crate) use map::{Segment, find, mark_shared, object_of, segment_of};
pub(crate) use memory::open as open_memory;

use access::Access;

use crate::arch::{Form, LENGTH, encode};
use crate::registry::Site;
use crate::{Error, Protocol, barrier};

/// One site that is to change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patch {
    pub(crate) site: Site,
    /// The site's segment.
    segment: usize,
    key: &'static str,
    /// The key's state after the batch.
    enabled: bool,
    /// Whether the site changes by int3: all of a batch's may, those whose forms differ in their operands must.
    by_int3: bool,
}

impl Patch {
    /// `None` for a site that is in no object's code: nobody can run it, nobody can write it.
    pub(crate) fn new(site: Site, key: &'static str, enabled: bool) -> Option<Self> {
        let by_int3 = site.form == Form::Nop;
        site.segment.map(|segment| Self { site, segment, key, enabled, by_int3 })
    }

    fn jumps(&self) -> bool {
        self.enabled ^ self.site.branch
    }

    fn bytes(&self, jumps: bool) -> [u8; LENGTH] {
        encode(self.site.code, self.site.target, self.site.form, jumps)
    }

    fn old(&self) -> [u8; LENGTH] {
        self.bytes(!self.jumps())
    }

    fn new_bytes(&self) -> [u8; LENGTH] {
        self.bytes(self.jumps())
    }

    /// How many bytes are written.
    fn length(&self) -> usize {
        if self.by_int3 { LENGTH } else { 1 }
    }

    fn verify(&self) -> Result<(), Error> {
        let (addr, expected) = (self.site.code, self.old());
        // SAFETY: the site lies in a readable segment. Other threads only execute it.
        let found = unsafe { std::ptr::read_volatile(addr as *const [u8; LENGTH]) };
        if found == expected {
            Ok(())
        } else {
            Err(Error::UnexpectedText { key: self.key, addr, expected, found })
        }
    }
}

/// What writing a batch took.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) pages: usize,
    pub(crate) barriers: usize,
    pub(crate) traps: u64,
    pub(crate) unsealed: usize,
}

/// Changes all sites, or none.
pub(crate) fn write(
    patches: &mut [Patch],
    segments: &[Segment],
    protocol: Protocol,
) -> Result<Written, Error> {
    if patches.is_empty() {
        return Ok(Written::default());
    }
    patches.sort_unstable_by_key(|p| p.site.code);
    let (int3_for_all, capacity) = match protocol {
        Protocol::Flip => (false, Protocol::CAPACITY),
        Protocol::Int3 { capacity } => (true, capacity),
    };
    for patch in &mut *patches {
        patch.by_int3 |= int3_for_all;
    }

    // 1. Nothing is touched before everything is known to be in order, the text last: it is the likeliest to change.
    barrier::register()?;
    let flipped = patches.iter().filter(|p| !p.by_int3).count();
    if flipped < patches.len() {
        int3::prepare()?;
    }
    for patch in &*patches {
        if segments[patch.segment].is_shared {
            return Err(Error::SharedText { key: patch.key, addr: patch.site.code });
        }
        patch.verify()?;
    }

    // 2. A way to write them all, or none.
    let access = Access::open(patches, segments)?;

    // 3. The bytes. On error they are as they were.
    if (1..patches.len()).contains(&flipped) {
        // Keeps each part in order of address.
        patches.sort_by_key(|p| p.by_int3);
    }
    let (flips, traps) = patches.split_at(flipped);
    let written = flip::write(&access, flips).and_then(|first| {
        let trapped = int3::write(&access, traps, capacity);
        let (barriers, traps) = trapped.map_err(|error| flip::undo(&access, flips, error))?;
        Ok((first + barriers, traps))
    });

    // 4. Read-only again, in any case.
    let pages = access.pages();
    let unsealed = access.close();
    written.map(|(barriers, traps)| Written { pages, barriers, traps, unsealed })
}
