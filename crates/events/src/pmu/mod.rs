//! What can be counted, and the units that count it.
//!
//! A PMU knows, for the thread that asks, how often its events have happened so far. It never knows about
//! tasks: whoever wants a task's share reads before and after, and subtracts.
//!
//! Events of one PMU are read together, because the price is often one for all of them: one `getrusage`
//! gives context switches and page faults.

mod clock;
mod counting;
mod hardware;
mod software;
pub mod user;

use std::fmt;

use dormouse_sys::Capability;

pub use counting::CountingPmu;

use crate::error::Error;

/// A unit that counts events of threads.
///
/// Implementations may be read from any thread at any time, and are read at switches: no locks, no
/// allocation, no panic.
pub trait Pmu: fmt::Debug + Send + Sync {
    /// Its name, as `software`; two PMUs that differ in anything have different names or addresses.
    fn name(&self) -> &'static str;

    /// Reads what the calling thread has counted so far of each of `events`, into the same places of
    /// `values`. On one thread a count never goes back.
    fn read(&self, events: &[u32], values: &mut [u64]);
}

/// Something that happens and can be counted.
#[derive(Clone, Copy)]
pub struct Event {
    name: &'static str,
    pmu: &'static dyn Pmu,
    number: u32,
}

impl Event {
    /// CPU time of the thread, in nanoseconds.
    pub const TASK_CLOCK: Self = Self::new("task-clock", &clock::ThreadClock, 0);
    /// Voluntary and involuntary context switches of the thread.
    pub const CONTEXT_SWITCHES: Self =
        Self::new("context-switches", &software::Usage, software::CONTEXT_SWITCHES);
    /// Page faults of the thread, minor and major.
    pub const PAGE_FAULTS: Self = Self::new("page-faults", &software::Usage, software::PAGE_FAULTS);
    /// Page faults that read from a disk.
    pub const MAJOR_FAULTS: Self = Self::new("major-faults", &software::Usage, software::MAJOR_FAULTS);
    /// Moves of the thread to another processor, as far as two reads show them: a lower bound.
    pub const CPU_MIGRATIONS: Self = Self::new("cpu-migrations", &software::Processor, 0);

    const ALL: [Self; 5] = [
        Self::TASK_CLOCK,
        Self::CONTEXT_SWITCHES,
        Self::CPU_MIGRATIONS,
        Self::PAGE_FAULTS,
        Self::MAJOR_FAULTS,
    ];

    /// Event `number` of `pmu`, known as `name`.
    pub const fn new(name: &'static str, pmu: &'static dyn Pmu, number: u32) -> Self {
        Self { name, pmu, number }
    }

    /// The event of that name; the reason when it is not to be had here. (User counters give their own:
    /// [`user::Counter::event`].)
    pub fn by_name(name: &str) -> Result<Self, Error> {
        if let Some(&event) = Self::ALL.iter().find(|event| event.name == name) {
            return Ok(event);
        }
        if hardware::NAMES.contains(&name) {
            return Err(Error::Unavailable { event: name.to_owned(), reason: hardware::why_not() });
        }
        let known = Self::ALL.iter().map(|event| event.name).chain(hardware::NAMES.iter().copied());
        Err(Error::Unknown { event: name.to_owned(), known: known.collect::<Vec<_>>().join(", ") })
    }

    /// The name, as perf and `dormouse stat -e` spell it.
    pub fn name(self) -> &'static str {
        self.name
    }

    pub(crate) fn pmu(self) -> &'static dyn Pmu {
        self.pmu
    }

    pub(crate) fn number(self) -> u32 {
        self.number
    }
}

/// Whether they are one and the same. PMUs without fields may share an address, so the name counts too.
pub(crate) fn same(a: &dyn Pmu, b: &dyn Pmu) -> bool {
    std::ptr::addr_eq(a, b) && a.name() == b.name()
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && same(self.pmu, other.pmu)
    }
}

impl Eq for Event {}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({}/{}, {})", self.pmu.name(), self.number, self.name)
    }
}

/// What `dormouse doctor` says of the events.
pub fn capability() -> Vec<Capability> {
    let mut report = vec![
        Capability::ok("events.task-clock", "from the thread's clock"),
        Capability::ok("events.software", "context-switches, page-faults, major-faults: getrusage"),
        Capability::limited("events.cpu-migrations", "a lower bound: moves between two reads count as one"),
    ];
    report.push(Capability::unavailable("events.hardware", hardware::why_not()));
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
    fn an_event_is_had_by_its_name_or_refused_with_the_reason() {
        assert_eq!(Event::by_name("page-faults"), Ok(Event::PAGE_FAULTS));
        let refused = Event::by_name("cycles").unwrap_err().to_string();
        assert!(refused.starts_with("cycles is unavailable: "), "{refused}");
        let unknown = Event::by_name("sneezes").unwrap_err().to_string();
        assert!(unknown.contains("sneezes") && unknown.contains("task-clock"), "{unknown}");
    }

    #[test]
    fn events_of_units_without_fields_differ() {
        for (i, a) in Event::ALL.iter().enumerate() {
            for (j, b) in Event::ALL.iter().enumerate() {
                assert_eq!(a == b, i == j, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn each_event_counts_what_it_is_named_after() {
        let before = Event::ALL.map(read);
        std::thread::sleep(std::time::Duration::from_millis(1));
        // Far above the allocator's threshold for a mapping of its own, so its pages are new.
        let pages = 1000;
        let mut memory = vec![0_u8; pages * 4096];
        for page in memory.chunks_mut(4096) {
            page[0] = std::hint::black_box(1);
        }
        std::hint::black_box(&memory);
        let grown = |index: usize| read(Event::ALL[index]) - before[index];
        assert!(grown(0) > 0, "task-clock");
        assert!(grown(1) > 0, "context-switches");
        // A huge page is one fault for 512 pages.
        assert!(grown(3) > 0, "page-faults");
        assert!(grown(4) <= grown(3), "major-faults");
    }
}
