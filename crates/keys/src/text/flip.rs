//! The flip protocol: one unit ([`crate::arch::Unit`]) for each site and one barrier, or a wait
//! where the kernel has none.

use super::access::Access;
use super::barrier;
use super::patch::Patch;
use crate::Error;
use crate::arch::fetch_again;

/// How many sites ahead of the one that is written cache lines are prefetched: several misses at
/// once take as long as one.
const AHEAD: usize = 32;

/// Changes sites that were verified; returns how many barriers it took, and no traps. On error all
/// are as they were, but for those that [`Error::HalfWritten`] counts.
pub(super) fn write(access: &Access, patches: &[Patch]) -> Result<(usize, u64), Error> {
    if patches.is_empty() {
        return Ok((0, 0));
    }
    // Step 1: one unit a site. A fetch sees the old instruction or the new one, because nothing
    // else differs.
    for (at, patch) in patches.iter().enumerate() {
        if let Some(later) = patches.get(at + AHEAD) {
            Access::prefetch(later);
        }
        if let Err(error) = access.exchange(patch, patch.old_unit(), patch.new_unit()) {
            return Err(undo(access, &patches[..at], error));
        }
    }
    fetch_again(patches.iter().map(|patch| patch.code));
    // Barrier 1: when this returns, no thread runs on the old bytes.
    Ok((barrier::sync_or_wait(), 0))
}

/// Puts back what was written before `error` came up.
fn undo(access: &Access, patches: &[Patch], error: Error) -> Error {
    if patches.is_empty() {
        return error;
    }
    // A byte that is no longer ours is left to its writer.
    let is_left = |p: &&Patch| access.exchange(p, p.new_unit(), p.old_unit()).is_err();
    let left = patches.iter().filter(is_left).count();
    fetch_again(patches.iter().map(|patch| patch.code));
    barrier::sync_or_wait();
    error.with_left(left)
}
