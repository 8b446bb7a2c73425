//! The events that groups count for a client, by name.
//!
//! Groups count nothing unless it is requested, because counting costs time at each switch. The
//! agent counts for a client while the client is connected, just as it holds the leases of `on`.

use dormouse_events::{Count, Counting, Event};
use dormouse_keys::Key;
use dormouse_protocol::{Code, CountAnswer, CountRow, CountedCpu, EventInfo, WireError};

use super::history;
use crate::core::asleep::counts_stopped;
use crate::core::group::{Group, start_counting};
use crate::core::rows::{count_row, event_info};

/// One client's events, counted as long as this lives, and CPU time with them: each answer to
/// `stat` has it, whatever else the client asked for.
#[derive(Debug)]
pub(crate) struct ClientEvents {
    events: Vec<Event>,
    /// `None`: it wants nothing counted.
    counting: Option<Counting>,
    /// CPU time when that began.
    before: CountedCpu,
    /// How often counts had been suspended by then.
    stopped: u64,
}

/// All events by name, as the agent lists them for clients, with the reason if this process cannot
/// count one.
#[doc(hidden)]
pub fn countable_events() -> Vec<EventInfo> {
    dormouse_events::available().into_iter().map(event_info).collect()
}

impl ClientEvents {
    /// Starts counting those of `names` that can be counted. A name that is no event refuses all.
    pub(crate) fn start_counting(names: &[String]) -> Result<(Self, CountAnswer), WireError> {
        let known = countable_events();
        let find = |name: &String| known.iter().find(|event| event.name == *name).cloned();
        history::begin();
        let asked: Result<Vec<EventInfo>, WireError> =
            names.iter().map(|name| find(name).ok_or_else(|| unknown(name))).collect();
        let (counted, refused): (Vec<_>, Vec<_>) = asked?.into_iter().partition(|e| e.unavailable.is_none());
        let events: Result<Vec<Event>, _> = counted.iter().map(|event| Event::by_name(&event.name)).collect();
        let events = events.map_err(wire_error)?;
        let counting = if names.is_empty() {
            None
        } else {
            let all: Vec<Event> = events.iter().copied().chain([Event::TASK_CLOCK]).collect();
            if !Counting::leaves_room(&all) {
                let message = "clients can have no further set of events counted: half of those that the service can \
                               count in its life are taken; ask for one that was counted before";
                return Err(WireError::new(Code::Events, message));
            }
            Some(start_counting(&all).map_err(wire_error)?)
        };
        let stopped = counts_stopped();
        let before = if counting.is_some() { cpu() } else { CountedCpu::default() };
        Ok((Self { events, counting, before, stopped }, CountAnswer { counted, refused }))
    }

    /// The part of that CPU time that was used since it is counted for the client; `None` if counts
    /// were asleep since then, because the groups lack some.
    pub(crate) fn since(&self, now: CountedCpu) -> Option<CountedCpu> {
        self.counting.as_ref().filter(|_| self.stopped == counts_stopped())?;
        let CountedCpu { process_ns, groups_ns } = now.since(self.before);
        // The two were not read at the same moment.
        Some(CountedCpu { process_ns, groups_ns: groups_ns.min(process_ns) })
    }

    /// The same events without task-clock, which CPU time contains already.
    pub(crate) fn without_clock(mut self) -> Self {
        self.events.retain(|event| *event != Event::TASK_CLOCK);
        self
    }

    /// Whether the client has named an event that is counted. Task-clock is one, too: an answer has
    /// its count beside the CPU time, with the time for which it was counted.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether anything is counted for the client, and so CPU time is.
    pub(crate) fn is_counting(&self) -> bool {
        self.counting.is_some()
    }

    /// The keys that it keeps on, each once for each lease.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.counting.iter().flat_map(Counting::keys)
    }

    /// The names of what is counted for the client.
    pub(crate) fn names(&self) -> Vec<String> {
        let clock = self.is_counting().then_some(Event::TASK_CLOCK);
        let others = self.events.iter().copied().filter(|event| *event != Event::TASK_CLOCK);
        clock.into_iter().chain(others).map(|event| event.name().to_owned()).collect()
    }

    /// The counts of a group that belong to these events, in their order.
    pub(crate) fn of(&self, counts: &[Count]) -> Vec<CountRow> {
        let of = |event| counts.iter().find(|count| count.event == event).map(count_row);
        self.events.iter().copied().filter_map(of).collect()
    }
}

/// CPU time so far.
fn cpu() -> CountedCpu {
    let groups_ns = Group::read_all(false).iter().map(|(row, _)| row.cpu_ns).sum();
    CountedCpu { process_ns: dormouse_clock::process_cpu_ns(), groups_ns }
}

fn unknown(name: &str) -> WireError {
    let message = match Event::by_name(name) {
        Err(why) => why.to_string(),
        // It came up since the others were listed.
        Ok(_) => format!("{name} was not known a moment ago: try again"),
    };
    WireError::new(Code::NoEvent, message)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn wire_error(why: dormouse_events::Error) -> WireError {
    WireError::new(Code::Events, why.to_string())
}
