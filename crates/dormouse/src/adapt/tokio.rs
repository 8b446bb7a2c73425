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

use ::tokio::runtime::Handle;
use ::tokio::task::{JoinHandle, LocalSet};

use super::inherit::{inherit, inherit_fn};

pub use super::join_set::JoinSet;

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
    ::tokio::task::spawn(inherit(future))
}

/// `Handle::spawn`, in the current group.
#[track_caller]
pub fn spawn_on<F>(future: F, runtime: &Handle) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    runtime.spawn(inherit(future))
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
