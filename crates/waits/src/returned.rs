//! The sums of each row that readers were given.
//!
//! A counter that decreases counts as reset, so no reader of the process gets less than an earlier
//! one got. Two things would make sums smaller. The sum of waits that go on has an error of up to
//! the time of the reading: the larger sum is returned again. And a run begins: it forgets polls
//! and waits that went on. At the first reading of the run, what readers were given of them is
//! added, and stays in all later sums, so that these go on growing. Waits that ended between the
//! beginning of the run and that reading are lost, up to the amount that was forgotten.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::rows::GROUPS;

struct Returned {
    /// The run of the sums.
    run: AtomicU64,
    /// The largest that were returned.
    largest: [AtomicU64; 3],
    /// The part of them that earlier runs have forgotten.
    added: [AtomicU64; 3],
}

impl Returned {
    const fn nothing() -> Self {
        Self {
            run: AtomicU64::new(0),
            largest: [const { AtomicU64::new(0) }; 3],
            added: [const { AtomicU64::new(0) }; 3],
        }
    }
}

static RETURNED: [Returned; GROUPS] = [const { Returned::nothing() }; GROUPS];

/// The sums of a row in that run, as a reader is given them.
pub(crate) fn never_less(run: u64, row: usize, sums: [u64; 3]) -> [u64; 3] {
    let Some(returned) = RETURNED.get(row) else { return sums };
    let before = returned.run.fetch_max(run, Ordering::Relaxed);
    let mut sums = sums;
    for (at, sum) in sums.iter_mut().enumerate() {
        let (largest, added) = (&returned.largest[at], &returned.added[at]);
        *sum += added.load(Ordering::Relaxed);
        if before < run {
            let forgotten = largest.load(Ordering::Relaxed).saturating_sub(*sum);
            added.fetch_add(forgotten, Ordering::Relaxed);
        }
        // The reader of a run that is over has what that run had, as others have read it.
        let own = if before > run { 0 } else { *sum };
        *sum = largest.fetch_max(own, Ordering::Relaxed).max(own);
    }
    sums
}

/// The rows of which anything was returned.
fn rows() -> impl Iterator<Item = usize> {
    let is_returned =
        |returned: &Returned| returned.largest.iter().any(|sum| sum.load(Ordering::Relaxed) != 0);
    RETURNED.iter().enumerate().filter(move |(_, returned)| is_returned(returned)).map(|(row, _)| row)
}

/// In a forked child: sums begin at zero.
pub(crate) fn forget() {
    // Read first: a page that is written to is copied.
    for row in rows() {
        let Returned { run, largest, added } = &RETURNED[row];
        for word in largest.iter().chain(added).chain([run]) {
            word.store(0, Ordering::Relaxed);
        }
    }
}
