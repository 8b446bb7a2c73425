//! Records as lines on standard output.

use dormouse::record::{Malformed, Reader};
use dormouse_protocol::{Note, Tracing};

use super::merge::Merge;
use super::names::Names;
use super::{HOLD, Sink};
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::Context;
use crate::render::leases::note_ended;
use crate::sample::tasks::Numbers;
use crate::target::Proc;

/// Lines, in the order of their time stamps.
pub(crate) struct Lines<'a> {
    names: Names,
    held: Merge<String>,
    printed: u64,
    context: &'a mut Context,
}

impl<'a> Lines<'a> {
    /// A printer for the trace that was announced to `client`.
    pub(crate) fn new(client: &Client, tracing: Tracing, context: &'a mut Context) -> Self {
        let hold_ticks = (HOLD.as_secs_f64() * tracing.clock.tsc_hz) as u64;
        // The process of a file is no more, or another.
        let numbers = || Numbers::of(Proc::system(), client.pid);
        let names = Names::new(tracing, client.file().is_none().then(numbers).flatten());
        Self { names, held: Merge::new(hold_ticks), printed: 0, context }
    }
}

impl Sink for Lines<'_> {
    fn learn(&mut self, note: Note) {
        if let Note::Ended(ended) = &note {
            note_ended(ended, self.context);
        }
        self.names.learn(note);
    }

    fn take(&mut self, tid: u32, start: u64, records: &[u8]) -> Result<(), Malformed> {
        for record in Reader::new(records) {
            let record = record?;
            let line = self.names.line(tid, start, &record, self.context.json);
            self.held.push(record.tsc, line.len(), line);
        }
        Ok(())
    }

    fn emit(&mut self, all: bool, most: u64) -> Outcome<u64> {
        while self.printed < most {
            let Some(line) = self.held.pop(all) else { break };
            self.context.line(line)?;
            self.printed += 1;
        }
        self.context.flush()?;
        Ok(self.printed)
    }

    fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }
}
