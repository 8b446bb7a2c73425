//! Events, and the interface of the units that count them.

use std::fmt;

use dormouse_keys::Key;
use dormouse_sys::thread::ThreadBlock;

use super::scale::Times;
use crate::error::Error;

/// A unit that counts events for each thread.
///
/// Implementations are read at switches, on any thread at any time: [`Pmu::read`] takes no lock,
/// allocates nothing and does not panic. The other functions serve the choice of counters and reads
/// of other threads.
pub trait Pmu: fmt::Debug + Send + Sync {
    /// Its name, such as `software`. Two different PMUs have different names or addresses.
    fn name(&self) -> &'static str;

    /// Reads the calling thread's count of each of `events` into the same places of
    /// `values`. On one thread a count never goes back.
    fn read(&self, events: &[u32], values: &mut [u64]);

    /// Somebody begins to count `events` in this process: a thread gets what it needs for them at
    /// its next [`Pmu::read`]. Each call is paired with one of [`Pmu::end`]; a read without it may
    /// find nothing counted.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`]; then nothing has begun.
    fn begin(&self, _events: &[u32]) -> Result<(), Error> {
        Ok(())
    }

    /// Undoes one [`Pmu::begin`]. After the last one, threads have given back all that they had for
    /// `events` before this returns.
    fn end(&self, _events: &[u32]) {}

    /// The keys that one [`Pmu::begin`] keeps on until its [`Pmu::end`].
    fn keys(&self) -> Vec<&'static Key> {
        Vec::new()
    }

    /// Whether [`Pmu::sched_in`] and [`Pmu::sched_out`] are called when threads enter and leave
    /// contexts that count its events. The answer never changes.
    fn is_scheduled(&self) -> bool {
        false
    }

    /// The calling thread begins to charge a context or a task that counts `events`; maybe they are
    /// in already. Called in a switch, as [`Pmu::read`] is, and after the counters were read.
    fn sched_in(&self, _events: &[u32]) {}

    /// The calling thread comes to an event set that differs, or ends. Called before the counters
    /// are read. The end of a task is no reason: events stay in until the next task comes, so that
    /// tasks of one context in a row cost nothing. They may have ended meanwhile ([`Pmu::end`]).
    fn sched_out(&self, _events: &[u32]) {}

    /// Does what [`Pmu::read`] does for another thread, without that thread's help. Returns false
    /// where that is impossible; `values` mean nothing then. The caller checks afterwards that the
    /// block still belongs to that thread ([`ThreadBlock::start`]).
    ///
    /// # Cost
    ///
    /// Up to a few system calls, and allocations.
    fn read_of(&self, _thread: &ThreadBlock, _events: &[u32], _values: &mut [u64]) -> bool {
        false
    }

    /// How long `event` was on for all threads of the process together, and how long of that it was
    /// counted up to their last reads; none for a unit that counts all the time. The running time
    /// that a group shows for its events is in this proportion.
    ///
    /// # Cost
    ///
    /// A reading of every thread's account of it.
    fn share(&self, _event: u32) -> Option<Times> {
        None
    }

    /// The unit of the count.
    fn unit(&self, _event: u32) -> Unit {
        Unit::Times
    }

    /// The note on what the count leaves out, such as "user mode only".
    fn note(&self, _event: u32) -> Option<&'static str> {
        None
    }

    /// Why the event is unavailable here, and what would change it.
    fn why_not(&self, _event: u32) -> Option<String> {
        None
    }
}

/// The unit of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// A number of occurrences.
    Times,
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
}

impl Unit {
    /// The text that follows a number in this unit: `ns`, `bytes`, or nothing.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Times => "",
            Self::Nanoseconds => "ns",
            Self::Bytes => "bytes",
        }
    }
}

/// Something that happens and can be counted.
#[derive(Clone, Copy)]
pub struct Event {
    name: &'static str,
    pmu: &'static dyn Pmu,
    number: u32,
}

impl Event {
    /// Event `number` of `pmu`, with the name `name`.
    pub const fn new(name: &'static str, pmu: &'static dyn Pmu, number: u32) -> Self {
        Self { name, pmu, number }
    }

    /// The name, as perf and `dormouse stat -e` spell it.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The unit of the event's counts.
    pub fn unit(self) -> Unit {
        self.pmu.unit(self.number)
    }

    /// A note on what the event's counts leave out.
    pub fn note(self) -> Option<&'static str> {
        self.pmu.note(self.number)
    }

    /// The unit that counts the event.
    pub fn pmu(self) -> &'static dyn Pmu {
        self.pmu
    }

    /// The event's number within its PMU.
    pub fn number(self) -> u32 {
        self.number
    }
}

/// Whether they are one and the same. PMUs without fields may share an address, so the name counts
/// too.
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
