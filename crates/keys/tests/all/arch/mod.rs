//! Everything that differs between processors, for tests of sites: their bytes, and sites at chosen
//! places.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
mod processor;

use dormouse_keys::Protocol;

pub(crate) use processor::{ASLEEP, BREAKPOINT, HAS_INT3, placed};
#[cfg(not(dormouse_fallback))]
pub(crate) use processor::{OPENS, UPROBE, answer_call, call_number, retargeted};

/// The protocols that batches may use.
pub(crate) const PROTOCOLS: &[Protocol] =
    if HAS_INT3 { &[Protocol::Flip, Protocol::INT3] } else { &[Protocol::Flip] };
