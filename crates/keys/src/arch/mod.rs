//! The instructions of a site, and the rules for changing them under running threads. `src/macros/`
//! has the assembler for sites. A new processor is a file here, and one there.

/// Whether sites are patched (true) or load the key (false).
pub const PATCHING: bool = cfg!(dormouse_patching);

#[cfg(dormouse_patching)]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

#[cfg(dormouse_patching)]
pub(crate) use processor::*;

/// Bytes of a site. (Without patching there are none; errors have a field of this size.)
#[cfg(not(dormouse_patching))]
pub(crate) const LENGTH: usize = 5;

/// Bytes of a [`Unit`], which is written at once.
#[cfg(dormouse_patching)]
pub(crate) const UNIT: usize = size_of::<Unit>();

/// The first unit of a site's bytes.
#[cfg(dormouse_patching)]
pub(crate) fn unit(bytes: [u8; LENGTH]) -> Unit {
    Unit::from_ne_bytes(*bytes.first_chunk().expect("a site is no shorter"))
}
