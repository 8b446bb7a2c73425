//! What a client has counted for groups, by name.
//!
//! Groups count nothing unless somebody asks for it, since counting costs at each switch. A client that asks has it as
//! long as it is connected, as it has the leases of `on`.

use dormouse_events::Event;

use crate::group::Group;
use crate::wire::{Code, Count, Counted, EventInfo, WireError};

/// One client's events, counted as long as this lives, and CPU time with them: it is in each answer to `stat`, whatever
/// else was asked for.
#[derive(Debug)]
pub(super) struct Counting {
    events: Vec<Event>,
    /// `None`: it wants nothing counted.
    _counted: Option<dormouse_events::Counting>,
}

/// Everything that has a name, with its reason where it is not to be had.
pub(super) fn available() -> Vec<EventInfo> {
    dormouse_events::available().into_iter().map(EventInfo::from).collect()
}

impl Counting {
    /// Begins to count what can be counted of `names`; a name that is no event refuses all.
    pub(super) fn start(names: &[String]) -> Result<(Self, Counted), WireError> {
        let known = available();
        let find = |name: &String| known.iter().find(|event| event.name == *name).cloned();
        let asked: Result<Vec<EventInfo>, WireError> =
            names.iter().map(|name| find(name).ok_or_else(|| unknown(name))).collect();
        let (counted, refused): (Vec<_>, Vec<_>) = asked?.into_iter().partition(|e| e.unavailable.is_none());
        let events: Result<Vec<Event>, _> = counted.iter().map(|event| Event::by_name(&event.name)).collect();
        let events = events.map_err(|why| refusal(&why))?;
        let guard = if names.is_empty() {
            None
        } else {
            let all: Vec<Event> = events.iter().copied().chain([Event::TASK_CLOCK]).collect();
            Some(crate::count(&all).map_err(|why| refusal(&why))?)
        };
        Ok((Self { events, _counted: guard }, Counted { counted, refused }))
    }

    /// What `group` has counted of these events so far.
    pub(super) fn of(&self, group: Group) -> Vec<Count> {
        let counts = group.counts();
        let count = |event: &Event| {
            let of = counts.iter().find(|count| count.event == *event)?;
            Some(Count {
                event: event.name().to_owned(),
                value: of.value,
                enabled_ns: of.enabled_ns,
                running_ns: of.running_ns,
            })
        };
        self.events.iter().filter_map(count).collect()
    }
}

fn unknown(name: &str) -> WireError {
    let message = match Event::by_name(name) {
        Err(why) => why.to_string(),
        // It came up since the others were listed.
        Ok(_) => format!("{name} was not known a moment ago: try again"),
    };
    WireError { code: Code::NoEvent, message, near: Vec::new() }
}

fn refusal(why: &dormouse_events::Error) -> WireError {
    WireError { code: Code::Events, message: why.to_string(), near: Vec::new() }
}
