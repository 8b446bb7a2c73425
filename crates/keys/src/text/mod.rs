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
//! Addresses come from [`crate::registry`] with the segment that they were found in; loaded objects stay
//! loaded (see [`crate::object`]).
#![allow(unsafe_code)]

mod flip;
mod int3;
mod map;
mod pages;

pub(crate) use int3::fallback;
pub use int3::{look_up, midway};
pub(crate) use map::{CodeMap, Segment};

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

/// Changes one key's sites, or none, in a process of one thread: one after the other, without a barrier, because
/// nobody else runs them, and without an allocation, because that process is a forked child.
pub(crate) fn write_alone(sites: &[Site], segments: &[Segment], enabled: bool) -> bool {
    let patches = || sites.iter().filter_map(|&site| Patch::new(site, "", enabled));
    let write = |patch: &Patch, jump| {
        pages::while_writable(patch, segments, || {
            // SAFETY: a verified site in writable memory.
            unsafe { crate::arch::store(patch.site.code, jump) };
        })
    };
    if !patches().all(|patch| patch.verify().is_ok()) {
        return false;
    }
    let done = patches().take_while(|patch| write(patch, patch.jumps())).count();
    if done == patches().count() {
        return true;
    }
    for patch in patches().take(done) {
        // Writable a moment ago; there is nothing else to try.
        let _ = write(&patch, !patch.jumps());
    }
    false
}
