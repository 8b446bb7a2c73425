//! `dormouse trace`: switches probes on, prints what they record, and switches them off by going away.
//!
//! The end of the connection is what switches the probes off, so it does not matter whether this command ends by
//! Ctrl-C, by its own limits, by a closed pipe or by SIGKILL.

mod merge;
mod names;

use std::fmt::Write as _;
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use dormouse::record::Reader;
use dormouse::wire::{Batch, Note, Op, ProbeInfo, Tracing};
use serde::Serialize;

use super::on::taken;
use crate::args::Selection;
use crate::client::Client;
use crate::client::frames::{Frame, Frames};
use crate::duration::{parse_positive, short};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR, say};
use crate::signals::{Signals, wait};
use crate::text::{count, list};
use merge::Merge;
use names::Names;

/// How long records are held so that those of several threads come out in order: more than the agent lets pass
/// between two looks at a thread's ring.
const HOLD: Duration = Duration::from_millis(100);

/// Switch probes on and print what they record, until Ctrl-C
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    keys: Selection,
    /// End after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_positive)]
    length: Option<Duration>,
    /// End after so many records
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<NonZero<u64>>,
}

/// When a trace ends by itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    pub(super) length: Option<Duration>,
    pub(super) records: Option<NonZero<u64>>,
}

/// What came of a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    pub(super) records: u64,
    #[serde(rename = "dropped_in_rings")]
    pub(super) rings: u64,
    #[serde(rename = "dropped_by_slow_reader")]
    pub(super) client: u64,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
enum Event<'a> {
    Start { pid: u32, matched: &'a [String], probes: &'a [ProbeInfo], batch: &'a Batch },
    End { elapsed_ns: u64, tally: Tally },
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let (mut client, _) = Client::open(&args.keys.target, context.patience)?;
    let signals = Signals::to_end()?;
    let tracing: Tracing = client.call(Op::Trace { glob: args.keys.glob.clone() })?;
    if context.json {
        let Tracing { matched, probes, batch, .. } = &tracing;
        context.document(&Event::Start { pid: client.pid(), matched, probes, batch })?;
        context.flush()?;
    } else {
        announce(&tracing, client.who());
    }
    let start = Instant::now();
    let mut stream = Stream::new(client, tracing, context.patience);
    let result = stream.print(&Limits { length: args.length, records: args.count }, &signals, context);
    if matches!(result, Err(Failure::StdoutClosed)) {
        return Err(Failure::StdoutClosed);
    }
    let elapsed_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let tally = stream.tally;
    if context.json {
        context.document(&Event::End { elapsed_ns, tally })?;
    }
    context.flush()?;
    if !context.json && (result.is_ok() || tally != Tally::default()) {
        say(summary(tally, elapsed_ns));
    }
    result.map(|()| Exit::Ok)
}

fn announce(tracing: &Tracing, who: &str) {
    let names: Vec<&str> = tracing.probes.iter().map(|probe| probe.name.as_str()).collect();
    let others = tracing.matched.iter().filter(|name| !names.contains(&name.as_str())).count();
    if names.is_empty() {
        say(format_args!(
            "{FAIR}warning:{FAIR:#} none of the {} is a probe: they are on in {who}, but record nothing here",
            count(tracing.matched.len() as u64, "matched key"),
        ));
        return;
    }
    let beside =
        if others == 0 { String::new() } else { format!(" and {}", count(others as u64, "other key")) };
    say(format_args!(
        "tracing {}{beside} in {who}: {}; Ctrl-C ends it",
        count(names.len() as u64, "probe"),
        list(&names, 6),
    ));
}

/// The last line, for people: what was seen and, above all, what was not.
pub(super) fn summary(tally: Tally, elapsed_ns: u64) -> String {
    let mut text = format!("{} in {}", count(tally.records, "record"), short(elapsed_ns));
    let lost = tally.rings + tally.client;
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
pub(super) struct Stream {
    frames: Frames,
    names: Names,
    held: Merge<String>,
    patience: Duration,
    pub(super) tally: Tally,
}

impl Stream {
    /// The stream that `tracing` announced.
    pub(super) fn new(client: Client, tracing: Tracing, patience: Duration) -> Stream {
        let hold_ticks = (HOLD.as_secs_f64() * tracing.clock.tsc_hz) as u64;
        Stream {
            frames: Frames::of(client),
            names: Names::new(tracing),
            held: Merge::new(hold_ticks),
            patience,
            tally: Tally::default(),
        }
    }

    /// Prints records until a limit, a signal, or the end of the service, which is a failure.
    pub(super) fn print(&mut self, limits: &Limits, signals: &Signals, context: &mut Context) -> Outcome<()> {
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
        // The agent gives the time about once a second: an agent that says nothing for long is no more.
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
            let [readable, signalled] = wait([self.frames.as_fd(), signals.as_fd()], until)
                .map_err(|error| Failure::new(Exit::Failed, format!("cannot wait: {error}")))?;
            let now = Instant::now();
            if signalled && signals.take() || end.is_some_and(|end| now >= end) {
                return Ok(());
            }
            is_idle = !readable;
            if readable {
                heard = now;
                self.take(context.json)?;
            } else if now >= silence {
                return Err(self.frames.silent());
            }
        }
    }

    /// Reads what has come.
    fn take(&mut self, json: bool) -> Outcome<()> {
        let Stream { frames, names, held, tally, .. } = self;
        let mut malformed = None;
        frames.read(|frame| {
            match frame {
                Frame::Note(Note::Dropped { rings, client }) => {
                    tally.rings += rings;
                    tally.client += client;
                }
                Frame::Note(Note::Ended(ended)) => {
                    say(format_args!("{FAIR}switched off by force:{FAIR:#} {}", taken(&ended)));
                }
                Frame::Note(note) => names.learn(note),
                Frame::Records { tid, start, bytes } => {
                    for record in Reader::new(bytes) {
                        match record {
                            Ok(record) => {
                                held.push(record.tsc, names.line(tid, start, &record, json));
                            }
                            Err(error) => malformed = Some(error),
                        }
                    }
                }
            }
            Ok(())
        })?;
        malformed.map_or(Ok(()), |error| Err(self.frames.nonsense(&error.to_string())))
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
    fn the_summary_says_what_is_missing_and_why() {
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
