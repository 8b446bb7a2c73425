//! The house's tally: two numbers that several routes write, to try watches on (`dormouse watch
//! teaparty TALLY:8`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a house.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Tally {
    requests: AtomicU64,
    cups: AtomicU64,
}

/// Since the house opened.
pub(crate) static TALLY: Tally = Tally { requests: AtomicU64::new(0), cups: AtomicU64::new(0) };

impl Tally {
    /// Adds a request that sold `cups` cups.
    pub(crate) fn add(&self, cups: u32) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if cups > 0 {
            self.cups.fetch_add(cups.into(), Ordering::Relaxed);
        }
    }
}
