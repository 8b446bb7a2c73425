//! The result of a watch: its counts, the places in the code, and what they are worth.

use dormouse_sys::perf::Access;

/// The state of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchState {
    /// Armed on every thread, or, in turns, soon again.
    Armed,
    /// Disarmed for a while, because more hits came than its rate allows.
    Resting,
    /// Disarmed for good: dropped, at its maximum, a forked child's copy, or for
    /// [`Coverage::over_because`].
    Over,
}

/// The result of a watch so far.
#[derive(Debug, Clone)]
pub struct WatchReport {
    /// Its name, or its address.
    pub name: String,
    /// The first byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
    /// The accesses that hit.
    pub access: Access,
    /// Hits by the kernel's count, which is exact.
    pub hits: u64,
    /// Hits whose signal came. Fewer than `hits` where threads block SIGTRAP: several hits are then
    /// one signal.
    pub delivered: u64,
    /// Delivered hits that passed the filters.
    pub passed: u64,
    /// Hits without a signal of their own.
    pub lost: u64,
    /// The places in the code, the most hits first.
    pub sites: Vec<WatchSite>,
    /// Hits of places that found no room in the table.
    pub other_sites: u64,
    /// Its state.
    pub state: WatchState,
    /// The meaning of "no hit".
    pub coverage: Coverage,
}

/// The coverage of a watch, so that "no hit" means something.
///
/// Beside this: writes of the kernel (system calls), through other mappings of the page and by
/// devices are never seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// Threads that are armed of those that are alive.
    pub threads_armed: u32,
    /// Threads that are alive; 0 where a filter is in the way of the question.
    pub threads_alive: u32,
    /// Time for which it was armed, in nanoseconds.
    pub armed_ns: u64,
    /// Time since it was armed first, in nanoseconds.
    pub wall_ns: u64,
    /// How often it was disarmed because of its rate.
    pub rests: u32,
    /// Signals that came late, because their thread blocked SIGTRAP: their instruction is unknown.
    pub late: u64,
    /// Hits whose value could not be read: the page had gone, or a filter is in the way.
    pub unread: u64,
    /// Single hits that found the stream full.
    pub dropped: u64,
    /// Of a watch of a group: how often a task of the group came to a thread that could not be
    /// armed. ([`Self::threads_armed`] are those that have run the group's tasks.)
    pub unarmed: u64,
    /// The most frequent reason for that.
    pub unarmed_because: Option<&'static str>,
    /// The signal of hits, SIGTRAP, has another action by now than the library's: the program has
    /// replaced it, and what hits in the meantime ends the process, or goes to a handler that does
    /// not know of it. The watch is disarmed when that is found, at a report or when the keeper of
    /// watches has work.
    pub is_signal_taken: bool,
    /// The reason why the watch was disarmed for good before its time.
    pub over_because: Option<&'static str>,
}

/// A place in the code that hit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchSite {
    /// The address behind the instruction (of a watch of executions: the instruction's own); 0 for
    /// hits whose signal came late.
    pub ip: usize,
    /// The group of the task that ran, or 0.
    pub group: u32,
    /// How many hits passed the filters.
    pub hits: u64,
    /// The value before the last of them, as far as it is known: the last value seen.
    pub old: Option<u64>,
    /// The value after the last of them; none of executions, and where it could not be read
    /// ([`Coverage::unread`]).
    pub new: Option<u64>,
    /// The thread of the last of them.
    pub tid: u32,
    /// The task of the last of them, or 0.
    pub task: u64,
    /// The time of the last of them by `CLOCK_MONOTONIC`, in nanoseconds.
    pub mono_ns: u64,
    /// The stack of the first of them: return addresses by frame pointers, the caller's first.
    pub stack: Vec<usize>,
}

/// One hit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchHit {
    /// As [`WatchSite::ip`].
    pub ip: usize,
    /// The group of the task that ran, or 0.
    pub group: u32,
    /// The thread.
    pub tid: u32,
    /// The task, or 0.
    pub task: u64,
    /// The time by `CLOCK_MONOTONIC`, in nanoseconds.
    pub mono_ns: u64,
    /// As [`WatchSite::old`].
    pub old: Option<u64>,
    /// As [`WatchSite::new`].
    pub new: Option<u64>,
    /// Return addresses by frame pointers, the caller's first.
    pub stack: Vec<usize>,
}
