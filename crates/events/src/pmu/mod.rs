//! What can be counted, and the units that count it.
//!
//! A PMU knows, for the thread that asks, how often its events have happened so far. It never knows about
//! tasks: whoever wants a task's share reads before and after, and subtracts.
//!
//! Events of one PMU are read together, because the price is often one for all of them: one `getrusage`
//! gives context switches and page faults.
//!
//! | PMU | events | of another thread |
//! |---|---|---|
//! | `clock` | task-clock | its clock, by the kernel |
//! | `software` | context-switches, page-faults, major-faults | `/proc/self/task` |
//! | `processor` | cpu-migrations, a lower bound | what it has noticed |
//! | `perf` | what the processor counts; cpu-migrations-exact | its descriptor |
//! | `alloc` | alloc-count, alloc-bytes, free-bytes, alloc-peak | its cells |
//! | `user` | the program's own | its cells |
//! | `breakpoint` | hits | its cells |

pub mod alloc;
pub mod breakpoint;
mod cells;
mod clock;
mod counting;
mod known;
pub mod perf;
mod scale;
mod software;
pub mod user;

use std::fmt;

use dormouse_sys::thread::ThreadBlock;

pub use counting::CountingPmu;
pub use known::{Availability, available, capability};
pub use scale::Times;

use crate::error::Error;

/// A unit that counts events of threads.
///
/// Implementations are read at switches, on any thread at any time: [`Pmu::read`] and [`Pmu::times`] take no lock,
/// allocate nothing and do not panic. The rest is for who chooses counters and who looks at other threads.
pub trait Pmu: fmt::Debug + Send + Sync {
    /// Its name, as `software`; two PMUs that differ in anything have different names or addresses.
    fn name(&self) -> &'static str;

    /// Reads what the calling thread has counted so far of each of `events`, into the same places of
    /// `values`. On one thread a count never goes back.
    fn read(&self, events: &[u32], values: &mut [u64]);

    /// Somebody begins to count `events` in this process: what a thread needs for them it gets at its next
    /// [`Pmu::read`]. To be called once for each [`Pmu::end`]; who reads without it may find nothing counted.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`]; then nothing has begun.
    fn begin(&self, _events: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    /// Whoever began to count `events` counts them no longer. For the last one, what threads had for them is given
    /// back before this returns.
    fn end(&self, _events: &[u32]) {}

    /// As [`Pmu::read`], for another thread and without its help; false where that is not to be had, then
    /// `values` mean nothing. Whoever asks makes sure afterwards that the block is still that
    /// thread's ([`ThreadBlock::start`]).
    ///
    /// # Cost
    ///
    /// Up to a few system calls, and allocations.
    fn read_of(&self, _thread: &ThreadBlock, _events: &[u32], _values: &mut [u64]) -> bool {
        false
    }

    /// How long each of `events` was on for the calling thread, and how long of that it was counted, as of its last
    /// [`Pmu::read`], which has scaled the values accordingly. False if this unit counts all the time; then `times`
    /// are left alone. Only differences count.
    fn times(&self, _events: &[u32], _times: &mut [Times]) -> bool {
        false
    }

    /// How long `event` was on for all threads of the process together, and how long of that it was counted, as of their
    /// last reads; none for a unit that counts all the time. What a group shows as the time for which its events were
    /// counted is in this proportion.
    ///
    /// # Cost
    ///
    /// A look at every thread's account of it.
    fn share(&self, _event: u32) -> Option<Times> {
        None
    }

    /// What is counted.
    fn unit(&self, _event: u32) -> Unit {
        Unit::Times
    }

    /// What the count leaves out, as "user mode only".
    fn note(&self, _event: u32) -> Option<&'static str> {
        None
    }

    /// Why the event is not to be had here, and what would change it.
    fn why_not(&self, _event: u32) -> Option<String> {
        None
    }
}

/// What a count is a count of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Of happenings.
    Times,
    /// Of nanoseconds.
    Nanoseconds,
    /// Of bytes.
    Bytes,
}

impl Unit {
    /// As it stands behind a number: `ns`, `bytes`, or nothing.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Times => "",
            Self::Nanoseconds => "ns",
            Self::Bytes => "bytes",
        }
    }
}

/// From now on others find what the calling thread counts by itself, whether it has read it yet or not.
pub(crate) fn show() {
    cells::shown(|_| ());
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

    /// Event `number` of `pmu`, known as `name`.
    pub const fn new(name: &'static str, pmu: &'static dyn Pmu, number: u32) -> Self {
        Self { name, pmu, number }
    }

    /// The event of that name: the library's own, a counter of the program that has been used, a breakpoint that has
    /// a name.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] with the reason when it is not to be had here, [`Error::Unknown`] with the names that
    /// are nearest.
    pub fn by_name(name: &str) -> Result<Self, Error> {
        let Some(event) = known::all().find(|event| event.name == name) else {
            return Err(Error::Unknown { event: name.to_owned(), advice: known::advice(name) });
        };
        match event.pmu.why_not(event.number) {
            None => Ok(event),
            Some(reason) => Err(Error::Unavailable { event: name.to_owned(), reason }),
        }
    }

    /// The name, as perf and `dormouse stat -e` spell it.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// What its counts are counts of.
    pub fn unit(self) -> Unit {
        self.pmu.unit(self.number)
    }

    /// What its counts leave out.
    pub fn note(self) -> Option<&'static str> {
        self.pmu.note(self.number)
    }

    /// Who counts it.
    pub fn pmu(self) -> &'static dyn Pmu {
        self.pmu
    }

    /// Its number there.
    pub fn number(self) -> u32 {
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
