//! A batch that stops half-way, so that the cost of a trap can be measured one trap at a time.
//!
//! # Safety
//!
//! The caller is responsible for the addresses at which threads continue.
#![allow(unsafe_code)]

use dormouse_sys::trap::Verdict;

use super::prepare;
use super::resume::{self, Resume, resolve, traps};
use crate::Error;
use crate::patch_lock::PatchLock;
use crate::room::collect;

/// The trap handler's question: the address at which a thread goes on that has run into the `int3`
/// at `address`. Counts as a trap.
pub(crate) fn look_up(address: usize) -> Option<usize> {
    match resolve(address) {
        Verdict::Resume(target) => Some(target),
        Verdict::Late | Verdict::Foreign => None,
    }
}

/// Runs `work` as if a batch of `sites`, each with the address to which its new instruction leads,
/// stood between its first step and its last: handler, look-up and table are the real ones. Says
/// how many threads trapped.
///
/// The sites are the caller's own and need be in no object; `work` must apply no batch.
///
/// # Safety
///
/// A thread that executes an `int3` at a site can go on at the address beside it.
pub(crate) unsafe fn midway<T>(
    lock: PatchLock<'_>,
    sites: &[(usize, usize)],
    work: impl FnOnce() -> T,
) -> Result<(T, u64), Error> {
    let mut table = collect(sites.iter().map(|&(code, target)| Resume { code, target }))?;
    table.sort_unstable_by_key(|resume| resume.code);
    prepare(lock)?;
    let before = traps();
    resume::reserve(table.len())?;
    resume::publish(table.into_iter());
    let result = work();
    resume::retire();
    Ok((result, traps() - before))
}
