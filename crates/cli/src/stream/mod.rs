//! Records on their way from an agent to standard output or into a timeline, for `trace` and
//! `demo`.

mod lines;
mod merge;
mod names;
mod timed;

use std::fmt::Write as _;
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use dormouse::record::Malformed;
use dormouse_protocol::Note;
use serde::Serialize;

use crate::client::Client;
use crate::client::frames::{self, Frame};
use crate::duration::short;
use crate::exit::{Failure, Outcome};
use crate::output::FAIR;
use crate::signals::{Signals, wait};
use crate::text::count;

pub(crate) use lines::Lines;
pub(crate) use names::RecordLine;
pub(crate) use timed::Timed;

/// How long records are held so that those of several threads come out in order: more than the
/// agent lets pass between two reads of a thread's ring.
const HOLD: Duration = Duration::from_millis(100);

/// When a trace ends by itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) length: Option<Duration>,
    pub(crate) records: Option<NonZero<u64>>,
}

/// The numbers of records that were printed and lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Tally {
    pub(crate) records: u64,
    #[serde(rename = "dropped_in_rings")]
    pub(crate) rings: u64,
    #[serde(rename = "dropped_by_slow_reader")]
    pub(crate) client: u64,
}

/// The last line, for people: what was seen and, above all, what was not.
/// Without a length for a file, whose reading takes no time of the records'.
pub(crate) fn summary(tally: Tally, elapsed_ns: Option<u64>) -> String {
    let mut text = count(tally.records, "record");
    if let Some(elapsed_ns) = elapsed_ns {
        let _ = write!(text, " in {}", short(elapsed_ns));
    }
    let lost = tally.rings.saturating_add(tally.client);
    if lost > 0 {
        // The service has one count for both.
        let rings = "in the service (no room in its rings, or a handler inside another record)";
        let causes = [(tally.rings, rings), (tally.client, "since this reader was too slow")];
        let causes: Vec<_> =
            causes.into_iter().filter(|&(n, _)| n > 0).map(|(n, cause)| format!("{n} {cause}")).collect();
        let _ = write!(text, "; {FAIR}{lost} more lost{FAIR:#}: {}", causes.join(", "));
    } else if tally.records == 0 {
        text += ": no probe was reached";
    }
    text
}

/// The place that records go to.
pub(crate) trait Sink {
    /// Adds the contents of a note.
    fn learn(&mut self, note: Note);

    /// Takes in records of one thread.
    fn take(&mut self, tid: u32, start: u64, records: &[u8]) -> Result<(), Malformed>;

    /// Lets go of what need not be held any longer, or of everything. The number of all records
    /// that went so far is at most `most`.
    fn emit(&mut self, all: bool, most: u64) -> Outcome<u64>;

    /// Whether something is held.
    fn is_holding(&self) -> bool;

    /// Whether there is no room for more.
    fn is_full(&self) -> bool {
        false
    }
}

/// Records on their way from an agent to a sink.
pub(crate) struct Stream<S> {
    client: Client,
    pub(crate) sink: S,
    patience: Duration,
    pub(crate) tally: Tally,
    /// Whether a signal has ended it.
    pub(crate) is_interrupted: bool,
}

impl<S: Sink> Stream<S> {
    /// The stream that a trace has announced to `client`.
    pub(crate) fn new(client: Client, sink: S, patience: Duration) -> Self {
        Self { client, sink, patience, tally: Tally::default(), is_interrupted: false }
    }

    /// Takes records until a limit, a signal, a full sink, or the end: of a file, or of the
    /// service, which is a failure.
    pub(crate) fn run(&mut self, limits: &Limits, signals: &Signals) -> Outcome<()> {
        let end = limits.length.map(|length| Instant::now() + length);
        let most = limits.records.map_or(u64::MAX, NonZero::get);
        let result = match self.run_until(end, most, signals) {
            Err(Failure::Said(report)) if report.has_hung_up && self.client.file().is_some() => Ok(()),
            result => result,
        };
        // Also after a failure: what came before it may be why, or all that was wanted.
        self.emit(most, true)?;
        if self.tally.records == most { Ok(()) } else { result }
    }

    fn run_until(&mut self, end: Option<Instant>, most: u64, signals: &Signals) -> Outcome<()> {
        // Frames may have come together with the answer that announced them.
        self.take()?;
        // The agent sends the time about once a second: an agent that is silent for long is dead.
        let mut heard = Instant::now();
        let mut is_idle = false;
        loop {
            self.emit(most, is_idle)?;
            if self.tally.records == most || self.sink.is_full() {
                return Ok(());
            }
            let silence = heard + self.patience;
            let hold = self.sink.is_holding().then(|| Instant::now() + HOLD);
            let until = [Some(silence), end, hold].into_iter().flatten().min();
            let [readable, signalled] = wait([self.client.as_fd(), signals.as_fd()], until)?;
            let now = Instant::now();
            self.is_interrupted = signalled && signals.take();
            if self.is_interrupted || end.is_some_and(|end| now >= end) {
                return self.take_rest();
            }
            is_idle = !readable;
            if readable {
                heard = now;
                self.take()?;
            } else if now >= silence {
                return Err(self.client.silent("sent nothing"));
            }
        }
    }

    /// Reads the rest of what came before the end, losses above all. A service that sends without a
    /// pause is read for as long as records are held.
    fn take_rest(&mut self) -> Outcome<()> {
        let end = Instant::now() + HOLD;
        while wait([self.client.as_fd()], Some(Instant::now()))? == [true] && Instant::now() < end {
            match self.take() {
                Err(Failure::Said(report)) if report.has_hung_up => break,
                taken => taken?,
            }
            if self.sink.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// Reads what has come.
    fn take(&mut self) -> Outcome<()> {
        let Stream { client, sink, tally, .. } = self;
        let mut malformed = None;
        frames::read(client, |frame| match frame {
            Frame::Note(Note::Dropped { rings, client }) => {
                tally.rings = tally.rings.saturating_add(rings);
                tally.client = tally.client.saturating_add(client);
                sink.learn(Note::Dropped { rings, client });
            }
            Frame::Note(note) => sink.learn(note),
            Frame::Records { tid, start, bytes } => {
                malformed = sink.take(tid, start, bytes).err().or(malformed);
            }
        })?;
        malformed.map_or(Ok(()), |error| Err(self.client.nonsense(&error.to_string())))
    }

    fn emit(&mut self, most: u64, all: bool) -> Outcome<()> {
        self.tally.records = self.sink.emit(all, most)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use dormouse_testkit::HANG;
    use signal_hook::consts::SIGWINCH;

    use super::*;
    use crate::client::frames::tests::{frame, stream};

    struct NoRecords;

    impl Sink for NoRecords {
        fn learn(&mut self, _: Note) {}

        fn take(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), Malformed> {
            Ok(())
        }

        fn emit(&mut self, _: bool, _: u64) -> Outcome<u64> {
            Ok(0)
        }

        fn is_holding(&self) -> bool {
            false
        }
    }

    #[test]
    fn losses_before_the_end_are_told() {
        let (mut agent, client) = stream();
        let note = frame(1, br#"{"dropped":{"rings":1,"client":0}}"#);
        // More than one read takes.
        agent.write_all(&note.repeat(2_000)).unwrap();
        let limits = Limits { length: Some(Duration::ZERO), records: None };
        let mut stream = Stream::new(client, NoRecords, HANG);
        stream.run(&limits, &Signals::all(&[SIGWINCH]).unwrap()).unwrap();
        assert_eq!(stream.tally.rings, 2_000);
    }

    #[test]
    fn the_summary_says_why_records_are_missing() {
        let tally = |records, rings, client| Tally { records, rings, client };
        assert_eq!(summary(tally(0, 0, 0), Some(2_000_000_000)), "0 records in 2.00 s: no probe was reached");
        assert_eq!(summary(tally(1, 0, 0), Some(5_000_000)), "1 record in 5.00 ms");
        assert_eq!(summary(tally(2, 0, 0), None), "2 records");
        let lost = anstream::adapter::strip_str(&summary(tally(7, 2, 3), Some(5_000_000))).to_string();
        assert_eq!(
            lost,
            "7 records in 5.00 ms; 5 more lost: 2 in the service (no room in its rings, or a handler inside \
             another record), 3 since this reader was too slow"
        );
    }
}
