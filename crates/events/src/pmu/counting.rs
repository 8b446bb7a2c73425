//! A PMU for tests and benches: its events happen when a test calls a function, and it counts its
//! own reads.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::thread::ThreadBlock;

use super::cells;
use super::event::{Event, Pmu};

/// A PMU whose events happen by [`CountingPmu::happen`], and which counts how many counters were
/// read. Tests use that to prove that a switch read none.
#[derive(Debug, Default)]
pub struct CountingPmu {
    reads: AtomicU64,
}

impl CountingPmu {
    /// A PMU that was never read.
    pub const fn new() -> Self {
        Self { reads: AtomicU64::new(0) }
    }

    /// Event `number` of this PMU, below 16.
    pub const fn event(&'static self, name: &'static str, number: u32) -> Event {
        Event::new(name, self, number)
    }

    /// Counts event `number` `times` on the calling thread. (For all PMUs of this type: only
    /// differences matter.)
    pub fn happen(number: u32, times: u64) {
        cells::own(|cells| {
            if let Some(count) = cells.counting.get(number as usize) {
                count.add(times);
            }
        });
    }

    /// How many counters were read by the threads that count. Reads from other threads are left
    /// out, because no switch makes them.
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
        cells::shown(|cells| cells::gather(&cells.counting, events, values));
    }

    fn read_of(&self, thread: &ThreadBlock, events: &[u32], values: &mut [u64]) -> bool {
        cells::of(thread, |cells| cells::gather(&cells.counting, events, values)).is_some()
    }
}
