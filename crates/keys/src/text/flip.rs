//! The flip protocol: one byte a site, one barrier.
//!
//! # Safety
//!
//! The caller has verified the sites and made them writable.
#![allow(unsafe_code)]

use super::{Patch, Written};
use crate::arch::store;
use crate::{Error, barrier};

pub(super) fn write(patches: &[Patch]) -> Result<Written, Error> {
    // 1. One byte a site. This cannot fail.
    for patch in patches {
        // SAFETY: a verified site in writable memory, by the caller's promise.
        unsafe { store(patch.site.code, patch.jumps()) };
    }
    // 2. When this returns, no thread runs on the old bytes.
    if let Err(error) = barrier::sync() {
        for patch in patches {
            // SAFETY: as above.
            unsafe { store(patch.site.code, !patch.jumps()) };
        }
        return Err(error);
    }
    Ok(Written { barriers: 1, ..Written::default() })
}
