//! `dormouse list`: what can be counted, and why the rest cannot.

use dormouse_protocol::{EventInfo, EventsRequest};
use serde::{Deserialize, Serialize};

use crate::client::session::Subject;
use crate::exit::{Exit, Outcome};
use crate::output::{BAD, Context, GOOD, HEAD};
use crate::render::table::Table;
use crate::sample::events::{here, of_any_process};
use crate::target::Target;
use crate::text::clean;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use crate::verb::{Asked, Subcommand};

/// List the events that can be counted, and why others cannot
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Process id or name; without it, what a service on this machine could count
    target: Option<Target>,
    #[command(flatten)]
    request: Request,
}

/// The events of a process.
#[derive(Debug, clap::Args, Deserialize)]
pub(crate) struct Request {}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Listing<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    events: Vec<EventRow<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct EventRow<'a> {
    #[serde(flatten)]
    event: &'a EventInfo,
    available: bool,
}

impl Subcommand for Args {
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Request::OFFER;

    fn run(&self, context: &mut Context) -> Outcome {
        match &self.target {
            Some(target) => self.request.run(&Subject::of(target), context),
            None => print(None, &here(), context),
        }
    }
}

impl Asked for Request {
    const NAME: &'static str = "list";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let (process, session) = subject.look(context.patience)?;
        let events = match session {
            Some(mut session) => session.call(EventsRequest {})?.events,
            None => of_any_process(here()),
        };
        print(Some(process.pid), &events, context)
    }
}

fn print(pid: Option<u32>, events: &[EventInfo], context: &mut Context) -> Outcome {
    if context.json {
        let row = |event| EventRow { event, available: event.unavailable.is_none() };
        context.document(&Listing { pid, events: events.iter().map(row).collect() })?;
    } else {
        context.text(table(events).render(HEAD))?;
    }
    Ok(Exit::Ok)
}

fn table(events: &[EventInfo]) -> Table {
    let mut table = Table::new(["EVENT", "STATE", "UNIT", "BY", "NOTE"]);
    for event in events {
        let (state, note) = match &event.unavailable {
            None => (format!("{GOOD}available{GOOD:#}"), clean(&event.note)),
            Some(why) => (format!("{BAD}unavailable{BAD:#}"), clean(why)),
        };
        let unit = if event.unit == "1" { String::new() } else { clean(&event.unit) };
        table.row([clean(&event.name), state, unit, clean(&event.pmu), note]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unavailable_event_shows_its_reason() {
        let event = |name: &str, unavailable: Option<&str>| EventInfo {
            name: name.into(),
            unit: "1".into(),
            pmu: "hardware".into(),
            note: "user mode only".into(),
            unavailable: unavailable.map(Into::into),
        };
        let events = [event("cycles", None), event("branches", Some("there is no \x1b PMU"))];
        let text = anstream::adapter::strip_str(&table(&events).render(HEAD)).to_string();
        assert_eq!(
            text,
            "\
EVENT     STATE        UNIT  BY        NOTE
cycles    available          hardware  user mode only
branches  unavailable        hardware  there is no \\u{1b} PMU
"
        );
    }
}
