//! `dormouse stat`: CPU time of a service by group and thread, of any other process by thread, or
//! of a command.
//!
//! A process is sampled now and then until the user, the time or the process ends it, and its use
//! from the first sample to the last is printed. The samples in between are for what may be gone by
//! then: a thread that ends, and the process itself, whose last sample stands for the end.

mod account;
mod command;
mod figures;
mod json;
mod text;

pub(super) use command::{RunDocument, RunsDocument};
pub(super) use json::Document;

use std::ffi::OsString;
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use clap::ArgGroup;
use serde::Deserialize;

use crate::client::session::Subject;
use crate::exit::{Exit, Failure, Outcome};
use crate::length::Length;
use crate::output::{Context, FAIR};
use crate::sample::delta::{Delta, Window};
use crate::sample::events::EventRequest;
use crate::sample::objectives::ObjectiveList;
use crate::sample::source::Source;
use crate::signals::wait;
use crate::target::Target;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use crate::verb::{Asked, Subcommand};
use account::{Account, Kind};

/// The shortest interval, in milliseconds: below it the readings would show up in their own
/// figures.
const SHORTEST_MS: u64 = 10;
/// How long a client elsewhere has counted that does not say: nobody presses Ctrl-C there.
const REMOTE: Duration = Duration::from_secs(1);
/// How often a process is read in between.
const LOOK: Duration = Duration::from_millis(250);
/// Sampling may take one part in this many of one processor.
const SHARE: u32 = 50;

/// Count what a process, its groups and its threads use, or what a command uses
///
/// A process is watched until Ctrl-C, --for or its own end. A process without dormouse in it has
/// threads, but no groups. A command is run to its end, and its exit code is passed through (128
/// and the signal's number after a signal, 127 or 126 where it cannot be run); the figures follow
/// its own output.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("what").required(true).args(["target", "pid", "command"])))]
pub(crate) struct Args {
    #[arg(help = crate::args::help::TARGET)]
    target: Option<Target>,
    /// Process id
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Command to run and count, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    #[command(flatten)]
    request: Request,
    /// Run the command this many times, and print means with their spread
    #[arg(short = 'r', long, value_name = "N", conflicts_with_all = ["target", "pid"])]
    repeat: Option<NonZero<u32>>,
    /// Write the figures to this file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<std::path::PathBuf>,
}

/// The events to count, and the end of counting.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    /// Events for groups to count; `dormouse list` lists them
    #[arg(short, long = "event", value_name = "EVENTS", default_value = "task-clock")]
    #[serde(rename = "event")]
    events: EventRequest,
    /// Also show where tasks spend their time: on a CPU, stalled in a poll, runnable, awaiting; and
    /// latencies of requests
    #[arg(long)]
    waits: bool,
    /// Count requests by objectives while this runs, as in 'GET /*: 99.9% < 250ms; POST *: 99% <
    /// 1s': globs of groups, and the share of their requests to be answered within a time
    #[arg(long = "objective", value_name = "OBJECTIVES", allow_hyphen_values = true)]
    #[serde(rename = "objective")]
    objectives: Option<ObjectiveList>,
    /// Also show outgoing calls, by the group that calls: hosts, methods, statements and commands,
    /// with their errors and times
    #[arg(long)]
    calls: bool,
    /// End after this time
    #[arg(long = "for", value_name = "DURATION", conflicts_with = "command")]
    #[serde(rename = "for")]
    length: Option<Length>,
    /// Also print each interval of this length
    #[arg(short = 'i', long, value_name = "DURATION", conflicts_with = "command")]
    interval: Option<Length<SHORTEST_MS>>,
}

impl Subcommand for Args {
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Request::OFFER;

    fn run(&self, context: &mut Context) -> Outcome {
        if let Some(path) = &self.output {
            context.write_to(path)?;
        }
        let Args { target, pid, request, .. } = self;
        match target.clone().or(pid.map(Target::Pid)) {
            Some(target) => request.run(&Subject::of(&target), context),
            None => command::run(&self.command, self.repeat, request, context),
        }
    }
}

impl Asked for Request {
    const NAME: &'static str = "stat";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn is_stream(&self) -> bool {
        self.interval.is_some()
    }

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        watch(self, &subject.target, context)
    }
}

fn watch(request: &Request, target: &Target, context: &mut Context) -> Outcome {
    let length = request.length.map(|length| length.0);
    let length = length.or_else(|| (context.is_remote() && !request.is_stream()).then_some(REMOTE));
    let interval = request.interval.map(|interval| interval.0);
    let signals = context.cancel()?;
    let mut source = Source::open(target, &request.events, context.patience)?;
    source.begin_times(request.waits, request.calls)?;
    if let Some(objectives) = &request.objectives {
        source.begin_objectives(objectives)?;
    }
    let Some(first) = source.sample()? else {
        return Err(Failure::new(Exit::NoTarget, format!("{} has just ended", source.who)));
    };
    source.warn(context);
    let end = length.map(|length| Instant::now() + length);
    if length.is_none() && !context.json {
        context.note(format_args!("counting {}; Ctrl-C ends it", source.who));
    }
    let mut total = Window::new(first.clone());
    let mut part = Window::new(first);
    let mut due = interval.map(|interval| Instant::now() + interval);
    let mut pause = LOOK;
    // Whether the process has ended, or the reason why it cannot be watched any longer.
    let ended = loop {
        let until = [end, due, Some(Instant::now() + pause)].into_iter().flatten().min();
        let end_of_process = source.end().unwrap_or(signals.as_fd());
        let [signalled, _] = wait([signals.as_fd(), end_of_process], until)?;
        let now = Instant::now();
        let is_over = signalled && signals.take() || end.is_some_and(|end| now >= end);
        let sample = match source.sample() {
            Ok(Some(sample)) => sample,
            Ok(None) => break Ok(true),
            // The samples until then are still worth having.
            Err(failure) => break Err(failure),
        };
        pause = LOOK.max(now.elapsed() * SHARE);
        part.add(sample.clone());
        total.add(sample);
        if is_over {
            break Ok(false);
        }
        if let Some((at, interval)) = due.zip(interval).filter(|(at, _)| now >= *at) {
            print(context, Kind::Interval, &source, &part.delta())?;
            context.flush()?;
            part = Window::new(part.last.clone());
            due = Some(next_due(at, interval, Instant::now()));
        }
    };
    let has_ended = matches!(ended, Ok(true));
    if has_ended {
        context
            .note(format_args!("{FAIR}{} has ended:{FAIR:#} its last moments are not counted", source.who));
    }
    print(context, Kind::Total { has_ended }, &source, &total.delta())?;
    ended.map(|_| Exit::Ok)
}

/// When the next block ends, after one that was due at `at` and has ended now. Half of an interval
/// is left for it at least, however late that one was.
fn next_due(at: Instant, interval: Duration, now: Instant) -> Instant {
    (at + interval).max(now + interval / 2)
}

/// Prints what a process used, in the form that was asked for.
fn print(context: &mut Context, kind: Kind, source: &Source, delta: &Delta) -> Outcome<()> {
    let account = Account::of(source, delta);
    if context.json {
        return context.document(&json::Document::of(kind, &account));
    }
    context.text(text::account(&text::headline(&source.who, kind, delta), &account))
}

#[cfg(test)]
mod tests {
    use dormouse_testkit::{assert_committed, pretty};

    use super::*;
    use crate::sample::totals::tests::{answers, fixed};

    #[test]
    fn a_late_block_makes_no_short_one() {
        let (at, second) = (Instant::now(), Duration::from_secs(1));
        let next_ms = |late_ms| (next_due(at, second, at + Duration::from_millis(late_ms)) - at).as_millis();
        assert_eq!([0, 3, 500, 999, 9500].map(next_ms), [1000, 1000, 1000, 1499, 10_000]);
    }

    #[test]
    fn fixed_samples_give_the_committed_accounts() {
        for (is_refused, name) in [(false, "stat"), (true, "stat_refused")] {
            let [before, now] = fixed(is_refused);
            let clock = answers(is_refused)[1].clock.clone();
            let mut source = Source::fake(&["task-clock", "page-faults", "alloc-bytes", "cycles"], clock);
            let mut refused = source.counted.counted.pop().unwrap();
            refused.unavailable = Some("no PMU".into());
            source.has_calls = true;
            source.counted.refused.push(refused);
            let mut window = Window::new(before);
            window.add(now);
            let delta = window.delta();
            let account = Account::of(&source, &delta);
            let kind = Kind::Total { has_ended: false };
            let text = text::account(&text::headline(&source.who, kind, &delta), &account);
            let text = anstream::adapter::strip_str(&text).to_string();
            assert_committed(&format!("tests/figures/{name}.txt"), &text);
            let json = serde_json::to_value(json::Document::of(kind, &account)).unwrap();
            assert_committed(&format!("tests/figures/{name}.json"), &pretty(json));
        }
    }
}
