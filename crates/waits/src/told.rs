//! The largest sums of each row that were returned to any reader.
//!
//! The sum of waits that go on has an error of up to the time of the reading, so the next reading
//! could find less. A counter that decreases counts as reset, so no reader of the process gets less
//! than an earlier one got.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::rows::GROUPS;

static TOLD: [[AtomicU64; 3]; GROUPS] = [const { [const { AtomicU64::new(0) }; 3] }; GROUPS];

/// The sums of a row, or earlier results where they are larger.
pub(crate) fn told(row: usize, sums: [u64; 3]) -> [u64; 3] {
    let mut sums = sums;
    for (sum, told) in sums.iter_mut().zip(TOLD.get(row).into_iter().flatten()) {
        *sum = told.fetch_max(*sum, Ordering::Relaxed).max(*sum);
    }
    sums
}

/// In a forked child: sums begin at zero.
pub(crate) fn forget() {
    // Looked at first: what is written to is copied.
    for told in TOLD.iter().flatten().filter(|told| told.load(Ordering::Relaxed) != 0) {
        told.store(0, Ordering::Relaxed);
    }
}
