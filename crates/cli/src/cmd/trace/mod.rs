//! `dormouse trace`: switches probes on, prints what they record or writes it as a timeline, and
//! switches them off when it ends.
//!
//! The end of the connection switches the probes off, so it does not matter whether this command
//! ends by Ctrl-C, by its own limits, by a closed pipe or by SIGKILL.
//!
//! A recorder's file can be used in place of a service; it has its own probes and an end.

mod viewer;

use std::num::NonZero;
use std::time::Instant;

use dormouse_protocol::{BatchStat, CancelledRow, Hello, ProbeInfo, TraceRequest, Tracing};
use dormouse_timeline::{POLL, Timeline};
use serde::{Deserialize, Serialize};

use crate::args::help;
use crate::client::Client;
use crate::client::session::Subject;
use crate::duration::short;
use crate::exit::{Exit, Failure, Outcome};
use crate::length::Length;
use crate::new_file::NewFile;
use crate::output::{Context, FAIR};
use crate::signals::Signals;
use crate::stream::{Limits, Lines, Sink, Stream, Tally, Timed, summary};
use crate::target::Target;
use crate::text::{count, list};
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use crate::waiting::dropped::{Dropper, waited_at};
use crate::waiting::{list as tasks, place::PlaceNames};
use viewer::TimelinePlace;

/// Switch probes on and print what they record, until Ctrl-C
///
/// A line begins with the time of day in UTC. With -o nothing is printed: the records become a
/// timeline, for viewers. Beside the probes of the service it has polls and tasks, if they are
/// named: 'dormouse.poll,dormouse.task,db.*'.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    /// Write a timeline to this file, in the form that its extension selects: .json.gz (Firefox
    /// Profiler), .pftrace or .perfetto-trace (Perfetto)
    #[arg(short, long, value_name = "FILE")]
    #[serde(skip)]
    output: Option<TimelinePlace>,
    /// With -o and 'dormouse.task': have times and places of tasks taken, and show where cancelled
    /// requests waited and what dropped them
    #[arg(long, requires = "output")]
    #[serde(skip)]
    places: bool,
    /// End after this time
    #[arg(long = "for", value_name = "DURATION")]
    #[serde(rename = "for")]
    length: Option<Length>,
    /// Exit after this many records
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<NonZero<u64>>,
    #[arg(help = help::GLOB)]
    glob: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "kebab-case")]
pub(super) enum Document<'a> {
    Start {
        pid: u32,
        matched: &'a [String],
        probes: &'a [ProbeInfo],
        batch: &'a BatchStat,
    },
    End {
        elapsed_ns: u64,
        tally: Tally,
        #[serde(skip_serializing_if = "Option::is_none")]
        timeline: Option<Written>,
    },
}

/// A timeline in its file.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Written {
    file: String,
    duration_ns: u64,
    threads: usize,
    tasks: usize,
    /// Marks on threads, and tasks.
    events: usize,
    /// Whether it ended because no more fitted.
    is_full: bool,
}

impl Request {
    fn limits(&self) -> Limits {
        Limits { length: self.length.map(|Length(length)| length), records: self.count }
    }

    /// The keys to switch on; a file has none.
    fn glob(&self, target: &Target) -> Outcome<String> {
        let usage = |what: &str, hint: &str| Err(Failure::new(Exit::Usage, what).hint(hint));
        match (target, &self.glob) {
            (Target::File(_), Some(_)) => usage("a file has the probes that it has", "leave GLOB out"),
            (Target::File(_), None) if self.length.is_some() => {
                usage("a file is read to its end", "leave --for out; -n ends after that many records")
            }
            (Target::File(_), None) => Ok(String::new()),
            (_, Some(glob)) => Ok(glob.clone()),
            (_, None) => usage("no keys are named", "give names as in 'db.*'; dormouse keys lists them"),
        }
    }
}

impl Asked for Request {
    const NAME: &'static str = "trace";
    const TARGET: &'static str = help::TARGET_OR_FILE;
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::changing::<Self>());

    fn is_stream(&self) -> bool {
        true
    }

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        run(self, &subject.target, context)
    }
}

fn run(args: &Request, target: &Target, context: &mut Context) -> Outcome {
    let glob = args.glob(target)?;
    // A file that was begun is put in its place, or removed.
    let signals = if args.output.is_some() { Signals::to_leave() } else { context.cancel() }?;
    // A place that cannot be written is refused before anything is switched on.
    let file = args.output.as_ref().map(|place| NewFile::create(&place.path)).transpose()?;
    let (mut client, hello) = Client::open(target, context.patience)?;
    // Before the first record: its conversation goes on after the last one.
    let placed = if args.places { Some(placed(target, context)?) } else { None };
    let tracing: Tracing = client.call(TraceRequest { glob })?;
    if context.json {
        let Tracing { matched, probes, batch, .. } = &tracing;
        context.document(&Document::Start { pid: client.pid, matched, probes, batch })?;
        context.flush()?;
    } else if client.file().is_none() {
        announce(&tracing, &client.who, context);
    }
    match (file, &args.output) {
        (Some(file), Some(place)) => {
            let opened = Opened { client, hello, tracing, placed };
            write(args, opened, &signals, (file, place), context)
        }
        _ => print(args, client, tracing, &signals, context),
    }
}

fn print(
    args: &Request,
    client: Client,
    tracing: Tracing,
    signals: &Signals,
    context: &mut Context,
) -> Outcome {
    let (start, patience, json) = (Instant::now(), context.patience, context.json);
    let is_file = client.file().is_some();
    let lines = Lines::new(&client, tracing, context);
    let mut stream = Stream::new(client, lines, patience);
    let result = stream.run(&args.limits(), signals);
    if matches!(result, Err(Failure::StdoutClosed)) {
        return Err(Failure::StdoutClosed);
    }
    let (elapsed_ns, tally) = (elapsed_ns(start), stream.tally);
    // Its sink has the standard output.
    drop(stream);
    if json {
        context.document(&Document::End { elapsed_ns, tally, timeline: None })?;
    }
    context.flush()?;
    if !json && (result.is_ok() || tally != Tally::default()) {
        context.note(summary(tally, (!is_file).then_some(elapsed_ns)));
    }
    result.map(|()| Exit::Ok)
}

/// A trace that has begun.
struct Opened {
    client: Client,
    hello: Hello,
    tracing: Tracing,
    /// The conversation that has places taken.
    placed: Option<Client>,
}

/// Has times and places of tasks taken, as long as the conversation lasts. A file has those that it
/// has.
fn placed(target: &Target, context: &Context) -> Outcome<Client> {
    let (mut client, hello) = Client::open(target, context.patience)?;
    if client.file().is_none() && !tasks::begin(&mut client, &hello, false)? {
        return Err(Failure::failed(format!("{} takes no places of tasks", client.who)));
    }
    Ok(client)
}

/// Finds words for the drops of a timeline.
fn name_drops(timeline: &mut Timeline, client: &mut Client, context: &Context) -> Outcome<()> {
    let known = |number: u32| (number != 0).then_some(number);
    let wanted = timeline.drops.iter().flat_map(|of| [of.place, of.stack]).filter_map(known).collect();
    let names = PlaceNames::of(client, &wanted, context)?;
    for of in &mut timeline.drops {
        let row = CancelledRow {
            waited: of.waited,
            place: known(of.place),
            stack: known(of.stack),
            panicking: of.is_panicking,
            ..CancelledRow::default()
        };
        (of.waited_at, of.dropped_by) = (waited_at(&row, &names), Dropper::new(&row, &names).text());
    }
    Ok(())
}

fn write(
    args: &Request,
    opened: Opened,
    signals: &Signals,
    (file, place): (NewFile, &TimelinePlace),
    context: &mut Context,
) -> Outcome {
    let Opened { client, hello, ref tracing, placed } = opened;
    let (start, is_file) = (Instant::now(), client.file().is_some());
    let limits = args.limits();
    let most = limits.records.map_or(u64::MAX, NonZero::get);
    let timed = Timed::new(&hello.name, client.pid, tracing, most);
    let mut stream = Stream::new(client, timed, context.patience);
    let result = stream.run(&limits, signals);
    let (elapsed_ns, tally, is_full) = (elapsed_ns(start), stream.tally, stream.sink.is_full());
    // A service that ended leaves a timeline; of nothing there is none.
    if tally.records == 0 {
        result?;
        context.note(summary(tally, (!is_file).then_some(elapsed_ns)));
        return Err(Failure::failed(format!("nothing was recorded: {place} is not written")));
    }
    let mut timeline = stream.sink.finish();
    // A service that has ended leaves the rest.
    if let Some(mut placed) = placed
        && let Err(why) = name_drops(&mut timeline, &mut placed, context)
    {
        context.note(format_args!("{FAIR}warning:{FAIR:#} drops have no names: {why}"));
    }
    let written = Written {
        file: place.to_string(),
        duration_ns: timeline.duration_ns,
        threads: timeline.threads.iter().filter(|thread| !thread.events.is_empty()).count(),
        tasks: timeline.tasks.len(),
        events: timeline.events(),
        is_full,
    };
    file.finish(|out| place.viewer.write(timeline, out))?;
    if context.json {
        context.document(&Document::End { elapsed_ns, tally, timeline: Some(written) })?;
        context.flush()?;
    } else {
        context.note(format_args!(
            "{}\n{place}: {} on {} and {} in {}, for {}",
            summary(tally, (!is_file).then_some(elapsed_ns)),
            count((written.events - written.tasks) as u64, "mark"),
            count(written.threads as u64, "thread"),
            count(written.tasks as u64, "task"),
            short(written.duration_ns),
            place.viewer.address(),
        ));
        if is_full {
            context.note(format_args!(
                "{FAIR}warning:{FAIR:#} no more fit into a timeline: trace for a shorter time"
            ));
        }
        if !tracing.probes.iter().any(|probe| probe.name == POLL) {
            context.note("  it has no polls and tasks: name 'dormouse.poll,dormouse.task', too");
        }
    }
    result.map(|()| Exit::Ok)
}

fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn announce(tracing: &Tracing, who: &str, context: &Context) {
    let mut names: Vec<&str> = tracing.probes.iter().map(|probe| probe.name.as_str()).collect();
    let probes = names.len();
    // Several keys may have the same name. An agent of an earlier version counts names, and
    // switches keys that are no probes, too.
    let keys = tracing.keys.max(tracing.matched.len());
    let others = keys.saturating_sub(probes);
    names.dedup();
    if names.is_empty() {
        context.note(format_args!(
            "{FAIR}warning:{FAIR:#} none of the {} is a probe: they are on in {who}, but record nothing here",
            count(keys as u64, "matched key"),
        ));
        return;
    }
    let beside =
        if others == 0 { String::new() } else { format!(" and {}", count(others as u64, "other key")) };
    context.note(format_args!(
        "tracing {}{beside} in {who}: {}; Ctrl-C ends it",
        count(probes as u64, "probe"),
        list(&names, 6),
    ));
}
