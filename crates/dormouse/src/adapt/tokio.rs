//! tokio's functions that spawn, with tasks that inherit the group that is current where they are
//! spawned.
//!
//! A task is charged to that group in each of its polls, on whichever worker, and in its
//! destructor, also when it is aborted or the runtime ends. The names and signatures are tokio's
//! own, so that `use dormouse::tokio::spawn` is the only change; no `tokio_unstable` is needed.
//! Outside of any group these are tokio's own functions.
//!
//! Three things need no counterpart here:
//!
//! - The root future: `runtime.block_on(group.instrument(future))`. `block_on` *inside* a group is
//!   charged to it, with everything that the runtime does on that thread.
//! - `task::block_in_place`: the closure runs in the same poll on the same thread, and the *other*
//!   tasks of the worker move, between their polls.
//! - `LocalSet::{run_until, block_on}`: [`inherit`](crate::inherit()) or instrument the future.
//!
//! ```
//! use dormouse::Group;
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! let order = Group::new("POST /orders").instrument(async {
//!     let written = dormouse::tokio::spawn_blocking(|| Group::current());
//!     written.await.unwrap()
//! });
//! assert_eq!(runtime.block_on(order), Some(Group::new("POST /orders")));
//! ```
//!
//! `tokio::fs` and the blocking work of libraries run on tokio's own threads, in no group:
//! [`mod@fs`] has the functions of a path, and [`group_blocking`] gives the rest a name.
//!
//! # Runtimes on which all is instrumented
//!
//! At the end of a poll counters are read, because the thread may do anything next. A program that
//! instruments all work of a runtime declares that with [`all_instrumented`]. Then a worker leaves
//! the last task current until the next one comes, and between two tasks of one group reads
//! nothing, however many events are counted. Three conditions must hold:
//!
//! - Each task is spawned in a group, or by a function of this module; tasks of the latter outside
//!   of any group declare so when they are polled. A task of plain `tokio::spawn` does neither,
//!   also where a library spawns it: **the group before it pays for it**. A group that is entered
//!   in the middle of a task outside of any group does not help either: it pays for the rest of
//!   that poll.
//! - [`block_on`] runs a current-thread runtime; under tokio's own, its tasks are counted as on any
//!   runtime.
//! - A closure of `block_in_place` goes through [`in_place`].
//!
//! The group before also pays for the runtime's own work between two polls (its queues, and the
//! driver while there is work). A thread that parks charges nothing from there on. Blocking work is
//! counted as on any runtime.
//!
//! ```
//! use dormouse::Group;
//! use dormouse::tokio::{all_instrumented, block_on, spawn, spawn_in};
//!
//! let runtime = all_instrumented(&mut tokio::runtime::Builder::new_multi_thread()).build()?;
//! let consumers = Group::new("consumers");
//! block_on(&runtime, async {
//!     let consumer = spawn_in(consumers, async { /* … */ });
//!     let stranger = spawn(async { /* Outside any group nobody pays. */ });
//!     consumer.await?;
//!     stranger.await
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Runtimes where libraries spawn tasks, too
//!
//! In a program where not all work is instrumented, and which is built with `--cfg tokio_unstable`,
//! tokio names the task before each poll, and `poll_hooks(builder)` makes the workers of a
//! multi-thread runtime lazy only for tasks of [`spawn`], [`spawn_in`], [`spawn_on`] and
//! [`JoinSet`]. For all other tasks the workers are as on any runtime.
//!
//! tokio also passes the place where a task was spawned. `group_spawns(builder)` does the same as
//! `poll_hooks`, and charges a task that is in no group to the group of that place: `spawn
//! src/db.rs:42`.

use ::tokio::runtime::{Builder, Handle};
use ::tokio::task::{JoinHandle, LocalSet};

use super::hooks::ours;
use super::inherit::{Inherited, inherit, inherit_fn};
use super::pool_queue::queued;
use crate::core::group::Group;
use crate::core::task::Task;

pub use super::blocking::{thread_starts, thread_stops};
pub use super::connection::{ServedStream, connection, received};
pub use super::fs;
#[cfg(tokio_unstable)]
pub use super::hooks::{poll_hooks, task_begins};
pub use super::join_set::JoinSet;
pub use super::lazy::{all_instrumented, block_on, in_place, thread_parks, thread_unparks};
pub use super::runtime::runtime;
#[cfg(tokio_unstable)]
pub use super::spawns::group_spawns;
pub use crate::core::runtimes::RuntimeError;
#[cfg(tokio_unstable)]
pub use dormouse_events::{poll_begins, poll_ends};

/// `tokio::spawn` in the current group.
///
/// ```
/// use dormouse::Group;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let import = Group::new("import");
/// # runtime.block_on(import.instrument(async move {
/// let task = dormouse::tokio::spawn(async { Group::current() });
/// assert_eq!(task.await.unwrap(), Some(import));
/// # }));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Panics as tokio's does, outside of a runtime.
#[track_caller]
pub fn spawn<F: Future<Output: Send + 'static> + Send + 'static>(future: F) -> JoinHandle<F::Output> {
    let (future, _spawning) = ours(inherit(future).spawned());
    ::tokio::task::spawn(future)
}

/// `tokio::spawn` in `group`, whichever group is current here: for work that outlives the request
/// which begins it, such as a connection that others use, too, an actor, a cache's refresh.
///
/// ```
/// use dormouse::Group;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let prices = Group::new("prices");
/// let task = dormouse::tokio::spawn_in(prices, async { Group::current() });
/// assert_eq!(task.await.unwrap(), Some(prices));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Panics as tokio's does, outside of a runtime.
#[track_caller]
pub fn spawn_in<F: Future<Output: Send + 'static> + Send + 'static>(
    group: Group,
    future: F,
) -> JoinHandle<F::Output> {
    spawn_as(group.task(), future)
}

/// `tokio::spawn` as this task.
#[track_caller]
pub(super) fn spawn_as<F: Future<Output: Send + 'static> + Send + 'static>(
    task: Task,
    future: F,
) -> JoinHandle<F::Output> {
    let (future, _spawning) = ours(Inherited::of(task, future).spawned());
    ::tokio::task::spawn(future)
}

/// `Handle::spawn` in the current group.
///
/// ```
/// use dormouse::Group;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let import = Group::new("import");
/// let handle = runtime.handle();
/// let task = import.scope(|| dormouse::tokio::spawn_on(async { Group::current() }, handle));
/// assert_eq!(runtime.block_on(task).unwrap(), Some(import));
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn spawn_on<F: Future<Output: Send + 'static> + Send + 'static>(
    future: F,
    runtime: &Handle,
) -> JoinHandle<F::Output> {
    let (future, _spawning) = ours(inherit(future).spawned());
    runtime.spawn(future)
}

/// `tokio::task::spawn_local` in the current group.
///
/// ```
/// use dormouse::Group;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let import = Group::new("import");
/// # runtime.block_on(tokio::task::LocalSet::new().run_until(import.instrument(async move {
/// let task = dormouse::tokio::spawn_local(async { Group::current() });
/// assert_eq!(task.await.unwrap(), Some(import));
/// # })));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Panics as tokio's does, outside of a `LocalSet`.
#[track_caller]
pub fn spawn_local<F: Future<Output: 'static> + 'static>(future: F) -> JoinHandle<F::Output> {
    ::tokio::task::spawn_local(inherit(future).spawned())
}

/// `LocalSet::spawn_local` in the current group.
///
/// ```
/// use dormouse::Group;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let import = Group::new("import");
/// let set = tokio::task::LocalSet::new();
/// let task = import.scope(|| dormouse::tokio::spawn_local_on(async { Group::current() }, &set));
/// assert_eq!(runtime.block_on(set.run_until(task)).unwrap(), Some(import));
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn spawn_local_on<F: Future<Output: 'static> + 'static>(
    future: F,
    set: &LocalSet,
) -> JoinHandle<F::Output> {
    set.spawn_local(inherit(future).spawned())
}

/// `tokio::task::spawn_blocking` in the current group.
///
/// ```
/// use dormouse::Group;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let import = Group::new("import");
/// # runtime.block_on(import.instrument(async move {
/// let task = dormouse::tokio::spawn_blocking(Group::current);
/// assert_eq!(task.await.unwrap(), Some(import));
/// # }));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Panics as tokio's does, outside of a runtime.
#[track_caller]
pub fn spawn_blocking<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    ::tokio::task::spawn_blocking(inherit_fn(queued(f)))
}

/// `Handle::spawn_blocking` in the current group.
///
/// ```
/// use dormouse::Group;
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let import = Group::new("import");
/// let handle = runtime.handle();
/// let task = import.scope(|| dormouse::tokio::spawn_blocking_on(Group::current, handle));
/// assert_eq!(runtime.block_on(task).unwrap(), Some(import));
/// # Ok::<(), std::io::Error>(())
/// ```
#[track_caller]
pub fn spawn_blocking_on<F, T>(f: F, runtime: &Handle) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    runtime.spawn_blocking(inherit_fn(queued(f)))
}

/// Charges blocking work that no group has asked for to the group `tokio blocking`: `tokio::fs`,
/// and what libraries do by tokio's own `spawn_blocking`. Its `alive` is the number of threads.
///
/// It sets `on_thread_start`, `on_thread_stop` and `on_thread_park`, of which tokio keeps one each.
/// A program with hooks of its own calls [`thread_starts`], [`thread_stops`] and [`thread_parks`]
/// in them.
///
/// # What it does not do
///
/// A worker is in the group, too, until it parks for the first time. A worker that
/// `block_in_place` has turned into a thread for blocking work is not in the group.
///
/// ```
/// let mut builder = tokio::runtime::Builder::new_multi_thread();
/// let runtime = dormouse::tokio::group_blocking(&mut builder).build()?;
/// let current = || dormouse::Group::current().map(dormouse::Group::name);
/// let there = runtime.block_on(async { tokio::task::spawn_blocking(current).await.unwrap() });
/// assert_eq!(there, Some("tokio blocking"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn group_blocking(builder: &mut Builder) -> &mut Builder {
    builder.on_thread_start(thread_starts).on_thread_stop(thread_stops).on_thread_park(thread_parks)
}
