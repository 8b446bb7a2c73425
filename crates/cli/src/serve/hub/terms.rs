//! The tasks that a hub gives to all services, as long as it talks to them.

use std::sync::Arc;

use dormouse_protocol::WaitsRequest;

use crate::client::{Client, waits};
use crate::exit::{Exit, Failure, Outcome};
use crate::sample::events::EventRequest;
use crate::sample::objectives::ObjectiveList;

/// The tasks that a hub gives to all services.
#[derive(Debug)]
pub(in crate::serve) struct Terms {
    /// The events that groups count.
    pub(super) events: EventRequest,
    /// Whether times of tasks are taken.
    waits: bool,
    /// The objectives by which requests are counted.
    objectives: ObjectiveList,
    /// Each thread of a session has a clone of it.
    pub(super) thread: Arc<()>,
}

/// A task that a service does not do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lack {
    Event,
    Objectives,
}

impl Lack {
    pub(super) fn words(self) -> &'static str {
        match self {
            Lack::Event => "counts CPU time alone",
            Lack::Objectives => "counts no requests by objectives",
        }
    }
}

impl Terms {
    /// The groups of all services count these events, take times of tasks if `waits`, and count
    /// requests by these objectives.
    pub(in crate::serve) fn new(events: EventRequest, waits: bool, objectives: ObjectiveList) -> Terms {
        Terms { events, waits, objectives, thread: Arc::default() }
    }

    /// Has a service do them. `warn` gets what it does not do; the rest is worth having.
    pub(super) fn ask(&self, client: &mut Client, warn: impl Fn(Lack, &str)) -> Outcome<()> {
        let counted = self.events.ask(client).map(drop);
        counted.or_else(|failure| match failure {
            // It does not know one of them.
            Failure::Said(report) if report.exit == Exit::Usage => {
                warn(Lack::Event, &report.message);
                EventRequest::default().ask(client).map(drop)
            }
            failure => Err(failure),
        })?;
        if self.waits {
            // Not every service can.
            let request =
                WaitsRequest { exemplars: true, calls: true, stalls: true, ..WaitsRequest::default() };
            go_on(waits::begin(client, request).map(drop), |_| {})?;
        }
        go_on(self.objectives.ask(client), |why| warn(Lack::Objectives, why))
    }
}

/// A refusal is no failure while the service talks.
fn go_on(begun: Outcome<()>, refused: impl Fn(&str)) -> Outcome<()> {
    begun.or_else(|failure| match &failure {
        Failure::Said(report) if failure.breaks().is_none() => {
            refused(&report.message);
            Ok(())
        }
        _ => Err(failure),
    })
}
