//! Records on their way from an agent to standard output, for `trace` and `demo`.

mod merge;
mod names;

use std::fmt::Write as _;
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use dormouse::record::Reader;
use dormouse::wire::{Note, Tracing};
use serde::Serialize;

use crate::client::Client;
use crate::client::frames::{self, Frame};
use crate::duration::short;
use crate::exit::Outcome;
use crate::output::{Context, FAIR};
use crate::render::leases::say_ended;
use crate::sample::tasks::Numbers;
use crate::signals::{Signals, wait};
use crate::target::Proc;
use crate::text::count;
use merge::Merge;
use names::Names;

/// How long records are held so that those of several threads come out in order: more than the
/// agent lets pass between two looks at a thread's ring.
const HOLD: Duration = Duration::from_millis(100);

/// When a trace ends by itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) length: Option<Duration>,
    pub(crate) records: Option<NonZero<u64>>,
}

/// The numbers of records that were printed and lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Tally {
    pub(crate) records: u64,
    #[serde(rename = "dropped_in_rings")]
    pub(crate) rings: u64,
    #[serde(rename = "dropped_by_slow_reader")]
    pub(crate) client: u64,
}

/// The last line, for people: what was seen and, above all, what was not.
pub(crate) fn summary(tally: Tally, elapsed_ns: u64) -> String {
    let mut text = format!("{} in {}", count(tally.records, "record"), short(elapsed_ns));
    let lost = tally.rings.saturating_add(tally.client);
    if lost > 0 {
        let causes =
            [(tally.rings, "in full rings of the service"), (tally.client, "since this reader was too slow")];
        let causes: Vec<_> =
            causes.into_iter().filter(|&(n, _)| n > 0).map(|(n, cause)| format!("{n} {cause}")).collect();
        let _ = write!(text, "; {FAIR}{lost} more lost{FAIR:#}: {}", causes.join(", "));
    } else if tally.records == 0 {
        text += ": no probe was reached";
    }
    text
}

/// Records on their way from an agent to standard output.
pub(crate) struct Stream {
    client: Client,
    names: Names,
    held: Merge<String>,
    patience: Duration,
    pub(crate) tally: Tally,
}

impl Stream {
    /// The stream that `tracing` announced.
    pub(crate) fn new(client: Client, tracing: Tracing, patience: Duration) -> Stream {
        let hold_ticks = (HOLD.as_secs_f64() * tracing.clock.tsc_hz) as u64;
        let numbers = Numbers::of(Proc::system(), client.pid);
        Stream {
            client,
            names: Names::new(tracing, numbers),
            held: Merge::new(hold_ticks),
            patience,
            tally: Tally::default(),
        }
    }

    /// Prints records until a limit, a signal, or the end of the service, which is a failure.
    pub(crate) fn print(&mut self, limits: &Limits, signals: &Signals, context: &mut Context) -> Outcome<()> {
        let end = limits.length.map(|length| Instant::now() + length);
        let most = limits.records.map_or(u64::MAX, NonZero::get);
        let result = self.print_until(end, most, signals, context);
        // Also after a failure: what came before it may be why, or all that was wanted.
        self.emit(most, true, context)?;
        if self.tally.records == most { Ok(()) } else { result }
    }

    fn print_until(
        &mut self,
        end: Option<Instant>,
        most: u64,
        signals: &Signals,
        context: &mut Context,
    ) -> Outcome<()> {
        // Frames may have come together with the answer that announced them.
        self.take(context.json)?;
        // The agent gives the time about once a second: an agent that says nothing for long is no
        // more.
        let mut heard = Instant::now();
        let mut is_idle = false;
        loop {
            self.emit(most, is_idle, context)?;
            if self.tally.records == most {
                return Ok(());
            }
            let silence = heard + self.patience;
            let hold = (!self.held.is_empty()).then(|| Instant::now() + HOLD);
            let until = [Some(silence), end, hold].into_iter().flatten().min();
            let [readable, signalled] = wait([self.client.as_fd(), signals.as_fd()], until)?;
            let now = Instant::now();
            if signalled && signals.take() || end.is_some_and(|end| now >= end) {
                return Ok(());
            }
            is_idle = !readable;
            if readable {
                heard = now;
                self.take(context.json)?;
            } else if now >= silence {
                return Err(self.client.silent("sent nothing"));
            }
        }
    }

    /// Reads what has come.
    fn take(&mut self, json: bool) -> Outcome<()> {
        let Stream { client, names, held, tally, .. } = self;
        let mut malformed = None;
        frames::read(client, |frame| match frame {
            Frame::Note(Note::Dropped { rings, client }) => {
                tally.rings = tally.rings.saturating_add(rings);
                tally.client = tally.client.saturating_add(client);
            }
            Frame::Note(Note::Ended(ended)) => say_ended(&ended),
            Frame::Note(note) => names.learn(note),
            Frame::Records { tid, start, bytes } => {
                for record in Reader::new(bytes) {
                    match record {
                        Ok(record) => {
                            let line = names.line(tid, start, &record, json);
                            held.push(record.tsc, line.len(), line);
                        }
                        Err(error) => malformed = Some(error),
                    }
                }
            }
        })?;
        malformed.map_or(Ok(()), |error| Err(self.client.nonsense(&error.to_string())))
    }

    /// Prints what need not be held any longer, or everything.
    fn emit(&mut self, most: u64, all: bool, context: &mut Context) -> Outcome<()> {
        while self.tally.records < most {
            let Some(line) = self.held.pop(all) else { break };
            context.line(line)?;
            self.tally.records += 1;
        }
        context.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_says_why_records_are_missing() {
        let tally = |records, rings, client| Tally { records, rings, client };
        assert_eq!(summary(tally(0, 0, 0), 2_000_000_000), "0 records in 2.00 s: no probe was reached");
        assert_eq!(summary(tally(1, 0, 0), 5_000_000), "1 record in 5.00 ms");
        let lost = anstream::adapter::strip_str(&summary(tally(7, 2, 3), 5_000_000)).to_string();
        assert_eq!(
            lost,
            "7 records in 5.00 ms; 5 more lost: 2 in full rings of the service, 3 since this reader was too slow"
        );
    }
}
