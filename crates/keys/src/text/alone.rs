//! What is done to the text of a forked child, whose one thread runs none of it meanwhile.
//!
//! # Async-signal-safety
//!
//! Nothing here allocates or waits: other threads of the parent may have held any lock.
//!
//! # Safety
//!
//! As [`super`]; there is no other thread.
#![allow(unsafe_code)]

use super::pages::Run;
use super::{Patch, Segment, memory, resume};
use crate::arch::LENGTH;
use crate::registry::Site;

/// Takes back what a child inherits and must not use: the parent's memory, and its handlers' count of themselves.
pub(crate) fn in_forked_child() {
    memory::close();
    resume::forget_handlers();
}

/// Has the sites of a key do what they do when it is off: all, or none.
///
/// # Cost
///
/// Two system calls for each site.
pub(crate) fn write_alone(sites: &[Site], segments: &[Segment]) -> bool {
    let patches = || sites.iter().filter_map(|&site| Patch::new(site, "", false));
    if patches().any(|patch| segments[patch.segment].is_shared || patch.verify().is_err()) {
        return false;
    }
    let written = patches().take_while(|patch| write(patch, &patch.new_bytes(), segments)).count();
    if written == patches().count() {
        return true;
    }
    patches().take(written).for_each(|patch| {
        // What could be written a moment before.
        write(&patch, &patch.old(), segments);
    });
    false
}

fn write(patch: &Patch, bytes: &[u8; LENGTH], segments: &[Segment]) -> bool {
    let (address, bytes) = (patch.site.code, &bytes[..patch.length()]);
    let run = Run::of(patch, segments);
    if run.open().is_err() {
        return memory::write_alone(address, bytes).is_ok();
    }
    // SAFETY: the site's pages are writable, and nobody runs it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
    run.seal();
    true
}
