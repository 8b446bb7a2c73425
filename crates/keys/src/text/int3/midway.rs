//! A batch that stays half-way, so that what a trap costs can be measured one trap at a time.
//!
//! # Safety
//!
//! The caller answers for where threads go on.
#![allow(unsafe_code)]

use dormouse_sys::trap::Verdict;

use super::prepare;
use crate::batch::Turn;
use crate::text::resume::{Resume, Rounds, resolve, traps};
use crate::{Error, Protocol};

/// What the trap handler asks: where a thread goes on that has run into the `int3` at `address`. Counts as a trap.
pub fn look_up(address: usize) -> Option<usize> {
    match resolve(address) {
        Verdict::Resume(target) => Some(target),
        Verdict::Late | Verdict::Foreign => None,
    }
}

/// Runs `work` as if a batch of `sites`, each with the address where its new instruction leads, stood between its
/// first step and its last: handler, look-up and table are the real ones. Says how many threads trapped.
///
/// The sites are the caller's own and need be in no object; `work` must apply no batch.
///
/// # Safety
///
/// A thread that executes an `int3` at a site can go on at the address beside it.
pub unsafe fn midway<T>(sites: &[(usize, usize)], work: impl FnOnce() -> T) -> Result<(T, u64), Error> {
    let mut table: Vec<_> = sites.iter().map(|&(code, target)| Resume { code, target }).collect();
    table.sort_unstable_by_key(|resume| resume.code);
    let _turn = Turn::to_write(Protocol::INT3)?;
    prepare()?;
    let (before, mut rounds) = (traps(), Rounds::of(&[]));
    rounds.publish(table);
    let result = work();
    rounds.retire();
    Ok((result, traps() - before))
}
