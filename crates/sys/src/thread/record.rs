//! The calling thread's records and task, in the rings and blocks of this copy of dormouse.
//!
//! # Safety
//!
//! The unsafe code makes a slice from the pointer and the length that another copy passes.
#![allow(unsafe_code)]

use super::block::{Current, ThreadBlock};
use super::exit::current;
use crate::ring::POOL;

/// Writes `record` to the calling thread's ring.
#[inline]
pub(crate) fn push(record: &[u8]) -> bool {
    match current() {
        Some(block) => block.push(record),
        None => POOL.drop_one(),
    }
}

/// [`push`], for a copy that this one leads.
///
/// # Safety
///
/// `length` bytes are there.
pub(crate) unsafe extern "C" fn push_for_another(record: *const u8, length: usize) -> bool {
    // SAFETY: the caller's promise.
    push(unsafe { std::slice::from_raw_parts(record, length) })
}

/// The task that the calling thread runs by this copy's account.
pub(crate) extern "C" fn task_for_another(place: &mut Current) {
    *place = current().map(ThreadBlock::own_current).unwrap_or_default();
}
