//! Writing code under running threads: checking the old bytes, the ways to write, and the
//! protocols.
//!
//! By [`flip`](Protocol::Flip), one unit for each site: `patch` (a site with its old and new bytes)
//! → `maps`, `pages`, `memory` (how the kernel lets code be written) → `access` (the first of these
//! ways that works for all sites of a batch and, by `trial`, takes effect) → `flip`. `int3/` is the
//! kernel's protocol, which is used only on request. `alone` is for a forked child.
//!
//! # Invariants
//!
//! 1. No byte changes unless every site of the batch holds its old bytes and a way to write them
//!    all is open. If something is refused after the first byte (an exchange, a write or int3's
//!    barrier), the protocol puts back what it has written.
//! 2. On every way out, each site is whole, old or new, and all sites of a batch are the same of
//!    the two. (The one exception has an error of its own: [`Error::HalfWritten`].)
//! 3. After a batch, pages have the permissions that they had before it. (During the batch, pages
//!    with the permissions of their segment's header may also be writable. They stay executable,
//!    because other threads run them.)
//! 4. A page of a file is read only right after the kernel was seen to read it: the file may have
//!    been cut short, or be out of reach ([`dormouse_sys::readable`]).
//!
//! # Safety
//!
//! Addresses come from the registry together with the segment in which they were found. While the
//! patch lock is held, no object with sites is unloaded.
#![allow(unsafe_code)]

mod access;
mod alone;
mod barrier;
mod flip;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_int3.rs")]
mod int3;
mod maps;
mod memory;
mod pages;
mod patch;
mod proc_file;
mod trial;

pub(crate) use access::{Way, steps};
pub(crate) use alone::write_alone;
pub(crate) use barrier::register;
pub(crate) use int3::{fallback, obstacle, take_signal};
#[cfg(all(feature = "bench", target_arch = "x86_64"))]
pub(crate) use int3::{look_up, midway};
pub(crate) use patch::{Patch, is_on};

use access::Access;
use dormouse_sys::readable::Pages;
use patch::Bytes;

use crate::object::Segment;
use crate::patch_lock::PatchLock;
use crate::{BatchReport, Error, Protocol};

/// Opens the files of `/proc` that batches use. A refusal is not yet one of a batch.
pub(crate) fn open_files(_: PatchLock<'_>) {
    let _ = maps::FILE.get();
    let _ = memory::FILE.get();
}

/// Closes them: in a child, whose parent's they are, and under the patch lock when this copy may be
/// leaving. The next batch that needs them opens them anew.
pub(crate) fn close_files() {
    memory::FILE.close();
    maps::FILE.close();
}

/// Changes all sites, or none. Those that hold already what they should are taken out, and so is
/// the second entry of a site.
pub(crate) fn write(
    lock: PatchLock<'_>,
    patches: &mut Vec<Patch>,
    segments: &[Segment],
    protocol: Protocol,
) -> Result<BatchReport, Error> {
    if patches.is_empty() {
        return Ok(BatchReport::default());
    }
    patches.sort_unstable_by_key(|patch| patch.code);
    let registered = barrier::register();
    match protocol {
        // It waits where the barrier is refused.
        Protocol::Flip => change(patches, segments, crate::arch::UNIT, flip::write),
        Protocol::Int3 { capacity } => {
            registered?;
            int3::prepare(lock)?;
            change(patches, segments, crate::arch::LENGTH, |access, patches| {
                int3::write(access, patches, capacity)
            })
        }
    }
}

/// Has `store` write the (sorted) sites, `length` bytes of each; on error it puts them back.
/// Returns the numbers of barriers and traps.
fn change(
    patches: &mut Vec<Patch>,
    segments: &[Segment],
    length: usize,
    store: impl FnOnce(&Access, &[Patch]) -> Result<(usize, u64), Error>,
) -> Result<BatchReport, Error> {
    // 1. Every site's text is read before the first page changes.
    let (mut pages, mut first) = (Pages::default(), None);
    patches.retain(|patch| match patch.look(&mut pages) {
        Ok(bytes) => bytes == Bytes::Old,
        Err(error) => {
            first.get_or_insert(error);
            true
        }
    });
    if let Some(error) = first {
        return Err(error);
    }
    // A linker may have kept two entries of one site.
    let sites = patches.len();
    patches.dedup_by_key(|patch| patch.code);

    // 2. A way to write them all is opened, or none. The refusal of a way leaves nothing to undo.
    let access = Access::open(patches, length, segments)?;

    // 3. The protocol writes the bytes. If anything refuses from here on, it undoes them.
    let stored = store(&access, patches);

    // 4. The pages get back the permissions that were there, in any case.
    let pages = access.pages;
    let unsealed = access.close();
    let (barriers, traps) = stored?;
    Ok(BatchReport { sites, pages, barriers, traps, unsealed, ..BatchReport::default() })
}
