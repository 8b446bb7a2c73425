//! The result of a watch: its counts, the places in the code, and how complete they are.

use dormouse_sys::perf::Access;

use super::stack::HitStackEnd;

/// The state of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchState {
    /// Armed on every thread, or about to be, if it takes turns.
    Armed,
    /// Disarmed for a while, because more hits came than its rate allows.
    Resting,
    /// Disarmed for good: dropped, at its maximum, a forked child's copy, or for the reason in
    /// [`Coverage::over_because`].
    Over,
}

/// The result of a watch so far.
#[derive(Debug, Clone)]
pub struct WatchReport {
    /// The watch's name, or its address if it has none.
    pub name: String,
    /// The address of the first watched byte.
    pub addr: usize,
    /// The number of watched bytes.
    pub len: usize,
    /// The accesses that count as hits.
    pub access: Access,
    /// The number of hits by the kernel's count, which is exact unless it is
    /// [stale](Coverage::stale_because).
    pub hits: u64,
    /// The number of hits whose signal was delivered. Less than `hits` if threads block SIGTRAP:
    /// then several hits make one signal.
    pub delivered: u64,
    /// Delivered hits that passed the filters.
    pub passed: u64,
    /// The number of hits whose signal did not come. While the watch goes on this is a lower bound,
    /// because a signal may still be on its way. If it has not come 200 ms after a report that has
    /// counted the hit, the hit is lost.
    pub lost: u64,
    /// The places in the code, those with the most hits first.
    pub sites: Vec<WatchSite>,
    /// The number of hits at places for which the table had no room.
    pub other_sites: u64,
    /// The state of the watch.
    pub state: WatchState,
    /// How completely the watch could see accesses: the meaning of "no hit".
    pub coverage: Coverage,
}

/// The coverage of a watch, so that "no hit" has a meaning.
///
/// Besides, it never sees writes by the kernel (system calls), by devices, or through other
/// mappings of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// The number of armed threads among those that are alive.
    pub threads_armed: u32,
    /// The number of threads that are alive; 0 if a filter, or a lack of memory, prevents listing
    /// them.
    pub threads_alive: u32,
    /// The time for which the watch was armed, in nanoseconds.
    pub armed_ns: u64,
    /// The time since the watch was first armed, in nanoseconds.
    pub wall_ns: u64,
    /// How often the watch was disarmed because of its rate, or for [`Self::unpassed`].
    pub rests: u32,
    /// The number of signals that came late because their thread blocked SIGTRAP: their instruction
    /// is unknown.
    pub late: u64,
    /// The number of hits whose value could not be read: the page had gone, or a filter is in the
    /// way.
    pub unread: u64,
    /// The number of single hits that found the stream full.
    pub dropped: u64,
    /// For processors that stop a thread before the access (arm64): how often this was one that
    /// nobody can make in the thread's stead, such as the second of an exclusive pair (`stxr`).
    /// Then the watch rests, so that the thread can pass. The value after it is unknown.
    pub unpassed: u64,
    /// For a watch of a group: how often a task of the group came to a thread that could not be
    /// armed. ([`Self::threads_armed`] then counts threads that have run the group's tasks.)
    pub unarmed: u64,
    /// The most frequent reason why a thread could not be armed.
    pub unarmed_because: Option<&'static str>,
    /// Whether SIGTRAP now has another action than the library's: the program has replaced it, and
    /// until the watch is disarmed a hit ends the process, or goes to a handler that does not
    /// expect it. The watch is disarmed when that is detected, at a report or when the keeper of
    /// watches has work.
    pub is_signal_taken: bool,
    /// Why the watch was disarmed for good before its time, or `None`.
    pub over_because: Option<&'static str>,
    /// Why the kernel's counts could not be read now: then [`WatchReport::hits`] and
    /// [`WatchReport::lost`] are lower bounds, and the state, times and rests are those of the last
    /// reading. `None` if they were read.
    pub stale_because: Option<&'static str>,
}

/// A place in the code that accessed the watched memory, with its hits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchSite {
    /// The address after the instruction (on arm64, and for a watch of executions, that of the
    /// instruction itself); 0 for hits whose signal came late.
    pub ip: usize,
    /// The number of the group of the task that ran, or 0.
    pub group: u32,
    /// The number of hits that passed the filters.
    pub hits: u64,
    /// The value before the last of these hits, if it is known: the value that the watch had seen
    /// last. Of a variable longer than 8 bytes: the value of those 1 to 8 bytes that were hit,
    /// which one register watches.
    pub old: Option<u64>,
    /// The value of the same bytes after the last of these hits; `None` for executions, and if it
    /// could not be read ([`Coverage::unread`]).
    pub new: Option<u64>,
    /// The id of the thread of the last of these hits.
    pub tid: u32,
    /// The number of the task of the last of these hits, or 0.
    pub task: u64,
    /// The time of the last of these hits by `CLOCK_MONOTONIC`, in nanoseconds.
    pub mono_ns: u64,
    /// The stack of the first of these hits: return addresses, the caller's first, at most 128. Of
    /// a later one, if functions of the first had not been met before.
    pub stack: Vec<usize>,
    /// How many of these lie before those that are left out, if some are; else their number.
    pub inner: usize,
    /// How far the stack leads.
    pub end: HitStackEnd,
}

/// One access to the watched memory that passed the filters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchHit {
    /// See [`WatchSite::ip`].
    pub ip: usize,
    /// The number of the group of the task that ran, or 0.
    pub group: u32,
    /// The id of the thread.
    pub tid: u32,
    /// The number of the task, or 0.
    pub task: u64,
    /// The time by `CLOCK_MONOTONIC`, in nanoseconds.
    pub mono_ns: u64,
    /// See [`WatchSite::old`].
    pub old: Option<u64>,
    /// See [`WatchSite::new`].
    pub new: Option<u64>,
    /// Return addresses, the caller's first.
    pub stack: Vec<usize>,
    /// See [`WatchSite::inner`].
    pub inner: usize,
    /// See [`WatchSite::end`].
    pub end: HitStackEnd,
}
