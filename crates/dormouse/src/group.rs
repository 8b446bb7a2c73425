//! Groups: named work, with what it costs.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use dormouse_events::{Context, Count, Counting, Error, Event, Kind, Mode};

use crate::instrument::{Entered, Instrumented, Task};
use crate::tasks::{self, Tasks};

/// How many groups a process can have. Names beyond that share the group `other`.
pub const MAX_GROUPS: usize = 1024;

/// The group of names beyond [`MAX_GROUPS`].
const OTHER: &str = "other";

/// A named kind of work: `GET /menu`, `compaction`. Its tasks (futures, scopes, threads) are charged to it.
///
/// A handle is one word and is copied freely. A group lives as long as the process, so that its totals
/// never go back; there are at most [`MAX_GROUPS`]. Name groups by kind of work, never by request.
#[derive(Clone, Copy)]
pub struct Group(&'static Inner);

#[derive(Debug)]
struct Inner {
    name: &'static str,
    context: &'static Context,
    tasks: Tasks,
}

/// What a group has cost so far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStat {
    /// The group's name.
    pub name: &'static str,
    /// CPU time of its tasks while task-clock was counted, without that of groups nested in them; tasks that are running
    /// now are included.
    pub cpu: Duration,
    /// Polls of its futures and entries of its scopes and threads, while anything was counted.
    pub entries: u64,
    /// Tasks that are.
    pub alive: u64,
    /// Tasks that began.
    pub started: u64,
    /// Tasks that ended, were dropped or panicked.
    pub finished: u64,
}

#[derive(Default)]
struct Registry {
    by_name: HashMap<&'static str, Group>,
    in_order: Vec<Group>,
}

static REGISTRY: RwLock<Option<Registry>> = RwLock::new(None);
/// Groups by number, for look-ups without a lock.
static BY_ID: [OnceLock<Group>; MAX_GROUPS] = [const { OnceLock::new() }; MAX_GROUPS];

impl Group {
    /// The group of that name; the same one for the same name.
    ///
    /// # Cost
    ///
    /// A look-up under a shared lock. Keep the handle where a group is used for every request.
    pub fn new(name: &str) -> Self {
        let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = registry.as_ref().and_then(|r| r.find(name)) {
            return group;
        }
        drop(registry);
        let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
        let group = registry.get_or_insert_default().intern(name);
        if let Some(place) = BY_ID.get(group.id() as usize - 1) {
            place.get_or_init(|| group);
        }
        group
    }

    /// The group with that number.
    pub(crate) fn by_id(id: u32) -> Option<Self> {
        match BY_ID.get((id as usize).checked_sub(1)?) {
            Some(place) => place.get().copied(),
            // Contexts that are no groups have taken numbers, too.
            None => Self::all().into_iter().find(|group| group.id() == id),
        }
    }

    /// The name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The number that records show; never reused in a process.
    pub fn id(self) -> u32 {
        self.0.context.id()
    }

    /// Has `events` counted for this group as long as the guard lives; see [`count`] for all groups.
    ///
    /// # Errors
    ///
    /// As of [`count`].
    ///
    /// # Cost
    ///
    /// As of [`count`].
    pub fn count(self, events: &[Event], mode: Mode) -> Result<Counting, Error> {
        Counting::of(self.0.context, events, mode)
    }

    /// What was counted of every event that was ever counted for this group.
    ///
    /// `value` is exclusive: what was counted while no other group was entered inside of this one, so that groups add up.
    /// `value + nested` is inclusive: with what groups entered inside of it have counted of the same event, on
    /// the same thread, before they were left. Work that was handed on to other tasks is theirs.
    ///
    /// ```
    /// use dormouse::{Event, Group, events::Mode};
    ///
    /// let [route, database] = ["GET /orders", "database"].map(Group::new);
    /// let _counting = dormouse::count(&[Event::TASK_CLOCK])?;
    /// route.scope(|| database.scope(|| { /* … */ }));
    /// let count = route.counts()[0];
    /// println!("{} ns by itself, {} with what it calls", count.value, count.value + count.nested);
    /// # assert_eq!(database.counts()[0].nested, 0);
    /// # Ok::<(), dormouse::events::Error>(())
    /// ```
    ///
    /// # Cost
    ///
    /// What it takes to read the counters of each thread that runs one of the group's tasks at this moment: a system
    /// call for task-clock, for others more.
    pub fn counts(self) -> Vec<Count> {
        self.0.context.read()
    }

    /// Charges every poll of `future`, and its destructor, to this group.
    pub fn instrument<F: Future>(self, future: F) -> Instrumented<F> {
        Instrumented::new(self.start_task(), future)
    }

    /// Charges what this thread does to the group until the guard is dropped.
    ///
    /// Not for a guard that lives across an `.await`: use [`Group::instrument`] there.
    pub fn enter(self) -> Entered {
        let mut task = self.start_task();
        let entered = task.enter(Kind::Scope);
        Entered::new(entered, task)
    }

    /// A thread that is charged to this group from its beginning to its end, named after the group.
    ///
    /// # Errors
    ///
    /// As of [`std::thread::Builder::spawn`], if the system has no more threads.
    pub fn spawn_thread<T, F>(self, run: F) -> io::Result<JoinHandle<T>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        // A thread's name must not hold a NUL byte.
        let name = self.name().replace('\0', " ");
        std::thread::Builder::new().name(name).spawn(move || {
            let _entered = self.enter();
            run()
        })
    }

    /// What the group has cost so far.
    ///
    /// # Cost
    ///
    /// A system call for each thread that runs one of the group's tasks at this moment, under a lock that changes of what
    /// is counted take.
    pub fn stat(self) -> GroupStat {
        let (started, finished) = self.0.tasks.read();
        GroupStat {
            name: self.name(),
            cpu: Duration::from_nanos(self.0.context.cpu_ns()),
            entries: self.0.context.entries(),
            alive: started - finished,
            started,
            finished,
        }
    }

    /// All groups, in order of creation.
    pub fn all() -> Vec<Self> {
        let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
        registry.as_ref().map(|r| r.in_order.clone()).unwrap_or_default()
    }

    pub(crate) fn start_task(self) -> Task {
        let number = tasks::number();
        self.0.tasks.start(number);
        Task::new(self, dormouse_events::Task::new(self.0.context, number))
    }

    pub(crate) fn finish_task(self, number: u64) {
        self.0.tasks.finish(number);
    }
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

impl Registry {
    /// The group of that name, or `other` when there is room for no more.
    fn find(&self, name: &str) -> Option<Group> {
        let full = self.in_order.len() >= MAX_GROUPS;
        self.by_name.get(name).or_else(|| self.by_name.get(OTHER).filter(|_| full)).copied()
    }

    fn intern(&mut self, name: &str) -> Group {
        if let Some(group) = self.find(name) {
            return group;
        }
        // The last place is kept for `other`.
        if self.in_order.len() + 1 >= MAX_GROUPS && name != OTHER {
            return self.intern(OTHER);
        }
        // Leaked, like its name: see the type's documentation.
        let name: &'static str = Box::leak(name.into());
        let group =
            Group(Box::leak(Box::new(Inner { name, context: Context::new(), tasks: Tasks::default() })));
        self.by_name.insert(name, group);
        self.in_order.push(group);
        group
    }
}

/// Has `events` counted for all groups that are and will be, as long as the guard lives. (Keep it with
/// [`Counting::keep`] to have them counted from the start of the process.)
///
/// Until somebody counts, a switch between tasks reads nothing.
///
/// # Errors
///
/// An event that is not to be had here, more than can be counted at once, or a static key that cannot be switched; then
/// nothing has changed.
///
/// # Cost
///
/// A batch of one static key if nothing was counted before, a barrier for every processor, and for each thread that runs a
/// task what it takes to read its counters from outside.
pub fn count(events: &[Event]) -> Result<Counting, Error> {
    Counting::everywhere(events, Mode::GroupExact)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_is_one_group_and_too_many_names_share_one() {
        let mut registry = Registry::default();
        let menu = registry.intern("GET /menu");
        assert_eq!(registry.intern("GET /menu"), menu);
        for n in 0..2 * MAX_GROUPS {
            registry.intern(&format!("group {n}"));
        }
        assert_eq!(registry.in_order.len(), MAX_GROUPS);
        assert_eq!(registry.intern("one more").name(), OTHER);
        assert_eq!(registry.intern("group 3").name(), "group 3");
    }
}
