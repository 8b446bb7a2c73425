//! Records of all copies: a thread writes them to its ring in the leader's pool, and one reader
//! drains the rings.
//!
//! # Async-signal-safety
//!
//! [`push`] and [`current_task`] are signal-safe once the thread has its block (see
//! [`crate::thread`]).
//!
//! # Safety
//!
//! The unsafe code passes a whole record to the leader's function. The leader's object stays
//! loaded, and its table has the layout of our version (`super::note`).
#![allow(unsafe_code)]

use std::ops::Range;

use super::leader::{followed, used};
pub use crate::ring::{RING_BYTES, RINGS, RingOwner};
use crate::thread::{self, Current};

/// Writes `record` to the calling thread's ring, whole or not at all. Returns false if it was
/// dropped and counted.
#[inline]
pub fn push(record: &[u8]) -> bool {
    match followed() {
        None => thread::push(record),
        // SAFETY: a whole record.
        Some(leader) => unsafe { (leader.push)(record.as_ptr(), record.len()) },
    }
}

/// The task that the calling thread runs, as records contain it: by the account of the copy that
/// leads.
#[inline]
pub fn current_task() -> Current {
    let mut current = Current::default();
    match followed() {
        None => thread::task_for_another(&mut current),
        Some(leader) => (leader.current)(&mut current),
    }
    current
}

/// Whether records contain this copy's account: groups and tasks of another copy have numbers of
/// their own.
#[inline]
pub fn is_account_shown() -> bool {
    followed().is_none()
}

/// Empties every ring: `sink` is called with the ring's index, the thread that wrote it, and its
/// records, one after another. A ring that has changed owners since the last call has another
/// writer.
///
/// # Cost
///
/// One pass over the pool; a ring that another reader is draining is skipped. Nothing is allocated
/// if `buffer` has room for [`RING_BYTES`].
pub fn drain_each(buffer: &mut Vec<u8>, sink: impl FnMut(usize, RingOwner, &[u8])) {
    used().pool.drain_each(buffer, sink);
}

/// The number of rings that have been written to.
pub fn written() -> usize {
    used().pool.written()
}

/// The addresses of these rings.
pub fn written_ranges() -> impl Iterator<Item = Range<usize>> + Clone {
    used().pool.written_ranges()
}

/// Records dropped since the start: the oldest of full rings, and those that found no ring.
pub fn dropped() -> u64 {
    used().pool.dropped()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_an_ended_thread_stay() {
        let start = std::thread::spawn(|| {
            assert!(push(b"last words"));
            thread::current().unwrap().start()
        })
        .join()
        .unwrap();
        let mut found = false;
        drain_each(&mut Vec::new(), |_, owner, bytes| {
            found |= owner.start == start && bytes == b"last words";
        });
        assert!(found);
    }
}
