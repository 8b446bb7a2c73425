//! The demo as text: what a person would do by hand, one thing after the other.

use std::num::NonZero;
use std::time::{Duration, Instant};

use dormouse::wire::{Changed, Op, Tracing};
use serde::Serialize;

use super::child::TeaHouse;
use super::summary::Batches;
use crate::client::Client;
use crate::cmd::top::ended_before;
use crate::cmd::top::model::View;
use crate::cmd::top::plain;
use crate::cmd::trace::{Limits, Stream};
use crate::duration::short;
use crate::exit::Outcome;
use crate::output::{Context, HEAD};
use crate::sample::Sample;
use crate::signals::Signals;
use crate::target::Target;
use crate::text::count;

/// Tables with all keys off.
const TABLES: u32 = 3;
/// Parts of the demo's time: the tables, the trace, and one table with all keys on.
const PARTS: u32 = TABLES + 2;
/// How many records are a few.
const RECORDS: NonZero<u64> = NonZero::new(24).unwrap();

#[derive(Serialize)]
struct Begun<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    pid: u32,
    url: &'a str,
}

/// Plays it; `None` when a signal ended it.
pub(super) fn play(
    client: &mut Client,
    target: &Target,
    house: &TeaHouse,
    length: Duration,
    context: &mut Context,
) -> Outcome<Option<Batches>> {
    let signals = &Signals::to_end()?;
    let part = length / PARTS;
    if context.json {
        context.document(&Begun { kind: "start", pid: house.pid(), url: house.url() })?;
    }
    headline(format_args!("a tea house serves {} (process {})", house.url(), house.pid()), context)?;
    let mut tables = Tables { pid: house.pid(), before: sample(client)?, due: Instant::now() + part };
    for _ in 0..TABLES {
        if tables.next(client, part, signals, context)? {
            return Ok(None);
        }
    }

    let on: Changed = client.call(Op::On { glob: "*".into(), for_ms: None, dwell_ms: None, keep: false })?;
    headline(
        format_args!(
            "all on: {}, {} in {}; some of what they record:",
            count(on.changed as u64, "key"),
            count(on.batch.sites as u64, "site"),
            short(on.batch.elapsed_ns)
        ),
        context,
    )?;
    let start = Instant::now();
    let (mut tracer, _) = Client::open(target, context.patience)?;
    let tracing: Tracing = tracer.call(Op::Trace { glob: "*".into() })?;
    let mut stream = Stream::new(tracer, tracing, context.patience);
    stream.print(&Limits { length: Some(part), records: Some(RECORDS) }, signals, context)?;
    let records = stream.tally.records;
    // Its probes stay on by the lease of `on`.
    drop(stream);
    if ended_before(start + part, signals)? {
        return Ok(None);
    }
    headline("\nwith all of it awake:", context)?;
    tables.before = sample(client)?;
    tables.due = Instant::now() + part;
    if tables.next(client, part, signals, context)? {
        return Ok(None);
    }

    // By force, in case the agent has not yet seen that the trace is gone.
    let off: Changed = client.call(Op::Off { glob: "*".into(), dwell_ms: None, force: true })?;
    headline(
        format_args!("all off: {} in {}", count(off.batch.sites as u64, "site"), short(off.batch.elapsed_ns)),
        context,
    )?;
    context.flush()?;
    Ok(Some(Batches { on: on.batch, off: off.batch, records }))
}

/// Snapshots at fixed times.
struct Tables {
    pid: u32,
    before: Sample,
    due: Instant,
}

impl Tables {
    /// Waits for the next one and prints it; true when a signal came first.
    fn next(
        &mut self,
        client: &mut Client,
        part: Duration,
        signals: &Signals,
        context: &mut Context,
    ) -> Outcome<bool> {
        context.flush()?;
        if ended_before(self.due, signals)? {
            return Ok(true);
        }
        let after = sample(client)?;
        let view = View::between(&self.before, &after, &[]);
        if context.json {
            context.document(&plain::Snapshot {
                kind: "snapshot",
                pid: self.pid,
                name: "teaparty",
                view: &view,
            })?;
        } else {
            context.line(plain::headline(client.who(), &view))?;
            if let Some(inside) = &view.inside {
                context.line(plain::groups(&view, inside).render(HEAD))?;
            }
        }
        self.before = after;
        self.due += part;
        context.flush()?;
        Ok(false)
    }
}

/// What the service tells of itself now.
fn sample(client: &mut Client) -> Outcome<Sample> {
    client.call(Op::Stat).map(Sample::of_agent)
}

fn headline(text: impl std::fmt::Display, context: &mut Context) -> Outcome<()> {
    if context.json {
        return Ok(());
    }
    context.line(format_args!("{HEAD}{text}{HEAD:#}\n"))
}
