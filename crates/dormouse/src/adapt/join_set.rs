//! tokio's `JoinSet` with tasks that inherit.

use std::task::{Context, Poll};

use ::tokio::runtime::Handle;
use ::tokio::task::{self, AbortHandle, Id, JoinError, LocalSet};

use super::hooks::ours;
use super::inherit::{inherit, inherit_fn};
use super::pool_queue::queued;

/// `tokio::task::JoinSet` whose tasks are in the group that is current at their spawn (not at their
/// join).
///
/// Everything else is as in tokio; a set that is dropped aborts its tasks. It does not dereference
/// to tokio's type, so that no helper function can spawn a task into it that is in no group.
///
/// ```
/// use dormouse::{Group, tokio::JoinSet};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(Group::new("report").instrument(async {
/// let mut parts = JoinSet::new();
/// for part in 0..3 {
///     parts.spawn(async move { (part, Group::current()) }); // of the group that is current here
/// }
/// let report = Some(Group::new("report"));
/// assert!(parts.join_all().await.iter().all(|(_, group)| *group == report));
/// # }));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct JoinSet<T>(task::JoinSet<T>);

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> JoinSet<T> {
    /// An empty set.
    pub fn new() -> Self {
        Self(task::JoinSet::new())
    }

    /// The number of tasks that have not been joined.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all tasks have been joined.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: 'static> JoinSet<T> {
    /// Spawns a task in the current group.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        let (future, _spawning) = ours(inherit(future).spawned());
        self.0.spawn(future)
    }

    /// Spawns a task on `runtime` in the current group.
    #[track_caller]
    pub fn spawn_on<F>(&mut self, future: F, runtime: &Handle) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        let (future, _spawning) = ours(inherit(future).spawned());
        self.0.spawn_on(future, runtime)
    }

    /// Spawns a task of the current `LocalSet` in the current group.
    #[track_caller]
    pub fn spawn_local<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
    {
        self.0.spawn_local(inherit(future).spawned())
    }

    /// Spawns a task on `set` in the current group.
    #[track_caller]
    pub fn spawn_local_on<F>(&mut self, future: F, set: &LocalSet) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
    {
        self.0.spawn_local_on(inherit(future).spawned(), set)
    }

    /// Runs a closure on the blocking pool in the current group.
    #[track_caller]
    pub fn spawn_blocking<F>(&mut self, f: F) -> AbortHandle
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send,
    {
        self.0.spawn_blocking(inherit_fn(queued(f)))
    }

    /// Runs a closure on the blocking pool of `runtime` in the current group.
    #[track_caller]
    pub fn spawn_blocking_on<F>(&mut self, f: F, runtime: &Handle) -> AbortHandle
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send,
    {
        self.0.spawn_blocking_on(inherit_fn(queued(f)), runtime)
    }

    /// Waits for a task to end; `None` if the set is empty. Cancel safe.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.0.join_next().await
    }

    /// [`JoinSet::join_next`] with the task's id.
    pub async fn join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        self.0.join_next_with_id().await
    }

    /// A task that has ended; `None` if none has.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.0.try_join_next()
    }

    /// [`JoinSet::try_join_next`] with the task's id.
    pub fn try_join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        self.0.try_join_next_with_id()
    }

    /// [`JoinSet::join_next`] for a future written by hand.
    pub fn poll_join_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        self.0.poll_join_next(cx)
    }

    /// Waits for all tasks.
    ///
    /// # Panics
    ///
    /// Panics as tokio's does, if a task panicked or was aborted.
    pub async fn join_all(self) -> Vec<T> {
        self.0.join_all().await
    }

    /// Aborts all tasks; they stay in the set until they are joined.
    pub fn abort_all(&mut self) {
        self.0.abort_all();
    }

    /// Aborts all tasks and waits until they have ended.
    pub async fn shutdown(&mut self) {
        self.0.shutdown().await;
    }

    /// Removes all tasks from the set without aborting them.
    pub fn detach_all(&mut self) {
        self.0.detach_all();
    }
}
