//! A PMU for tests and benches: its events happen on command, and it counts its own reads.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::thread::ThreadBlock;

use super::cells;
use super::event::{Event, Pmu};

/// A PMU whose events happen when [`CountingPmu::happen`] says so, and that knows how many counters
/// were read, which proves that a switch read none.
#[derive(Debug, Default)]
pub struct CountingPmu {
    reads: AtomicU64,
}

impl CountingPmu {
    /// A PMU that nobody has read.
    pub const fn new() -> Self {
        Self { reads: AtomicU64::new(0) }
    }

    /// Its event `number`, below 16.
    pub const fn event(&'static self, name: &'static str, number: u32) -> Event {
        Event::new(name, self, number)
    }

    /// Event `number` happens `times` on the calling thread. (To all of these PMUs: only
    /// differences count.)
    pub fn happen(number: u32, times: u64) {
        cells::own(|cells| {
            if let Some(count) = cells.counting.get(number as usize) {
                count.add(times);
            }
        });
    }

    /// How many counters have been read by the threads that count. (Reads of other threads are none
    /// of a switch.)
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
