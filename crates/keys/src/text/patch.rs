//! A site with its bytes before and after a batch.
//!
//! # Safety
//!
//! See [`super`].
#![allow(unsafe_code)]

use dormouse_sys::readable::Pages;

use crate::Error;
use crate::arch::{LENGTH, Unit, encode, reaches, unit};
use crate::key::Key;
use crate::object::Site;
use crate::patch_lock::PatchLock;

/// One site that is to change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patch {
    pub(super) code: usize,
    pub(super) target: usize,
    pub(super) key: &'static Key,
    /// The index of the site's segment.
    segment: u32,
    /// Whether the site jumps after the batch.
    pub(super) jumps: bool,
}

// A large batch sorts very many.
const _: () = assert!(size_of::<Patch>() == 32);

impl Patch {
    /// `None` for a site that lies in no object's code: it can be neither run nor written.
    pub(crate) fn new(site: &Site, key: &'static Key, enabled: bool) -> Option<Self> {
        let &Site { code, target, branch, .. } = site;
        Some(Self { code, target, key, segment: site.segment()?, jumps: enabled ^ branch })
    }

    pub(super) fn segment(&self) -> usize {
        self.segment as usize
    }

    /// The bytes before the batch.
    pub(super) fn old(&self) -> [u8; LENGTH] {
        encode(self.code, self.target, !self.jumps)
    }

    /// The bytes after it.
    pub(super) fn new_bytes(&self) -> [u8; LENGTH] {
        encode(self.code, self.target, self.jumps)
    }

    /// The unit that a batch exchanges, before it.
    pub(super) fn old_unit(&self) -> Unit {
        unit(self.old())
    }

    /// The unit after it.
    pub(super) fn new_unit(&self) -> Unit {
        unit(self.new_bytes())
    }

    /// Looks at the site's bytes, if they can be read and the site can branch as it should.
    #[inline]
    pub(super) fn look(&self, pages: &mut Pages) -> Result<Bytes, Error> {
        if !reaches(self.code, self.target) {
            return Err(Error::TooFar { key: self.key.name(), addr: self.code, target: self.target });
        }
        let (addr, expected) = (self.code, self.old());
        let Some(found) = read(addr, pages) else {
            return Err(Error::Unreadable { object: String::new(), addr, key: self.key.address() });
        };
        match found {
            _ if found == expected => Ok(Bytes::Old),
            _ if found == self.new_bytes() => Ok(Bytes::New),
            _ => Err(Error::UnexpectedText { key: self.key.name(), addr, expected, found }),
        }
    }
}

/// Whether a site, which is in an object's code, does what it does when its key is on; `None` if
/// its bytes are others', or cannot be read.
pub(crate) fn is_on(_: PatchLock<'_>, site: &Site, pages: &mut Pages) -> Option<bool> {
    let found = read(site.code, pages)?;
    let bytes = |on: &bool| encode(site.code, site.target, on ^ site.branch);
    [false, true].into_iter().find(|on| found == bytes(on))
}

/// The bytes of a site's code, if they can be read.
fn read(code: usize, pages: &mut Pages) -> Option<[u8; LENGTH]> {
    // SAFETY: the kernel has just read it. Other threads only execute it.
    let bytes = || unsafe { std::ptr::read_volatile(code as *const [u8; LENGTH]) };
    pages.are_readable(code..code + LENGTH).then(bytes)
}

/// The bytes of a site that is in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bytes {
    /// The bytes before the batch.
    Old,
    /// The bytes after the batch. The kernel puts the file's instruction back when a uprobe is
    /// removed, whatever state the key has by then.
    New,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StaticKey;

    #[test]
    fn a_site_that_branches_too_far_is_named() {
        static KEY: StaticKey<false> = StaticKey::new("far", "", 0);
        let code = read as *const () as usize;
        // Farther than any processor's branch. The low bits are those of a near one.
        let target = code + 64 + (1 << 33);
        let patch = Patch::new(&Site::new(code, target, false, Some(0)), KEY.key(), true).unwrap();
        let error = patch.look(&mut Pages::default()).unwrap_err();
        assert!(error.concerns(KEY.key()));
        let text = error.to_string();
        assert!(text.contains(&format!("{code:#x} of key far")) && text.contains("too far"), "{text}");
    }
}
