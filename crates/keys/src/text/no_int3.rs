//! Stands in for the int3 protocol where flip needs no other: an architecture whose own rules let
//! the two instructions of a site change under running threads.

use std::io;
use std::num::NonZero;

use super::access::Access;
use super::patch::Patch;
use crate::Error;
use crate::patch_lock::PatchLock;

/// No queue has failed.
pub(crate) fn fallback() -> bool {
    false
}

/// The refusal of the protocol.
pub(crate) fn obstacle(_: PatchLock<'_>) -> Option<Error> {
    Some(refused())
}

/// Always an error.
pub(crate) fn take_signal(_: PatchLock<'_>) -> Result<(), Error> {
    Err(refused())
}

/// Always an error.
pub(super) fn prepare(_: PatchLock<'_>) -> Result<(), Error> {
    Err(refused())
}

/// Always an error.
pub(super) fn write(_: &Access, _: &[Patch], _: NonZero<usize>) -> Result<(usize, u64), Error> {
    Err(refused())
}

fn refused() -> Error {
    Error::Denied {
        what: "the int3 protocol",
        source: io::ErrorKind::Unsupported.into(),
        setting: "use flip (unset DORMOUSE_KEYS): the architecture itself permits it here",
    }
}
