//! Records as a timeline.

use dormouse::record::Malformed;
use dormouse_protocol::{Note, Tracing};
use dormouse_timeline::{Timeline, TimelineBuilder};

use super::Sink;
use crate::exit::Outcome;

/// Records that become a timeline at the end.
pub(crate) struct Timed {
    builder: TimelineBuilder,
    taken: u64,
    most: u64,
}

impl Timed {
    /// A timeline for the trace of process `pid` that `tracing` announced; with at most `most`
    /// records.
    pub(crate) fn new(name: &str, pid: u32, tracing: &Tracing, most: u64) -> Self {
        let builder = TimelineBuilder::new(name, pid, &tracing.probes, tracing.clock);
        Self { builder, taken: 0, most }
    }

    /// Puts them together.
    pub(crate) fn finish(self) -> Timeline {
        self.builder.finish()
    }
}

impl Sink for Timed {
    fn learn(&mut self, note: Note) {
        self.builder.learn(note);
    }

    fn take(&mut self, tid: u32, start: u64, records: &[u8]) -> Result<(), Malformed> {
        self.taken += self.builder.add(tid, start, records, self.most - self.taken)?;
        Ok(())
    }

    fn emit(&mut self, _: bool, _: u64) -> Outcome<u64> {
        Ok(self.taken)
    }

    fn is_holding(&self) -> bool {
        false
    }

    fn is_full(&self) -> bool {
        self.builder.is_full()
    }
}
