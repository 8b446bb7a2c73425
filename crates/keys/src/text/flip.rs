//! The flip protocol: one byte a site, one barrier.

use super::Patch;
use super::access::Access;
use crate::{Error, barrier};

/// Changes sites that were verified; says how many barriers it took. On error all are as they were.
pub(super) fn write(access: &Access, patches: &[Patch]) -> Result<usize, Error> {
    if patches.is_empty() {
        return Ok(0);
    }
    // Step 1: one byte a site. A fetch sees the old instruction or the new one, because nothing else differs.
    for (at, patch) in patches.iter().enumerate() {
        if let Err(error) = access.store(patch.site.code, &patch.new_bytes()[..1]) {
            return Err(undo(access, &patches[..at], error));
        }
    }
    // Barrier 1: when this returns, no thread runs on the old bytes.
    barrier::sync().map_err(|error| undo(access, patches, error))?;
    Ok(1)
}

/// Puts back what was written before `error` came up.
pub(super) fn undo(access: &Access, patches: &[Patch], error: Error) -> Error {
    if patches.is_empty() {
        return error;
    }
    let left = patches.iter().filter(|p| access.store(p.site.code, &p.old()[..1]).is_err()).count();
    // If even this barrier fails, threads may run on what was new for a moment longer.
    let _ = barrier::sync();
    error.with_left(left)
}
