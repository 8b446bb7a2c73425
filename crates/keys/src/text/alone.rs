//! Writing text in a forked child, whose only thread runs none of it meanwhile.
//!
//! Here the memory file is tried first: it changes no permissions, and in a child there is no time
//! to find out whether someone else has changed them.
//!
//! # Async-signal-safety
//!
//! Nothing here allocates or waits: other threads of the parent may have held any lock.
//!
//! # Safety
//!
//! See [`super`]; there is no other thread.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use dormouse_sys::readable::Pages;

use super::maps;
use super::memory::Memory;
use super::pages::Run;
use super::patch::{Bytes, Patch};
use super::trial::{self, By};
use crate::arch::{UNIT, Unit, fetch_again};
use crate::key::Key;
use crate::object::{Segment, Site};

/// Has the sites of a key do what they do when it is off: all, or none.
///
/// # Cost
///
/// Some system calls for each site.
pub(crate) fn write_alone(key: &'static Key, sites: &[Site], segments: &[Segment]) -> bool {
    let patches = || sites.iter().filter_map(|site| Patch::new(site, key, false));
    let mut pages = Pages::default();
    if patches().any(|patch| !matches!(patch.look(&mut pages), Ok(Bytes::Old))) {
        return false;
    }
    let memory = Memory::alone().ok();
    let write = |patch: &Patch, unit: Unit| write(memory.as_ref(), patch, unit, segments);
    let written = patches().take_while(|patch| write(patch, patch.new_unit())).count();
    if written == patches().count() {
        return true;
    }
    patches().take(written).for_each(|patch| {
        // This could be written a moment before.
        write(&patch, patch.old_unit());
    });
    false
}

fn write(memory: Option<&Memory<OwnedFd>>, patch: &Patch, unit: Unit, segments: &[Segment]) -> bool {
    let usual = segments[patch.segment()].protection();
    let mapping = maps::ask_alone(patch.code);
    if mapping.as_ref().is_some_and(|mapping| mapping.is_shared) {
        return false;
    }
    let is_futile = trial::was_futile(By::Memory);
    if !is_futile && memory.is_some_and(|memory| memory.write(patch.code, &unit.to_ne_bytes()).is_ok()) {
        return true;
    }
    let Some(run) = Run::of(patch, UNIT, &segments[patch.segment()]) else { return false };
    let is_foreign = mapping.is_some_and(|mapping| mapping.protection != usual);
    if is_foreign && !is_futile || run.open().is_err() {
        return false;
    }
    // SAFETY: the site's page is writable, and no thread runs it.
    unsafe { (patch.code as *mut Unit).write(unit) };
    fetch_again(std::iter::once(patch.code));
    run.seal();
    true
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous};

    use super::*;
    use crate::StaticKey;
    use crate::object::segments_of;

    #[test]
    fn a_guarded_page_keeps_its_permissions() {
        dormouse_testkit::in_child(|| {
            static KEY: StaticKey<false> = StaticKey::new("k", "", 0);

            let usual = MprotectFlags::READ | MprotectFlags::EXEC;
            let object = dormouse_sys::loader::find(write_alone as *const () as usize).unwrap();
            let text =
                segments_of(&object).into_iter().find(|segment| segment.protection() == usual).unwrap();
            let size = rustix::param::page_size();
            let protection = ProtFlags::READ | ProtFlags::EXEC;
            // SAFETY: a new mapping overlaps no other.
            let page = unsafe { mmap_anonymous(std::ptr::null_mut(), size, protection, MapFlags::PRIVATE) };
            let code = page.unwrap() as usize;
            let site = Site::new(code, code + 64, false, Some(0));
            let memory = Memory::alone().unwrap();
            let awake = Patch::new(&site, KEY.key(), false).unwrap().old();
            let write = |segment: &Segment| {
                memory.write(code, &awake).unwrap();
                write_alone(KEY.key(), &[site], std::slice::from_ref(segment))
            };
            assert!(write(&text.clone().guarded()) && write(&text));
            // Without the memory file mprotect would be the only way.
            trial::find_futile(By::Memory);
            assert!(write(&text) && !write(&text.guarded()));
        });
    }
}
