//! All events by name, and which of them are available here.

use dormouse_sys::{Capability, likeness};

use super::event::{Event, Unit};
use super::{alloc, breakpoint, perf, user};
use crate::error::Error;

impl Event {
    /// The event of that name: one of the library's own, a counter of the program that has been
    /// used, or a named breakpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] with the reason if the event is unavailable here; [`Error::Unknown`]
    /// with the nearest names if there is none.
    pub fn by_name(name: &str) -> Result<Self, Error> {
        let Some(event) = all().find(|event| event.name() == name) else {
            return Err(Error::Unknown { event: name.to_owned(), advice: advice(name) });
        };
        match event.pmu().why_not(event.number()) {
            None => Ok(event),
            Some(reason) => Err(Error::Unavailable { event: name.to_owned(), reason }),
        }
    }
}

/// The library's own.
const OWN: [Event; 5] = [
    Event::TASK_CLOCK,
    Event::CONTEXT_SWITCHES,
    Event::CPU_MIGRATIONS,
    Event::PAGE_FAULTS,
    Event::MAJOR_FAULTS,
];

/// An event and its availability, for a program that lets its user choose.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Availability {
    /// The event's name.
    pub name: &'static str,
    /// The unit of the event's counts.
    pub unit: Unit,
    /// The PMU that counts the event.
    pub pmu: &'static str,
    /// A note on what the event's counts leave out.
    pub note: Option<&'static str>,
    /// Why the event is unavailable here, and what would change that; `None` if it is available.
    pub why_not: Option<String>,
}

/// All events that have names: the library's own, counters of the program that have been used, and
/// named breakpoints.
///
/// # Cost
///
/// A few system calls for each event that the kernel may refuse.
pub fn available() -> Vec<Availability> {
    let availability = |event: Event| Availability {
        name: event.name(),
        unit: event.unit(),
        pmu: event.pmu().name(),
        why_not: event.pmu().why_not(event.number()),
        note: event.note(),
    };
    all().map(availability).collect()
}

fn all() -> impl Iterator<Item = Event> {
    OWN.into_iter().chain(perf::KNOWN).chain(alloc::EVENTS).chain(user::known()).chain(breakpoint::known())
}

/// Names to write instead of `name`.
fn advice(name: &str) -> String {
    let names: Vec<_> = all().map(Event::name).collect();
    let mut near: Vec<_> =
        names.iter().map(|known| (likeness(known, name), *known)).filter(|near| near.0 > 0.7).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    near.truncate(3);
    if near.is_empty() {
        format!("known are {}", names.join(", "))
    } else {
        let near: Vec<_> = near.into_iter().map(|near| near.1).collect();
        format!("did you mean {}?", near.join(" or "))
    }
}

/// The section of `dormouse doctor` on events.
pub fn capability() -> Vec<Capability> {
    let of = |name, ok: &'static str, event: Event| match event.pmu().why_not(event.number()) {
        Some(reason) => Capability::unavailable(name, reason),
        None => match event.note() {
            Some(note) => Capability::limited(name, note),
            None => Capability::ok(name, ok),
        },
    };
    let [cycles, .., migrations] = perf::KNOWN;
    let mut report = vec![
        Capability::ok("events.task-clock", "from the thread's clock"),
        Capability::ok("events.software", "context-switches, page-faults, major-faults: getrusage"),
        of("events.cpu-migrations", "seen by reads", Event::CPU_MIGRATIONS),
        of("events.cpu-migrations-exact", "a descriptor for each thread", migrations),
        of("events.hardware", "a descriptor for each thread and event", cycles),
        of("events.alloc", "dormouse::Alloc is the global allocator", Event::ALLOC_COUNT),
    ];
    let refusals = perf::refusals().into_iter();
    report.extend(refusals.map(|(reason, threads)| {
        Capability::limited("events.refused", format!("{threads} descriptors of threads: {reason}"))
    }));
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(event: Event) -> u64 {
        let mut value = [0];
        event.pmu().read(&[event.number()], &mut value);
        value[0]
    }

    #[test]
    fn an_unknown_name_is_refused_with_advice() {
        assert_eq!(Event::by_name("page-faults"), Ok(Event::PAGE_FAULTS));
        for (name, meant) in
            [("page-fault", "did you mean page-faults"), ("sneezes", "known are task-clock, ")]
        {
            match Event::by_name(name) {
                Err(Error::Unknown { event, advice }) => {
                    assert!(event == name && advice.contains(meant), "{advice}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn each_event_is_available_or_has_a_reason() {
        let list = available();
        for (i, one) in list.iter().enumerate() {
            assert!(list[..i].iter().all(|other| other.name != one.name), "{} twice", one.name);
            match (Event::by_name(one.name), &one.why_not) {
                (Ok(event), None) => assert_eq!((event.unit(), event.note()), (one.unit, one.note)),
                (Err(Error::Unavailable { reason, .. }), Some(why_not)) => assert_eq!(&reason, why_not),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn events_of_units_without_fields_differ() {
        for (i, a) in OWN.iter().enumerate() {
            for (j, b) in OWN.iter().enumerate() {
                assert_eq!(a == b, i == j, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn each_event_counts_what_it_is_named_after() {
        let events = [Event::TASK_CLOCK, Event::CONTEXT_SWITCHES, Event::PAGE_FAULTS, Event::MAJOR_FAULTS];
        let before = events.map(read);
        std::thread::sleep(std::time::Duration::from_millis(1));
        // Far above the allocator's threshold for a separate mapping, so its pages are new.
        let pages = 1000;
        let mut memory = vec![0_u8; pages * 4096];
        for page in memory.chunks_mut(4096) {
            page[0] = std::hint::black_box(1);
        }
        std::hint::black_box(&memory);
        let grown = |index: usize| read(events[index]) - before[index];
        assert!(grown(0) > 0, "task-clock");
        assert!(grown(1) > 0, "context-switches");
        // A huge page is one fault for 512 pages.
        assert!(grown(2) > 0, "page-faults");
        assert!(grown(3) <= grown(2), "major-faults");
    }
}
