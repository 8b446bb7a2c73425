//! The times between the messages that a group's sockets receive.
//!
//! Few groups have sockets whose messages are seen. So these durations are not among the histograms
//! that each thread has for each group ([`counts`](crate::counts)): a group has one, which all
//! threads share, from its first gap on.
//!
//! # Invariants
//!
//! 1. A histogram stays where it is. A forked child has none.
//!
//! # Safety
//!
//! The unsafe code makes references to mappings that stay.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::buckets::{self, BUCKETS, Histogram};
use crate::memory::{self, Zeroed};
use crate::rows::{GROUPS, row_of};

/// The gaps of one group.
#[derive(Debug)]
#[repr(C, align(64))]
struct Gaps {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

// SAFETY: atomics alone.
unsafe impl Zeroed for Gaps {}

static GAPS: [AtomicPtr<Gaps>; GROUPS] = [const { AtomicPtr::new(ptr::null_mut()) }; GROUPS];

/// The kernel has refused memory once: messages do not ask it again and again.
static HAS_NO_MEMORY: AtomicBool = AtomicBool::new(false);

fn at(place: &AtomicPtr<Gaps>) -> Option<&'static Gaps> {
    // SAFETY: null, or a mapping that stays (invariant 1). Acquire: pairs with the exchange in
    // `put`.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn begin(place: &AtomicPtr<Gaps>) -> Option<&'static Gaps> {
    if HAS_NO_MEMORY.load(Ordering::Relaxed) {
        return None;
    }
    match memory::map(1) {
        // Another thread's may be there already.
        Some(made) => _ = memory::put(place, made),
        None => HAS_NO_MEMORY.store(true, Ordering::Relaxed),
    }
    at(place)
}

/// Counts gaps without any time, of messages that were read together.
pub(crate) fn count_none(group: u32, gaps: u64) {
    let place = &GAPS[row_of(group)];
    if let Some(of) = at(place).or_else(|| begin(place)) {
        of.buckets[buckets::place(0)].fetch_add(gaps, Ordering::Relaxed);
    }
}

/// Counts a gap of a group.
pub(crate) fn count(group: u32, ns: u64) {
    let place = &GAPS[row_of(group)];
    let Some(gaps) = at(place).or_else(|| begin(place)) else { return };
    gaps.buckets[buckets::place(ns)].fetch_add(1, Ordering::Relaxed);
    gaps.sum_ns.fetch_add(ns, Ordering::Relaxed);
    if ns > gaps.max_ns.load(Ordering::Relaxed) {
        gaps.max_ns.fetch_max(ns, Ordering::Relaxed);
    }
}

/// Fills a histogram, which is empty, with the gaps of a row. Whether it has any.
pub(crate) fn fill(row: usize, histogram: &mut Histogram) -> bool {
    let Some(gaps) = GAPS.get(row).and_then(at) else { return false };
    for (to, from) in histogram.buckets.iter_mut().zip(&gaps.buckets) {
        *to = from.load(Ordering::Relaxed);
    }
    histogram.sum_ns = gaps.sum_ns.load(Ordering::Relaxed);
    histogram.max_ns = gaps.max_ns.load(Ordering::Relaxed);
    true
}

/// In a forked child.
pub(crate) fn forget() {
    // Looked at first: what is written to is copied.
    for place in GAPS.iter().filter(|place| !place.load(Ordering::Relaxed).is_null()) {
        place.store(ptr::null_mut(), Ordering::Relaxed);
    }
    HAS_NO_MEMORY.store(false, Ordering::Relaxed);
}
