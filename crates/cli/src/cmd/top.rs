//! `dormouse top`: CPU time of a process by group and by thread.
//!
//! Every figure per second is the difference of two samples ([`crate::sample`]) divided by the time
//! between them, never an average since the start; every total of CPU time is since the first
//! sample, when counting began. A process without dormouse in it has threads and no groups. On a
//! terminal it is a live table ([`crate::live`]); elsewhere text or JSON, one view after the other.

use std::num::NonZero;
use std::time::Duration;

use serde::Deserialize;

use crate::client::session::Subject;
use crate::exit::{Exit, Outcome};
use crate::length::Length;
use crate::live;
use crate::output::{Context, is_interactive};
use crate::render::watch::Watch;
use crate::sample::events::EventRequest;
use crate::sample::objectives::ObjectiveList;
use crate::sample::source::Source;
use crate::signals::Signals;
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// The shortest interval, in milliseconds: below it the agent would show up in its own figures.
const SHORTEST_MS: u64 = 50;

/// Show where the CPU time of a process goes: groups and threads, live
///
/// CPU % and figures per second are of the last interval. CPU s and CPU/REQ are since `top` began,
/// or since counts of groups woke; (before) is what the process had used by then. REQ/s counts
/// tasks of a group that ended, without parts of other tasks. (unattributed) is CPU time in no
/// group. In a narrow window the least important columns are left out.
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    /// Print one snapshot and exit
    #[arg(long, conflicts_with = "count")]
    #[serde(skip)]
    once: bool,
    /// Exit after this many snapshots
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<NonZero<u64>>,
    /// Time between two snapshots
    #[arg(short, long, value_name = "DURATION", default_value = "1s")]
    interval: Interval,
    /// Print text even on a terminal
    #[arg(long)]
    #[serde(skip)]
    plain: bool,
    /// Events with columns of their own; `dormouse list` lists them
    #[arg(short, long = "event", value_name = "EVENTS", default_value = "task-clock")]
    #[serde(rename = "event")]
    events: EventRequest,
    /// Show where tasks spend their time, and latencies of requests (key w)
    #[arg(short, long)]
    waits: bool,
    /// Count requests by objectives while this runs, as in 'GET /*: 99.9% < 250ms; POST *: 99% <
    /// 1s': globs of groups, and the share of their requests to be answered within a time
    #[arg(long = "objective", value_name = "OBJECTIVES", allow_hyphen_values = true)]
    #[serde(rename = "objective")]
    objectives: Option<ObjectiveList>,
}

type Interval = Length<SHORTEST_MS>;

impl Default for Interval {
    fn default() -> Interval {
        Length(Duration::from_secs(1))
    }
}

/// In which form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Live,
    /// The given number of snapshots, or without end.
    Printed(Option<NonZero<u64>>),
}

impl Request {
    fn form(&self, json: bool, interactive: bool) -> Form {
        let count = if self.once { Some(NonZero::<u64>::MIN) } else { self.count };
        if json || self.plain || count.is_some() || !interactive { Form::Printed(count) } else { Form::Live }
    }
}

impl Asked for Request {
    const NAME: &'static str = "top";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn is_stream(&self) -> bool {
        true
    }

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let Request { interval: Length(interval), events, waits, objectives, .. } = self;
        let form = self.form(context.json, is_interactive());
        // The live view catches them itself, before it has the terminal.
        let signals = matches!(form, Form::Printed(_)).then(|| context.cancel()).transpose()?;
        let mut source = Source::open(&subject.target, events, context.patience)?;
        if *waits {
            source.begin_waits()?;
        }
        if let Some(objectives) = objectives {
            source.begin_objectives(objectives)?;
        }
        match (form, signals) {
            (Form::Printed(count), Some(signals)) => print(source, *interval, count, &signals, context),
            _ => live::run(source, *interval, None, *waits),
        }
    }
}

/// Prints one view after the other.
fn print(
    source: Source,
    interval: Duration,
    count: Option<NonZero<u64>>,
    signals: &Signals,
    context: &mut Context,
) -> Outcome {
    source.warn(context);
    let mut watch = Watch::start(source, interval, interval)?;
    let mut left = count.map_or(u64::MAX, NonZero::get);
    while left > 0 && !signals.came_before(watch.due)? {
        let view = watch.view()?;
        left -= 1;
        if context.json {
            context.document(&view.document(watch.source.pid, &watch.source.name))?;
        } else {
            context.text(view.text(&watch.source.who))?;
            if left > 0 {
                context.line("")?;
            }
        }
        context.flush()?;
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_printed_unless_a_person_watches() {
        let request = Request::default();
        assert_eq!(request.form(false, true), Form::Live);
        assert_eq!(request.form(false, false), Form::Printed(None));
        assert_eq!(request.form(true, true), Form::Printed(None));
        let once = Request { once: true, ..request };
        assert_eq!(once.form(false, true), Form::Printed(NonZero::new(1)));
    }
}
