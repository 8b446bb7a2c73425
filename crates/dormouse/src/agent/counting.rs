//! What a client has counted for groups, by name.
//!
//! Groups count nothing unless somebody asks for it, since counting costs at each switch. A client that asks has it as
//! long as it is connected, as it has the leases of `on`.

use dormouse_events::Event;

use crate::group::{Group, GroupStat};
use crate::wire::{Code, Count, Counted, EventInfo, WireError};

/// Why groups do not count an event that threads have.
const NOT_FOR_GROUPS: &str = "groups of this version count task-clock alone";

/// One client's events, counted as long as this lives.
#[derive(Debug)]
pub(super) struct Counting {
    events: Vec<EventInfo>,
}

/// Everything that has a name, with its reason where it is not to be had.
pub(super) fn available() -> Vec<EventInfo> {
    let known = match Event::by_name("") {
        Err(dormouse_events::Error::Unknown { known, .. }) => known,
        _ => String::new(),
    };
    known.split(", ").map(info).collect()
}

fn info(name: &str) -> EventInfo {
    let (unit, pmu, unavailable) = match Event::by_name(name) {
        Ok(event) if event == Event::TASK_CLOCK => ("ns", "clock", None),
        Ok(_) => ("1", "software", Some(NOT_FOR_GROUPS.to_owned())),
        Err(dormouse_events::Error::Unavailable { reason, .. }) => ("1", "hardware", Some(reason)),
        Err(why) => ("1", "", Some(why.to_string())),
    };
    let (name, unit, pmu) = (name.to_owned(), unit.to_owned(), pmu.to_owned());
    EventInfo { name, unit, pmu, note: String::new(), unavailable }
}

impl Counting {
    /// Begins to count what can be counted of `names`; a name that is no event refuses all.
    pub(super) fn start(names: &[String]) -> Result<(Self, Counted), WireError> {
        let known = available();
        let find = |name: &String| known.iter().find(|event| event.name == *name).cloned();
        let asked: Result<Vec<EventInfo>, WireError> =
            names.iter().map(|name| find(name).ok_or_else(|| unknown(name, &known))).collect();
        let (counted, refused): (Vec<_>, Vec<_>) = asked?.into_iter().partition(|e| e.unavailable.is_none());
        Ok((Self { events: counted.clone() }, Counted { counted, refused }))
    }

    /// What `group` has counted of these events so far.
    pub(super) fn of(&self, _: Group, stat: &GroupStat) -> Vec<Count> {
        let cpu_ns = stat.cpu.as_nanos() as u64;
        let count = |event: &EventInfo| Count {
            event: event.name.clone(),
            value: cpu_ns,
            enabled_ns: cpu_ns,
            running_ns: cpu_ns,
        };
        self.events.iter().map(count).collect()
    }
}

fn unknown(name: &str, known: &[EventInfo]) -> WireError {
    let names: Vec<&str> = known.iter().map(|event| event.name.as_str()).collect();
    let message = format!("`{name}` is no event of this process: it has {}", names.join(", "));
    WireError { code: Code::NoEvent, message, near: Vec::new() }
}
