//! A PMU for tests: it counts what it is told to, and how often it is read.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Event, Pmu};
use crate::layout::MAX_COUNTERS;

thread_local! {
    static COUNTS: [Cell<u64>; MAX_COUNTERS] = const { [const { Cell::new(0) }; MAX_COUNTERS] };
}

/// A PMU whose events happen when [`CountingPmu::happen`] says so, and that knows how many counters were read:
/// what proves that a switch read none.
#[derive(Debug, Default)]
pub struct CountingPmu {
    reads: AtomicU64,
}

impl CountingPmu {
    /// A PMU that nobody has read.
    pub const fn new() -> Self {
        Self { reads: AtomicU64::new(0) }
    }

    /// Its event `number`, below [`MAX_COUNTERS`].
    pub const fn event(&'static self, name: &'static str, number: u32) -> Event {
        Event::new(name, self, number)
    }

    /// Event `number` happens `times` on the calling thread. (To all of these PMUs: only differences count.)
    pub fn happen(number: u32, times: u64) {
        COUNTS.with(|counts| {
            if let Some(count) = counts.get(number as usize) {
                count.set(count.get() + times);
            }
        });
    }

    /// How many counters have been read, on all threads.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Pmu for CountingPmu {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn read(&self, events: &[u32], values: &mut [u64]) {
        self.reads.fetch_add(events.len() as u64, Ordering::Relaxed);
        COUNTS.with(|counts| {
            for (event, value) in events.iter().zip(values) {
                *value = counts.get(*event as usize).map_or(0, Cell::get);
            }
        });
    }
}
