//! Groups: named kinds of work, and their cost.

use std::fmt;
use std::time::Duration;

use dormouse_events::{Context, Count, Counting, Error, Event, Mode, Totals};
use dormouse_protocol::{GroupRow, LongLivedRow, ObjectiveRow, OutcomesRow};
use dormouse_waits::DroppedTask;

use crate::core::ends::{Ending, OUTCOMES, TaskOutcome, outcome_of, own_words};
use crate::core::long_lived::{LongSince, Said};
use crate::core::objectives::{ObjectiveCounts, OfGroup};
use crate::core::own_probes;
use crate::core::record::floor_char_boundary;
use crate::core::registry::{Inner, Registry};
use crate::core::tasks::{self, Origin, TaskTotals};

/// How many bytes of a name are kept. Names may come from what a client sends, and are never freed.
pub const MAX_NAME: usize = 128;

/// A named kind of work, such as `GET /menu` or `compaction`. Its tasks (futures, scopes, threads)
/// are charged to it.
///
/// A handle is one word and freely copied. A group lives as long as the process, so that its totals
/// never decrease. A process has at most [`MAX_GROUPS`](crate::MAX_GROUPS), and a group takes three
/// kilobytes, or more once the process counts its fifteenth different event: name groups by kind of
/// work, never by request. A name is cut to [`MAX_NAME`](crate::MAX_NAME) bytes, at the end of a
/// character. Names that differ only after that are one group.
///
/// ```
/// use dormouse::Group;
///
/// let menu = Group::new("GET /menu");
/// menu.scope(|| { /* charged to it */ });
/// assert_eq!(Group::new("GET /menu"), menu);
/// assert_eq!((menu.name(), menu.read().finished), ("GET /menu", 1));
/// ```
#[derive(Clone, Copy)]
pub struct Group(pub(crate) &'static Inner);

/// The cost of a group so far; see [`Group::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStat {
    /// The group's number in records.
    pub id: u32,
    /// The group's name.
    pub name: &'static str,
    /// CPU time of the group's tasks while task-clock was counted, without that of groups nested in
    /// them. Tasks that are running now are included.
    pub cpu: Duration,
    /// Polls of the group's futures and entries of its scopes and threads, while anything was
    /// counted.
    pub entries: u64,
    /// Polls of the group's futures, and switches to its tasks ([`Task::switch_to`](crate::Task)),
    /// while anything was counted.
    pub polls: u64,
    /// Tasks that ended and were not part of another: those that began where the group was not
    /// current. Work that a request hands on (`spawn_blocking`, `JoinSet`, threads,
    /// [`carry`](crate::carry)) is a part of that request. A [connection](Group::connection) is no
    /// request, nor is any other task that [lives for long](Group::long_lived).
    pub requests: u64,
    /// How these requests ended.
    pub outcomes: OutcomesRow,
    /// The number of tasks alive now.
    pub alive: u64,
    /// The number of those that live for long: connections, streams, upgraded connections.
    pub long_lived: u64,
    /// The number of tasks that have begun.
    pub started: u64,
    /// The number of tasks that ended, were dropped or panicked.
    pub finished: u64,
}

static REGISTRY: Registry = Registry::new();

impl Group {
    /// The group of that name, always the same for one name.
    ///
    /// # Cost
    ///
    /// A look-up in a table; for a new name some allocations. It never waits, whatever the process
    /// counts or reads meanwhile.
    pub fn new(name: &str) -> Self {
        Self(REGISTRY.intern(cut(name)))
    }

    /// The group with that number; see [`Group::id`].
    ///
    /// # Cost
    ///
    /// A look-up in a table.
    pub fn by_id(id: u32) -> Option<Self> {
        REGISTRY.by_id(id).map(Self)
    }

    /// The innermost group that is current on this thread.
    ///
    /// # Cost
    ///
    /// A read of a thread-local and of a table. No lock, unless contexts of the program's own have
    /// taken so many numbers that the group's is past [`MAX_GROUPS`](crate::MAX_GROUPS).
    pub fn current() -> Option<Self> {
        Self::by_id(dormouse_events::current_context())
    }

    /// All groups, in order of creation.
    pub fn all() -> Vec<Self> {
        REGISTRY.all().into_iter().map(Self).collect()
    }

    /// An upper bound of the number of groups, by one load.
    #[doc(hidden)]
    pub fn most() -> usize {
        REGISTRY.most()
    }

    /// The group's name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The group's number in records; never reused in a process.
    pub fn id(self) -> u32 {
        self.0.context.id()
    }

    /// Sets whether the requests of this group live for long: `true` for those that are streams or
    /// connections from their beginning, so that they are no [requests](GroupStat::requests) and
    /// have no latency; `false` for those that are requests, whatever their responses look like,
    /// such as completions of a language model, which come as server-sent events.
    ///
    /// Without this, the response decides: server-sent events, an upgrade, or a second message of
    /// gRPC.
    ///
    /// ```
    /// use dormouse::Group;
    ///
    /// // A stream of messages from the client, which is answered once it ends.
    /// Group::new("/chat.Chat/Upload").long_lived(true);
    /// Group::new("POST /completions").long_lived(false);
    /// ```
    pub fn long_lived(self, are_long: bool) {
        self.0.lives.say(are_long);
    }

    /// Starts counting `events` for this group; dropping the guard stops it. [`start_counting`]
    /// counts for all groups.
    ///
    /// # Errors
    ///
    /// See [`start_counting`].
    ///
    /// # Cost
    ///
    /// See [`start_counting`].
    pub fn start_counting(self, events: &[Event], mode: Mode) -> Result<Counting, Error> {
        Counting::of(self.0.context, events, mode)
    }

    /// Reads the totals of the group so far: CPU time, entries, tasks.
    ///
    /// # Cost
    ///
    /// Visits every thread's block, and makes a system call for each thread that runs one of the
    /// group's tasks at this moment. No lock.
    pub fn read(self) -> GroupStat {
        let totals = Context::read_all(&[self.0.context], false).pop();
        let row = self.row(&totals.unwrap_or_default());
        GroupStat {
            id: row.id,
            name: self.name(),
            cpu: Duration::from_nanos(row.cpu_ns),
            entries: row.entries,
            polls: row.polls,
            requests: row.requests,
            outcomes: row.outcomes.unwrap_or_default(),
            alive: row.alive,
            long_lived: row.long_lived.map_or(0, |of| of.tasks),
            started: row.started,
            finished: row.finished,
        }
    }

    /// Reads the counts of every event that was ever counted for this group.
    ///
    /// `value` is exclusive: it grows only while no other group is entered inside of this one, so
    /// that groups add up. `value + nested` is inclusive: `nested` is what groups entered inside of
    /// it counted of the same event, on the same thread, before the thread left them. Work that was
    /// handed on to other tasks counts for those.
    ///
    /// ```
    /// use dormouse::{Event, Group};
    ///
    /// let [route, database] = ["GET /orders", "database"].map(Group::new);
    /// let _counting = dormouse::start_counting(&[Event::TASK_CLOCK])?;
    /// route.scope(|| database.scope(|| { /* … */ }));
    /// let count = route.read_counts()[0];
    /// println!("{} ns by itself, {} with what it calls", count.value, count.value + count.nested);
    /// # assert_eq!(database.read_counts()[0].nested, 0);
    /// # Ok::<(), dormouse::events::Error>(())
    /// ```
    ///
    /// # Cost
    ///
    /// Reads the counters of each thread that runs one of the group's tasks at this moment: a
    /// system call for task-clock, more for other events.
    pub fn read_counts(self) -> Vec<Count> {
        self.0.context.read()
    }

    /// Reads how many of the group's requests have met and missed its objectives
    /// ([`Group::objective`]), whoever has set them.
    ///
    /// # Cost
    ///
    /// Reads a line of the cache for each two objectives.
    pub fn read_objectives(self) -> Vec<ObjectiveRow> {
        self.0.objectives.get().map_or_else(Vec::new, ObjectiveCounts::rows)
    }

    /// All groups, for objectives.
    pub(crate) fn all_of_groups() -> Vec<OfGroup> {
        REGISTRY.of_groups()
    }

    /// Reads all groups, in order of creation, and their counts if `counts` is true. Each thread is
    /// read once.
    pub(crate) fn read_all(counts: bool) -> Vec<(GroupRow, Vec<Count>)> {
        let groups = Self::all();
        let contexts: Vec<_> = groups.iter().map(|group| group.0.context).collect();
        let totals = Context::read_all(&contexts, counts);
        groups.into_iter().zip(totals).map(|(group, of)| (group.row(&of), of.counts)).collect()
    }

    /// How many tasks it has had.
    pub(crate) fn tasks(self) -> TaskTotals {
        self.0.tasks.read()
    }

    /// The row has no counts of events and no times: each client has its own.
    fn row(self, totals: &Totals) -> GroupRow {
        let tasks = self.tasks();
        GroupRow {
            id: self.id(),
            name: self.name().into(),
            cpu_ns: totals.cpu_ns,
            entries: totals.entries,
            polls: totals.polls,
            requests: tasks.requests(),
            outcomes: Some(outcomes_row(tasks.outcomes())),
            alive: tasks.alive(),
            started: tasks.started(),
            finished: tasks.finished(),
            counts: Vec::new(),
            waits: None,
            objectives: self.read_objectives(),
            blocking: self.0.pool_queue.read(),
            outliving: None,
            long_lived: Some(long_lived_row(tasks.long_lived())),
        }
    }

    /// Begins a task that is only a number, without times. It is a part of another task if
    /// `is_part`, or if its group is current.
    pub(crate) fn begin_task(self, is_part: bool) -> u64 {
        let is_part = is_part || dormouse_events::current_context() == self.id();
        self.begin_from(if is_part { Origin::Part } else { self.served() })
    }

    /// The origin of its tasks that come from outside.
    #[inline]
    pub(crate) fn served(self) -> Origin {
        if self.0.lives.said() == Said::Long { Origin::Connection } else { Origin::Request }
    }

    pub(crate) fn begin_from(self, origin: Origin) -> u64 {
        if cfg!(dormouse_off) {
            return 0;
        }
        let number = tasks::number(origin);
        self.begin_numbered(number, origin == Origin::Request);
        number
    }

    /// Begins a task that has its number from elsewhere.
    pub(crate) fn begin_numbered(self, number: u64, is_request: bool) {
        self.0.tasks.start(number);
        own_probes::task_begins(number, self.id(), is_request);
    }

    /// Ends a task that is only a number. If it is called twice for one task, the group has one
    /// task less than there are.
    pub(crate) fn end_task(self, number: u64) {
        if cfg!(dormouse_off) {
            return;
        }
        self.end_as(number, outcome_of(number, Ending::Completed), None);
    }

    /// Ends a task; `age_ns` is the age of a request whose times were taken, at its answer if it
    /// has one, and `dropped` how a cancelled one was dropped, if that is known.
    pub(crate) fn end_aged(
        self,
        number: u64,
        outcome: TaskOutcome,
        age_ns: Option<u64>,
        dropped: Option<DroppedTask>,
    ) {
        if let Some((age_ns, objectives)) = age_ns.zip(self.0.objectives.get()) {
            objectives.count(age_ns, outcome);
        }
        self.end_as(number, outcome, dropped);
    }

    /// Ends a task that has lived for long.
    pub(crate) fn end_long(self, number: u64, since: LongSince) {
        own_probes::task_ends(number, self.id(), None, None);
        self.0.tasks.long_life_ends(number, since);
    }

    pub(crate) fn end_as(self, number: u64, outcome: TaskOutcome, dropped: Option<DroppedTask>) {
        own_probes::task_ends(number, self.id(), Some(outcome), dropped);
        self.0.tasks.finish(number, outcome);
    }
}

fn long_lived_row((tasks, ages_s): (u64, u64)) -> LongLivedRow {
    let age_ns = ages_s.saturating_mul(1_000_000_000).checked_div(tasks);
    LongLivedRow { tasks, age_ns }
}

fn outcomes_row(of: [u64; OUTCOMES]) -> OutcomesRow {
    let [completed, client_error, error, cancelled, panicked, own @ ..] = of;
    let own = own_words().zip(own).filter(|(_, n)| *n > 0);
    let own = own.map(|(word, n)| (word.into(), n)).collect();
    OutcomesRow { completed, client_error, error, cancelled, panicked, own }
}

/// The part of a name that counts.
pub(crate) fn cut(name: &str) -> &str {
    &name[..floor_char_boundary(name, MAX_NAME)]
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Group").field(&self.name()).finish()
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Group {}

/// Starts counting `events` for all present and future groups; dropping the guard stops it.
/// ([`Counting::keep`] lets it go on to the end of the process.)
///
/// While nothing is counted, a switch between tasks reads no counter.
///
/// ```
/// use dormouse::{Event, Group};
///
/// let counting = dormouse::start_counting(&[Event::TASK_CLOCK, Event::PAGE_FAULTS])?;
/// Group::new("GET /menu").scope(|| { /* … */ });
/// for count in Group::new("GET /menu").read_counts() {
///     println!("{:?} {}", count.event, count.value);
/// }
/// drop(counting);
/// # Ok::<(), dormouse::events::Error>(())
/// ```
///
/// # Errors
///
/// If this process cannot count an event, if there are more events than it can count at once, or if
/// it cannot switch a static key. Then nothing has changed.
///
/// # Cost
///
/// A batch of one static key if nothing was counted before, a barrier for every processor, and for
/// each thread that runs a task a read of its counters from outside.
pub fn start_counting(events: &[Event]) -> Result<Counting, Error> {
    Counting::everywhere(events, Mode::GroupExact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_between_two_characters() {
        let long = "ä".repeat(MAX_NAME);
        assert_eq!(cut(&long), &long[..MAX_NAME]);
        assert_eq!(cut(&format!("a{long}")).len(), MAX_NAME - 1);
        assert_eq!(cut(&long[..MAX_NAME]).len(), MAX_NAME);
        let group = Group::new(&long);
        assert_eq!((group.name(), Group::new(&format!("{long}, and more"))), (cut(&long), group));
    }
}
