//! The demo as text: what a user would do by hand, step by step.

use std::num::NonZero;
use std::time::{Duration, Instant};

use dormouse_protocol::{BatchStat, Changed, OffRequest, OnRequest, TraceRequest, Tracing};
use serde::Serialize;

use super::child::TeaHouse;
use super::summary::Batches;
use crate::client::Client;
use crate::duration::short;
use crate::exit::Outcome;
use crate::output::{Context, HEAD};
use crate::render::watch::Watch;
use crate::sample::source::Source;
use crate::signals::Signals;
use crate::stream::{Limits, Lines, Stream};
use crate::target::Target;
use crate::text::count;

/// Tables with all keys off.
const TABLES: u32 = 3;
/// Parts of the demo's time: the tables, the trace, and one table with all keys on.
const PARTS: u32 = TABLES + 2;
/// How many records are a few.
const RECORDS: NonZero<u64> = NonZero::new(24).unwrap();

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Begun<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    pid: u32,
    url: &'a str,
}

/// Plays it; `None` when a signal ended it.
pub(super) fn play(
    client: &mut Client,
    source: Source,
    target: &Target,
    house: &TeaHouse,
    length: Duration,
    context: &mut Context,
) -> Outcome<Option<Batches>> {
    let signals = &Signals::to_end()?;
    let part = length / PARTS;
    if context.json {
        context.document(&Begun { kind: "start", pid: house.pid(), url: &house.url })?;
    }
    headline(format_args!("a tea house serves {} (process {})", house.url, house.pid()), context)?;
    let mut watch = Watch::start(source, part, part)?;
    for _ in 0..TABLES {
        if show_next(&mut watch, signals, context)? {
            return Ok(None);
        }
    }

    let on: Changed =
        client.call(OnRequest { glob: "*".into(), for_ms: None, dwell_ms: None, keep: false })?;
    headline(
        format_args!(
            "all on: {}, {}; some of what they record:",
            count(on.changed as u64, "key"),
            sites_in(&on.batch)
        ),
        context,
    )?;
    let start = Instant::now();
    let (mut tracer, _) = Client::open(target, context.patience)?;
    let tracing: Tracing = tracer.call(TraceRequest { glob: "*".into() })?;
    let patience = context.patience;
    let lines = Lines::new(&tracer, tracing, context);
    let mut stream = Stream::new(tracer, lines, patience);
    stream.run(&Limits { length: Some(part), records: Some(RECORDS) }, signals)?;
    let records = stream.tally.records;
    let is_interrupted = stream.is_interrupted;
    // Its probes stay on by the lease of `on`.
    drop(stream);
    if is_interrupted || signals.came_before(start + part)? {
        return Ok(None);
    }
    headline("\nwith all of it awake:", context)?;
    watch.restart()?;
    if show_next(&mut watch, signals, context)? {
        return Ok(None);
    }

    // By force, in case the agent has not yet seen that the trace is gone.
    let off: Changed =
        client.call(OffRequest { glob: "*".into(), dwell_ms: None, force: true, release: false })?;
    headline(format_args!("all off: {}", sites_in(&off.batch)), context)?;
    context.flush()?;
    Ok(Some(Batches { on: on.batch, off: off.batch, records }))
}

/// Waits for the next view and prints its groups; true when a signal came first.
fn show_next(watch: &mut Watch, signals: &Signals, context: &mut Context) -> Outcome<bool> {
    context.flush()?;
    if signals.came_before(watch.due)? {
        return Ok(true);
    }
    let view = watch.view()?;
    if context.json {
        context.document(&view.document(watch.source.pid, &watch.source.name))?;
    } else {
        context.line(view.headline(&watch.source.who))?;
        if let Some(groups) = view.group_table() {
            context.line(groups.render(HEAD))?;
        }
    }
    context.flush()?;
    Ok(false)
}

fn sites_in(batch: &BatchStat) -> String {
    format!("{} in {}", count(batch.sites as u64, "site"), short(batch.elapsed_ns))
}

fn headline(text: impl std::fmt::Display, context: &mut Context) -> Outcome<()> {
    if context.json {
        return Ok(());
    }
    context.line(format_args!("{HEAD}{text}{HEAD:#}\n"))
}
