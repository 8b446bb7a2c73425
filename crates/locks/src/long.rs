//! Waits that took long, for one reader that looks for such waits.
//!
//! A wait that ends compares its length with one word. The few that took longer go into a short
//! table, from which the reader takes them; a wait that finds no room there is missed.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::{ns_to_ticks, ticks_to_ns};

use crate::cell::{Entry, Token};
use crate::primitive::fence;
use crate::table::{Table, WAITERS};

/// Nobody looks for any.
const NONE: u64 = u64::MAX;

/// In ticks of the stamp.
static LONGER_THAN: AtomicU64 = AtomicU64::new(NONE);

const BUCKETS: usize = if cfg!(loom) { 1 } else { 8 };

dormouse_sys::shared! {
    /// Waits that have ended, by the lock's address: `run` is the number of the holder's row and 1,
    /// `flags` the length in microseconds.
    static ENDED: Table<BUCKETS> = Table::new();
}

/// From now on waits that take longer are kept; `None`: none are.
pub(crate) fn keep(longer_than_ns: Option<u64>) {
    LONGER_THAN.store(longer_than_ns.map_or(NONE, ns_to_ticks), Ordering::Relaxed);
}

/// The caller's wait ends, after `ticks`. `by`: the number of the holder's row, if that is known.
pub(crate) fn end(token: Token, ticks: u64, by: Option<u32>) {
    if let Some(wait) = WAITERS.own(token) {
        // First: who reads the waits first and then those that took long misses none.
        ends(&wait, ticks, by);
        WAITERS.remove(token);
    }
}

fn ends(wait: &Entry, ticks: u64, by: Option<u32>) {
    if ticks > LONGER_THAN.load(Ordering::Relaxed) {
        let micros = u32::try_from(ticks_to_ns(ticks) / 1000).unwrap_or(u32::MAX);
        let ended = Entry { run: by.map_or(0, |row| row + 1), flags: micros, ..*wait };
        ENDED.put_beside(&ended, wait.tid as usize);
        // Pairs with the load in `Cell::read`: a reader that no longer finds the wait among the
        // others finds it here.
        fence(Ordering::Release);
    }
}

/// Takes the waits that have ended: each, its length in nanoseconds, and the number of the holder's
/// row.
pub(crate) fn take(mut each: impl FnMut(Entry, u64, Option<u32>)) {
    for (number, ended) in ENDED.all() {
        if let Some(version) = NonZeroU32::new(number as u32) {
            ENDED.remove(Token::new((number >> 32) as u32, version));
        }
        each(ended, u64::from(ended.flags) * 1000, ended.run.checked_sub(1));
    }
}

/// In a forked child: nobody looks.
pub(crate) fn forget() {
    LONGER_THAN.store(NONE, Ordering::Relaxed);
    ENDED.clear();
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn long_waits_are_taken_once() {
        dormouse_clock::point();
        let wait = |task| Entry { address: 64, tid: 3, task, since: 9, ..Entry::default() };
        let taken = || {
            let mut all = Vec::new();
            take(|wait, ns, by| all.push((wait.task, ns, by)));
            all.sort_unstable();
            all
        };
        ends(&wait(1), u64::MAX - 1, None);
        assert_eq!(taken(), [], "nobody looks");
        keep(Some(1_000_000));
        ends(&wait(2), ns_to_ticks(900_000), None);
        ends(&wait(3), ns_to_ticks(5_000_900), Some(0));
        ends(&wait(4), ns_to_ticks(7_000_900), None);
        assert_eq!(taken(), [(3, 5_000_000, Some(0)), (4, 7_000_000, None)]);
        assert_eq!(taken(), []);
        forget();
        ends(&wait(5), ns_to_ticks(7_000_000), None);
        assert_eq!(taken(), []);
    }
}
