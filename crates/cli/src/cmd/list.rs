//! `dormouse list`: what can be counted, and why the rest cannot.

use dormouse_protocol::{EventInfo, Events, EventsRequest};
use serde::Serialize;

use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{BAD, Context, GOOD, HEAD};
use crate::render::table::Table;
use crate::sample::events::{here, of_any_process};
use crate::target::{Finder, Target};
use crate::text::clean;

/// List the events that can be counted, and why others cannot
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Process id or name; without it, what a service on this machine could count
    target: Option<Target>,
}

#[derive(Serialize)]
struct Listing<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    events: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    event: &'a EventInfo,
    available: bool,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let (pid, events) = match &args.target {
        None => (None, here()),
        Some(target) => of_target(target, context).map(|(pid, events)| (Some(pid), events))?,
    };
    if context.json {
        let row = |event| Row { event, available: event.unavailable.is_none() };
        context.document(&Listing { pid, events: events.iter().map(row).collect() })?;
    } else {
        context.text(table(&events).render(HEAD))?;
    }
    Ok(Exit::Ok)
}

fn of_target(target: &Target, context: &Context) -> Outcome<(u32, Vec<EventInfo>)> {
    let finder = Finder::new();
    let found = finder.look(target)?;
    if !found.has_agent() {
        return Ok((found.process.pid, of_any_process(here())));
    }
    let (mut client, hello) = Client::reach(&finder, &found, context.patience)?;
    if !client.knows::<EventsRequest>() {
        let message = format!("{} has dormouse {}, which lists no events", client.who, clean(&hello.version));
        return Err(Failure::new(Exit::Unsupported, message).hint("build the service with a later dormouse"));
    }
    let events: Events = client.call(EventsRequest {})?;
    Ok((client.pid, events.events))
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
