//! tokio's ways to spawn, with tasks that inherit the group current where they are spawned.
//!
//! A task is charged to that group in each of its polls, on whichever worker, and in its destructor, also
//! when it is aborted or the runtime ends. The names and signatures are tokio's own, so that
//! `use dormouse::tokio::spawn` is all that changes; no `tokio_unstable` is needed. Outside any group
//! these are tokio's own functions.
//!
//! What needs no counterpart here:
//!
//! - The root future: `runtime.block_on(group.instrument(future))`. `block_on` *inside* a group is charged
//!   to it with all that the runtime does on that thread.
//! - `task::block_in_place`: the closure runs on in the same poll on the same thread, and the *other* tasks of
//!   the worker move, between their polls.
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
//! # Runtimes on which all is instrumented
//!
//! At the end of a poll counters are read, because nobody knows what the thread does next. Who builds a runtime may know
//! that it is nothing unseen, and say so with [`all_instrumented`]. Then a worker leaves the last task current until
//! the next one comes, and between two of one group reads nothing, however much is counted. What has to hold:
//!
//! - Each task is spawned in a group, or by a function of this module, whose tasks outside any group say so when they
//!   are polled. A task of plain `tokio::spawn` does neither, also where a library spawns it: **what it uses is charged
//!   to the group before it**. Nor does a group that is entered in the middle of a task which is in none: what that one
//!   does after it in the same poll is not seen.
//! - [`block_on`] runs a current-thread runtime; under tokio's own, its tasks are counted as on any runtime.
//! - A closure of `block_in_place` goes through [`in_place`].
//!
//! What the runtime itself does between two polls (its queues, the driver while there is work) is charged to the group
//! before it; a thread that parks charges nothing from there on. Blocking work is counted as on any runtime.
//!
//! ```
//! use dormouse::Group;
//! use dormouse::tokio::{all_instrumented, block_on, spawn};
//!
//! let runtime = all_instrumented(&mut tokio::runtime::Builder::new_multi_thread()).build()?;
//! let consumers = Group::new("consumers");
//! block_on(&runtime, async {
//!     let consumer = consumers.scope(|| spawn(async { /* … */ }));
//!     let stranger = spawn(async { /* What is in no group is nobody's. */ });
//!     consumer.await?;
//!     stranger.await
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Runtimes on which something is
//!
//! Where libraries spawn tasks of their own, nobody can declare that. In a program that is built with
//! `--cfg tokio_unstable` tokio tells before each poll which task it is, and `poll_hooks(builder)` makes the workers of a
//! multi-thread runtime lazy for tasks of [`spawn`], [`spawn_on`] and [`JoinSet`] alone. For all others they are as on any
//! runtime.

use ::tokio::runtime::Handle;
use ::tokio::task::{JoinHandle, LocalSet};

#[cfg(tokio_unstable)]
use super::hooks::whole;
use super::inherit::{inherit, inherit_fn};

#[cfg(tokio_unstable)]
pub use super::hooks::{poll_hooks, task_begins};
pub use super::join_set::JoinSet;
pub use super::lazy::{all_instrumented, block_on, in_place, thread_parks, thread_unparks};

#[cfg(not(tokio_unstable))]
pub(super) fn whole<F>(future: F) -> F {
    future
}

/// `tokio::spawn`, in the current group.
///
/// # Panics
///
/// As tokio's, outside a runtime.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    ::tokio::task::spawn(whole(inherit(future)))
}

/// `Handle::spawn`, in the current group.
#[track_caller]
pub fn spawn_on<F>(future: F, runtime: &Handle) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime.spawn(whole(inherit(future)))
}

/// `tokio::task::spawn_local`, in the current group.
///
/// # Panics
///
/// As tokio's, outside a `LocalSet`.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    ::tokio::task::spawn_local(inherit(future))
}

/// `LocalSet::spawn_local`, in the current group.
#[track_caller]
pub fn spawn_local_on<F>(future: F, set: &LocalSet) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    set.spawn_local(inherit(future))
}

/// `tokio::task::spawn_blocking`, in the current group.
///
/// # Panics
///
/// As tokio's, outside a runtime.
#[track_caller]
pub fn spawn_blocking<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    ::tokio::task::spawn_blocking(inherit_fn(f))
}

/// `Handle::spawn_blocking`, in the current group.
#[track_caller]
pub fn spawn_blocking_on<F, T>(f: F, runtime: &Handle) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    runtime.spawn_blocking(inherit_fn(f))
}
