//! The requested events, and whether they can be counted.

use std::str::FromStr;

use dormouse_protocol::{CountAnswer, CountRequest, EventInfo, Events, EventsRequest};

use super::totals::Usage;
use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, FAIR};
use crate::target::near;
use crate::text::{clean, read_by_text};

/// The event that is counted by default.
pub(crate) const TASK_CLOCK: &str = "task-clock";

/// Why an event of groups is not counted for a process without dormouse.
const NO_AGENT: &str =
    "the kernel does not show it for every process; a service has it after dormouse::init()";

/// Why an agent without support for events counts none.
const OLD_AGENT: &str = "the dormouse in the service is too old to count it";

/// Events by name: `task-clock,page-faults`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventRequest(Vec<String>);

impl Default for EventRequest {
    fn default() -> EventRequest {
        EventRequest(vec![TASK_CLOCK.to_owned()])
    }
}

impl FromStr for EventRequest {
    type Err = String;

    fn from_str(list: &str) -> Result<EventRequest, String> {
        let mut names: Vec<String> = Vec::new();
        for name in list.split(',').map(str::trim) {
            if name.is_empty() {
                return Err(
                    "a name is missing; write names with single commas, as task-clock,page-faults".into()
                );
            }
            if !names.iter().any(|other| other == name) {
                names.push(name.to_owned());
            }
        }
        Ok(EventRequest(names))
    }
}

read_by_text!(EventRequest);

impl EventRequest {
    /// Has the groups of a service count them as long as the conversation lasts.
    pub(crate) fn ask(&self, client: &mut Client) -> Outcome<CountAnswer> {
        if !client.knows::<CountRequest>() {
            // Such an agent's groups count CPU time always.
            return Ok(self.divide(|name| (name != TASK_CLOCK).then(|| OLD_AGENT.to_owned())));
        }
        let events: Events = client.call(EventsRequest {})?;
        self.check(&events.events)?;
        client.call(CountRequest { events: self.0.clone() })
    }

    /// Whether it is one of them.
    #[cfg(feature = "serve")]
    pub(crate) fn has(&self, event: &str) -> bool {
        self.0.iter().any(|name| name == event)
    }

    /// The events among them that the kernel counts for any process.
    pub(crate) fn of_any_process(&self) -> Outcome<CountAnswer> {
        if !self.0.iter().all(|name| is_shown(name)) {
            self.check(&here())?;
        }
        Ok(self.divide(|name| (!is_shown(name)).then(|| NO_AGENT.to_owned())))
    }

    /// Checks that each is the name of an event.
    pub(crate) fn check(&self, known: &[EventInfo]) -> Outcome<()> {
        let Some(name) = self.0.iter().find(|name| !known.iter().any(|event| event.name == **name)) else {
            return Ok(());
        };
        let names = known.iter().map(|event| event.name.as_str());
        Err(Failure::new(Exit::Usage, format!("no event is called {name:?}"))
            .near(near(name, names))
            .hint("dormouse list TARGET lists the events"))
    }

    fn divide(&self, why_not: impl Fn(&str) -> Option<String>) -> CountAnswer {
        let info = |name: &String| EventInfo {
            name: name.clone(),
            unit: if name == TASK_CLOCK { "ns" } else { "1" }.into(),
            pmu: String::new(),
            note: String::new(),
            unavailable: why_not(name),
        };
        let (counted, refused) = self.0.iter().map(info).partition(|event| event.unavailable.is_none());
        CountAnswer { counted, refused }
    }
}

/// Whether the kernel shows it of any process.
fn is_shown(event: &str) -> bool {
    event == TASK_CLOCK || Usage::has(event)
}

/// The same events for a process without dormouse.
pub(crate) fn of_any_process(events: Vec<EventInfo>) -> Vec<EventInfo> {
    let of_any = |event: EventInfo| EventInfo {
        note: "of threads, as /proc shows it".into(),
        unavailable: (!is_shown(&event.name)).then(|| NO_AGENT.to_owned()),
        ..event
    };
    events.into_iter().map(of_any).collect()
}

/// Notes what is not counted, and why.
pub(crate) fn warn(counted: &CountAnswer, context: &Context) {
    for event in &counted.refused {
        let (name, why) = (clean(&event.name), clean(refused(event)));
        context.note(format_args!("{FAIR}not counted:{FAIR:#} {name}: {why}"));
    }
}

/// The reason why an event is not counted.
pub(crate) fn refused(event: &EventInfo) -> &str {
    event.unavailable.as_deref().unwrap_or("the service gives no reason")
}

/// The events that a service of this user could count on this machine: those that this process
/// could.
pub(crate) fn here() -> Vec<EventInfo> {
    dormouse::answers::countable_events()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_each_event_once() {
        let request: EventRequest = "page-faults, task-clock,page-faults".parse().unwrap();
        assert_eq!(request.0, ["page-faults", "task-clock"]);
        assert!("".parse::<EventRequest>().is_err() && "a,,b".parse::<EventRequest>().is_err());
    }

    #[test]
    fn kernels_missing_events_are_refused() {
        let request: EventRequest = "task-clock,page-faults".parse().unwrap();
        let counted = request.of_any_process().unwrap();
        assert_eq!((counted.counted.len(), counted.refused.len()), (2, 0));
        let divided = request.divide(|name| (name == "page-faults").then(|| NO_AGENT.to_owned()));
        assert_eq!(divided.refused[0].unavailable.as_deref(), Some(NO_AGENT));
    }

    #[test]
    fn an_unknown_event_is_refused() {
        let event = |name: &str| EventInfo {
            name: name.into(),
            unit: "1".into(),
            pmu: "software".into(),
            note: String::new(),
            unavailable: None,
        };
        let request: EventRequest = "page-fault".parse().unwrap();
        let Err(Failure::Said(report)) = request.check(&[event("page-faults"), event("cycles")]) else {
            panic!("it is no event")
        };
        assert_eq!((report.exit, report.near), (Exit::Usage, vec!["page-faults".to_owned()]));
    }
}
