//! The queues in which tasks wait, by their places: semaphores, locks of tokio's, the permits of
//! pools, and channels that are full.
//!
//! Nothing in the service is wrapped for this, so who has a permit is not known. The functions of
//! a place show what it is. Waits for `dormouse::sync` are left out: these are known with their
//! holders.
//!
//! | the leaf | around it | the queue |
//! |---|---|---|
//! | tokio's `batch_semaphore` | a pool | that pool |
//! | | `mpsc::bounded` | a channel that is full |
//! | | `sync::mutex`, `sync::rwlock` | that lock |
//! | | anything else | a semaphore |
//! | tokio's `notify`, `oneshot` | bb8 | that pool |
//! | `Send` of async-channel or flume, a `Sender` of futures | | a channel that is full |

use std::cmp::Reverse;
use std::collections::BTreeMap;

use dormouse_protocol::{Hello, TaskRow, TasksRequest, WireTaskState};
use serde::Serialize;

use super::list::{self, TaskList};
use super::place::{PlaceNames, hides_parts, is_unplaced, most, name};
use super::stacks::UNLEARNED_PLACE;
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::Context;
use crate::render::frame::CodeFrame;

/// The most tasks of a queue that a document lists.
const LISTED: usize = 100;

/// Pools: the names of their crates, and the part of a name that all their functions have.
const POOLS: [(&str, &str); 4] =
    [("deadpool", "deadpool::"), ("bb8", "bb8::"), ("sqlx", "sqlx_core::pool::"), ("mobc", "mobc::")];

/// Parts of names and of files of the semaphore that tokio's types have in them.
const SEMAPHORE: [&str; 2] = ["tokio::sync::batch_semaphore::", "/src/sync/batch_semaphore.rs"];
/// Leaves by which bb8 waits.
const NOTICES: [&str; 4] =
    ["tokio::sync::notify::", "/src/sync/notify.rs", "tokio::sync::oneshot::", "/src/sync/oneshot.rs"];
/// Senders to channels with a bound.
const SENDERS: [&str; 3] = ["async_channel::Send", "flume::async::SendFut", "futures_channel::mpsc::Sender"];
/// Types around that semaphore.
const AROUND: [(QueueKind, [&str; 2]); 3] = [
    (QueueKind::Channel, ["tokio::sync::mpsc::bounded::", "/src/sync/mpsc/bounded.rs"]),
    (QueueKind::Mutex, ["tokio::sync::mutex::", "/src/sync/mutex.rs"]),
    (QueueKind::RwLock, ["tokio::sync::rwlock::", "/src/sync/rwlock"]),
];

/// Parts of the names and files of `dormouse::sync`.
const OURS: [&str; 4] = ["dormouse_locks::", "dormouse-locks-", "locks/src/tokio/", "locks/src/queue.rs"];

/// By this function a task in a nested group takes the waker of the task around it.
const NESTED: [&str; 2] =
    ["dormouse_waits::task::TaskWaits::begin_poll", "dormouse_waits::task::TaskWaits>::begin_poll"];

/// The thing for which the tasks of a queue wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub(crate) enum QueueKind {
    /// A permit of a semaphore.
    Semaphore,
    /// Something that a pool hands out.
    Pool,
    /// Room in a channel that is full.
    Channel,
    /// A mutex of tokio's.
    Mutex,
    /// A reader-writer lock of tokio's.
    RwLock,
}

impl QueueKind {
    /// A word for it, in text.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Semaphore => "semaphore",
            Self::Pool => "pool",
            Self::Channel => "full channel",
            Self::Mutex => "mutex",
            Self::RwLock => "rwlock",
        }
    }
}

/// A line at which tasks wait in a queue. Nobody knows who has what they wait for.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct TaskQueue {
    pub(crate) kind: QueueKind,
    /// The crate of a pool; absent for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<&'static str>,
    /// The innermost function of the service's own, at the line that waits.
    pub(crate) place: CodeFrame,
    /// The number of tasks that wait there now.
    pub(crate) waiting: u64,
    /// For how long the one has waited that has done so for the longest time, since its last poll.
    pub(crate) longest_ns: u64,
    /// The tasks by group, the largest number first.
    pub(crate) by: Vec<QueueGroup>,
    /// The first hundred tasks, those first that have waited the longest.
    tasks: Vec<QueueTask>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct QueueGroup {
    pub(crate) group: String,
    pub(crate) tasks: u64,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct QueueTask {
    task: u64,
    group: String,
    for_ns: u64,
}

impl TaskQueue {
    #[cfg(test)]
    pub(crate) fn of<'a>(
        kind: QueueKind,
        pool: Option<&'static str>,
        place: CodeFrame,
        longest_ns: u64,
        by: impl Iterator<Item = (&'a str, u64)>,
    ) -> Self {
        let by: Vec<_> = by.map(|(group, tasks)| QueueGroup { group: group.to_owned(), tasks }).collect();
        let waiting = by.iter().map(|of| of.tasks).sum();
        Self { kind, pool, place, waiting, longest_ns, by, tasks: Vec::new() }
    }
}

/// Has places of tasks recorded from now on, as long as the connection lasts; whether the service
/// does so.
pub(crate) fn begin(client: &mut Client, hello: &Hello) -> Outcome<bool> {
    if client.knows::<TasksRequest>() { list::begin(client, hello, false) } else { Ok(false) }
}

/// The tasks that wait now, with the names of their places.
#[derive(Debug)]
pub(crate) struct WaitingTasks {
    list: TaskList,
    names: PlaceNames,
}

impl WaitingTasks {
    pub(crate) fn read(client: &mut Client, context: &Context) -> Outcome<Self> {
        let list = list::list(client)?;
        let wanted = list.tasks.iter().flat_map(|task| &task.places).copied().collect();
        let names = PlaceNames::of(client, &wanted, context)?;
        Ok(Self { list, names })
    }

    /// The queues in which they wait, those with most tasks first.
    pub(crate) fn queues(&self) -> Vec<TaskQueue> {
        queues(&self.list, &self.names)
    }

    /// The number of those that wait at unknown places, because their wait began before places were
    /// recorded.
    pub(crate) fn unplaced(&self) -> u64 {
        self.list.tasks.iter().filter(|task| is_unplaced(task)).count() as u64
    }

    /// The functions in which a task waits for a lock of `dormouse::sync`, the innermost first; or
    /// why they are not known.
    pub(crate) fn stuck_at(&self, number: u64) -> Result<Vec<CodeFrame>, &'static str> {
        let task = self.list.tasks.iter().find(|task| task.task == number);
        let task = task.ok_or("the task was not polled since times are taken, or has ended")?;
        let known = task.places.iter().filter(|place| **place > UNLEARNED_PLACE);
        let places: Vec<_> = known.map(|&place| self.names.frames(place)).collect();
        let found = match places[..] {
            [] if task.places.is_empty() => return Err("the task waits since before places were noted"),
            [] => return Err("the stack of the task's place is not known"),
            // Also where functions have no names.
            [only] if !task.more_places => Some(only),
            _ => places.into_iter().find(|frames| is_any(frames, &OURS)),
        };
        found.map(<[_]>::to_vec).ok_or("the task waits at several places")
    }

    /// These tasks, each of which waits for a lock alone.
    #[cfg(test)]
    pub(crate) fn at_locks(numbers: &[u64]) -> Self {
        let at = |number: &u64| TaskRow {
            places: vec![4],
            ..super::tests::task(*number, 1, WireTaskState::Awaiting, 10)
        };
        let frames = vec![super::place::tests::frame(SEMAPHORE[0], "", 0)];
        let list = super::tests::list(numbers.iter().map(at).collect());
        Self { list, names: PlaceNames([(4, frames)].into()) }
    }

    /// Whether a task waits at one place, which is in a lock of tokio's, so no other future of it
    /// goes on.
    pub(crate) fn is_only_at_lock(&self, number: u64) -> bool {
        let task = self.list.tasks.iter().find(|task| task.task == number);
        task.is_some_and(|task| match task.places[..] {
            [only] if !task.more_places => {
                task.state == WireTaskState::Awaiting && is_any(self.names.frames(only), &SEMAPHORE)
            }
            _ => false,
        })
    }

    /// A place at which a task waits for something that is no lock, in words, so that one of its
    /// futures may go on. `None` also if it is not known.
    pub(crate) fn elsewhere(&self, number: u64) -> Option<String> {
        let task = self.list.tasks.iter().find(|task| task.task == number)?;
        let is_elsewhere = |frames: &&[CodeFrame]| {
            !hides_parts(frames)
                && ![&SEMAPHORE[..], &OURS, &NESTED].iter().any(|parts| is_any(frames, parts))
        };
        let known = task.places.iter().filter(|place| **place > UNLEARNED_PLACE);
        let mut places = known.map(|&place| self.names.frames(place));
        places.find(is_elsewhere).and_then(most).map(name)
    }
}

fn queues(list: &TaskList, names: &PlaceNames) -> Vec<TaskQueue> {
    let mut found: BTreeMap<_, (CodeFrame, Vec<&TaskRow>)> = BTreeMap::new();
    let waits = list.tasks.iter().filter(|task| task.state == WireTaskState::Awaiting);
    for task in waits {
        for frames in task.places.iter().map(|&place| names.frames(place)) {
            let Some((kind, pool)) = queue(frames) else { continue };
            let Some(place) = most(frames) else { continue };
            let key = (kind, pool, place.file.clone(), place.line, place.function.clone());
            let (_, tasks) = found.entry(key).or_insert_with(|| (place.clone(), Vec::new()));
            if tasks.last().is_none_or(|last| last.task != task.task) {
                tasks.push(task);
            }
        }
    }
    let group = |task: &TaskRow| list.groups.get(&task.group).map_or("", |group| &group.name).to_owned();
    let mut queues = Vec::new();
    for ((kind, pool, ..), (place, mut tasks)) in found {
        tasks.sort_by_key(|task| (Reverse(task.for_ns), task.task));
        let mut by: BTreeMap<String, u64> = BTreeMap::new();
        for task in &tasks {
            *by.entry(group(task)).or_default() += 1;
        }
        let mut by: Vec<_> = by.into_iter().map(|(group, tasks)| QueueGroup { group, tasks }).collect();
        by.sort_by_key(|of| Reverse(of.tasks));
        let listed = tasks.iter().take(LISTED);
        let listed = listed.map(|of| QueueTask { task: of.task, group: group(of), for_ns: of.for_ns });
        queues.push(TaskQueue {
            kind,
            pool,
            place,
            waiting: tasks.len() as u64,
            longest_ns: tasks.first().map_or(0, |task| task.for_ns),
            by,
            tasks: listed.collect(),
        });
    }
    queues.sort_by_key(|queue| Reverse((queue.waiting, queue.longest_ns)));
    queues
}

/// The queue in which a task with this place waits, and the pool that has it; `None` if it is none.
fn queue(frames: &[CodeFrame]) -> Option<(QueueKind, Option<&'static str>)> {
    // Also around a function of the service's own.
    if is_any(frames, &OURS) {
        return None;
    }
    let library = &frames[..frames.iter().position(|frame| frame.is_own).unwrap_or(frames.len())];
    let has = |parts: &[&str]| is_any(library, parts);
    let pool = POOLS.iter().find(|(_, part)| has(&[part])).map(|(name, _)| *name);
    match pool {
        Some(_) if has(&SEMAPHORE) => Some((QueueKind::Pool, pool)),
        Some("bb8") if has(&NOTICES) => Some((QueueKind::Pool, pool)),
        None if has(&SEMAPHORE) => {
            let around = AROUND.iter().find(|(_, parts)| has(parts)).map(|(kind, _)| *kind);
            Some((around.unwrap_or(QueueKind::Semaphore), None))
        }
        _ if has(&SENDERS) => Some((QueueKind::Channel, None)),
        _ => None,
    }
}

/// Whether one of these parts belongs to the name of a function, or to its file.
fn is_any(frames: &[CodeFrame], parts: &[&str]) -> bool {
    frames.iter().any(|frame| parts.iter().any(|part| is_of(frame, part)))
}

/// Whether a part belongs to the name of the function: not to those of its parameters or of the
/// trait that it implements. Bodies that were inlined have bare names, and files.
fn is_of(frame: &CodeFrame, part: &str) -> bool {
    if part.contains("::") {
        return frame.function.trim_start_matches(['<', '&']).starts_with(part);
    }
    frame.file.as_ref().is_some_and(|file| file.contains(part))
}

#[cfg(test)]
mod tests {
    use super::super::place::tests::frame;
    use super::super::tests::{list, task};
    use super::*;

    const ACQUIRE: &str = "<tokio::sync::batch_semaphore::Acquire as core::future::future::Future>::poll";

    /// The stack of a place: these functions of libraries, and the service's own.
    fn stack(library: &[&str]) -> Vec<CodeFrame> {
        let waker =
            ["dormouse_waits::waker::clone", "<core::task::wake::Waker as core::clone::Clone>::clone"];
        let all = waker.iter().chain(library).map(|function| frame(function, "", 0));
        all.chain([frame("shop::orders::{{closure}}", "/src/orders.rs", 42)]).collect()
    }

    #[test]
    fn queues_are_known_by_their_functions() {
        let known = |library: &[&str]| queue(&stack(library));
        for (library, right) in [
            (&[ACQUIRE][..], Some((QueueKind::Semaphore, None))),
            (
                &[ACQUIRE, "tokio::sync::semaphore::Semaphore::acquire::{{closure}}"],
                Some((QueueKind::Semaphore, None)),
            ),
            (
                &[ACQUIRE, "tokio::sync::mpsc::bounded::Sender<T>::send::{{closure}}"],
                Some((QueueKind::Channel, None)),
            ),
            (
                &[ACQUIRE, "<tokio::sync::mpsc::bounded::Sender<u8>>::reserve_inner::{closure#0}"],
                Some((QueueKind::Channel, None)),
            ),
            (&[ACQUIRE, "tokio::sync::mutex::Mutex<T>::lock::{{closure}}"], Some((QueueKind::Mutex, None))),
            (
                &[ACQUIRE, "tokio::sync::rwlock::RwLock<T>::read::{{closure}}"],
                Some((QueueKind::RwLock, None)),
            ),
            (
                &[
                    ACQUIRE,
                    "tokio::sync::semaphore::Semaphore::acquire::{{closure}}",
                    "deadpool::managed::Pool<M,W>::timeout_get::{{closure}}",
                ],
                Some((QueueKind::Pool, Some("deadpool"))),
            ),
            (
                &[ACQUIRE, "sqlx_core::pool::inner::PoolInner<DB>::acquire::{{closure}}"],
                Some((QueueKind::Pool, Some("sqlx"))),
            ),
            (
                &[
                    "<tokio::sync::notify::Notified as core::future::future::Future>::poll",
                    "bb8::inner::PoolInner<M>::get::{{closure}}",
                ],
                Some((QueueKind::Pool, Some("bb8"))),
            ),
            (
                &["<async_channel::Send<T> as core::future::future::Future>::poll"],
                Some((QueueKind::Channel, None)),
            ),
            // A wait for something else, though a pool is around it, or its name.
            (&["<tokio::net::tcp::TcpStream>::poll_read", "bb8::inner::PoolInner<M>::get"], None),
            (&["<tokio::sync::notify::Notified as core::future::future::Future>::poll"], None),
            (&["tokio::sync::mpsc::bounded::Receiver<T>::recv::{{closure}}"], None),
            (&["tokio::time::timeout::Timeout<tokio::sync::batch_semaphore::Acquire>::poll"], None),
            (&["dormouse_locks::tokio::take::{{closure}}", ACQUIRE], None),
        ] {
            assert_eq!(known(library), right, "{library:?}");
        }
        // Own code around another semaphore is no queue of this wait.
        let own = [frame("shop::sleep", "/src/a.rs", 1), frame(ACQUIRE, "", 0)];
        assert_eq!(queue(&own), None);
        // Inlined, so only its file has the path.
        let inlined = [
            frame("{async_fn#0}", "/registry/src/i/tokio-1.47.1/src/sync/batch_semaphore.rs", 9),
            frame("send::{async_fn#0}", "/registry/src/i/tokio-1.47.1/src/sync/mpsc/bounded.rs", 9),
        ];
        assert_eq!(queue(&inlined), Some((QueueKind::Channel, None)));
        let ours = frame("take::{async_fn#0}", "/registry/src/i/dormouse-locks-0.9.0/src/tokio/mod.rs", 9);
        assert_eq!(queue(&[&inlined[..], &[ours]].concat()), None);
    }

    #[test]
    fn a_stuck_task_is_at_its_lock() {
        let at = |number, places: &[u32]| TaskRow {
            places: places.to_vec(),
            ..task(number, 1, WireTaskState::Awaiting, 10)
        };
        let list = list(vec![at(1, &[4, 5]), at(2, &[]), at(3, &[4, 4]), at(4, &[4]), at(5, &[2])]);
        let lock = stack(&["<dormouse_locks::tokio::mutex::Mutex<T>>::lock::{{closure}}"]);
        let names = PlaceNames([(4, stack(&[ACQUIRE])), (5, lock.clone())].into());
        let tasks = WaitingTasks { list, names };
        assert_eq!(tasks.stuck_at(1), Ok(lock));
        assert_eq!(tasks.stuck_at(4).map(|frames| frames.len()), Ok(4));
        let why = [2, 3, 5, 9].map(|task| tasks.stuck_at(task).unwrap_err());
        let last = why.map(|why| why.rsplit(' ').next().unwrap_or_default());
        assert_eq!(last, ["noted", "places", "known", "ended"]);
        let is_only = (1..=5).filter(|task| tasks.is_only_at_lock(*task)).collect::<Vec<_>>();
        assert_eq!(is_only, [4], "others have more places, or one that is not known");
    }

    #[test]
    fn a_wait_for_no_lock_is_elsewhere() {
        const BEGIN_POLL: &str = "<dormouse_waits::task::TaskWaits>::begin_poll";
        const SET: &str =
            "<futures_util::stream::futures_unordered::FuturesUnordered<Fut> as Stream>::poll_next";
        let at = |number, places: &[u32]| TaskRow {
            places: places.to_vec(),
            ..task(number, 1, WireTaskState::Awaiting, 10)
        };
        let of = [
            (2, "(stack unknown: not yet learned)"),
            (4, ACQUIRE),
            (5, BEGIN_POLL),
            (6, SET),
            (7, "tokio::time::sleep::Sleep::poll"),
        ];
        let names = PlaceNames(of.map(|(place, function)| (place, stack(&[function]))).into());
        let list = list(vec![at(1, &[4, 5, 6]), at(2, &[4, 7]), at(3, &[8]), at(4, &[2])]);
        let tasks = WaitingTasks { list, names };
        let elsewhere = [1, 2, 3, 4, 9].map(|task| tasks.elsewhere(task));
        assert_eq!(elsewhere, [None, Some("shop::orders (orders.rs:42)".to_owned()), None, None, None]);
    }

    #[test]
    fn a_line_has_its_tasks_by_group() {
        let at = |number, group, for_ns| TaskRow {
            places: vec![4, 4],
            ..task(number, group, WireTaskState::Awaiting, for_ns)
        };
        let elsewhere = TaskRow { places: vec![5], ..at(9, 1, 99) };
        let polled = TaskRow { state: WireTaskState::Polled, ..at(8, 1, 99) };
        let list = list(vec![at(1, 1, 10), at(2, 2, 30), at(3, 1, 20), elsewhere, polled]);
        let sleep = stack(&["<tokio::time::sleep::Sleep as core::future::future::Future>::poll"]);
        let names = PlaceNames([(4, stack(&[ACQUIRE])), (5, sleep)].into());
        let [queue] = &queues(&list, &names)[..] else { panic!("one line waits in a queue") };
        assert_eq!((queue.waiting, queue.longest_ns, queue.place.line), (3, 30, Some(42)));
        let by: Vec<_> = queue.by.iter().map(|of| (of.group.as_str(), of.tasks)).collect();
        assert_eq!(by, [("GET /tea", 2), ("GET /menu", 1)]);
        assert_eq!(queue.tasks.iter().map(|of| of.task).collect::<Vec<_>>(), [2, 3, 1]);
    }
}
