//! The largest sums of each row that were returned to any reader.
//!
//! The sum of waits that go on has an error of up to the time of the reading, so the next reading
//! could find less. A counter that decreases counts as reset, so no reader of the process gets less
//! than an earlier one got.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::rows::GROUPS;

static RETURNED: [[AtomicU64; 3]; GROUPS] = [const { [const { AtomicU64::new(0) }; 3] }; GROUPS];

/// The sums of a row, or earlier results where they are larger.
pub(crate) fn never_less(row: usize, sums: [u64; 3]) -> [u64; 3] {
    let mut sums = sums;
    for (sum, returned) in sums.iter_mut().zip(RETURNED.get(row).into_iter().flatten()) {
        *sum = returned.fetch_max(*sum, Ordering::Relaxed).max(*sum);
    }
    sums
}

/// In a forked child: sums begin at zero.
pub(crate) fn forget() {
    // Read first: a page that is written to is copied.
    for returned in RETURNED.iter().flatten().filter(|returned| returned.load(Ordering::Relaxed) != 0) {
        returned.store(0, Ordering::Relaxed);
    }
}
