//! Writing code: whether it holds what it should, and by which protocol it changes.
//!
//! # Invariants
//!
//! 1. Nothing is written unless every site of the batch holds its old bytes.
//! 2. On every way out, each site is whole, old or new, and all of a batch are the same of the two.
//! 3. Pages have the permissions that their segment's header gives, before and after. (In between they are
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

mod flip;
mod int3;
mod map;
mod pages;

pub(crate) use int3::fallback;
pub(crate) use map::{Segment, find, object_of, segment_of};

use crate::arch::{LENGTH, encode};
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
}

impl Patch {
    /// `None` for a site that is in no object's code: nobody can run it, nobody can write it.
    pub(crate) fn new(site: Site, key: &'static str, enabled: bool) -> Option<Self> {
        site.segment.map(|segment| Self { site, segment, key, enabled })
    }

    fn jumps(&self) -> bool {
        self.enabled ^ self.site.branch
    }

    fn old(&self) -> [u8; LENGTH] {
        encode(self.site.code, self.site.target, !self.jumps())
    }

    fn new_bytes(&self) -> [u8; LENGTH] {
        encode(self.site.code, self.site.target, self.jumps())
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

    // 1. Nothing is touched before everything is known to be in order.
    for patch in &*patches {
        patch.verify()?;
    }
    barrier::register()?;
    if let Protocol::Int3 { .. } = protocol {
        int3::prepare()?;
    }

    // 2. Write permission for all, or for none.
    let length = match protocol {
        Protocol::Flip => 1,
        Protocol::Int3 { .. } => LENGTH,
    };
    let writable = pages::Writable::open(patches, segments, length)?;

    // 3. The bytes. On error they are as they were.
    let written = match protocol {
        Protocol::Flip => flip::write(patches),
        Protocol::Int3 { capacity } => int3::write(patches, capacity),
    };

    // 4. Read-only again, in any case.
    let pages = writable.pages;
    let unsealed = writable.seal();
    written.map(|written| Written { pages, unsealed, ..written })
}

/// Whether the page of a site can be made writable and read-only again; for the capability report.
pub(crate) fn probe_write(site: Site, segments: &[Segment]) -> Result<(), Error> {
    let Some(patch) = Patch::new(site, "", false) else { return Ok(()) };
    pages::Writable::open(&[patch], segments, 1).map(|writable| {
        writable.seal();
    })
}
