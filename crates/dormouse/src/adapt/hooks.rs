//! Runtimes that distinguish our tasks from others, by tokio's hooks around each poll: lazy for
//! ours, eager for all others.
//!
//! tokio passes a task's number to a hook, but not its spawner. So a task that is ours as a whole,
//! from the beginning of each poll to its end, writes its number into a table when it is polled,
//! and the hook before its next poll finds it there. Any other number makes the thread eager for
//! that poll, even that of a task in no group, or of a task whose entry was replaced by another
//! one: the task before it is charged before it runs, and counters are read at the end of each
//! group in it. So nothing depends on a complete table.
//!
//! # Things it does not do
//!
//! tokio calls no hook for the root future, so a current-thread runtime stays eager. It also calls
//! none when `block_in_place` turns a worker into a thread for blocking work: as with
//! [`all_instrumented`](super::lazy::all_instrumented), the closure must go through
//! [`in_place`](super::lazy::in_place).

use std::cell::Cell;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use ::tokio::runtime::{Builder, Handle, RuntimeFlavor, TaskMeta};
use ::tokio::task::{Id, try_id};
use dormouse_events::{is_lazy, poll_begins, poll_ends, set_lazy};
use pin_project_lite::pin_project;

use super::inherit::Inherited;
use super::lazy::thread_parks;
use crate::core::runtime_task::{number, spread};

/// The number of places in the table, in bits. A task that loses its place to another is eager
/// until it has it back.
const PLACE_BITS: u32 = 12;

/// Numbers of tasks that are ours as a whole.
static OURS: [AtomicU64; 1 << PLACE_BITS] = [const { AtomicU64::new(0) }; 1 << PLACE_BITS];

thread_local! {
    /// The task for which the hook was last called.
    static LAST: Cell<u64> = const { Cell::new(0) };
    /// It spawns a task of ours.
    static SPAWNING: Cell<bool> = const { Cell::new(false) };
}

/// Lets the workers of a multi-thread runtime leave the last task of a group current until the next
/// one comes, for tasks spawned by this module's `spawn` functions or its `JoinSet`; see the
/// [module](crate::tokio). Only in builds of the whole program with `--cfg tokio_unstable`.
///
/// Polls of tasks are counted, too, also those of a current-thread runtime:
/// `dormouse_poll_coverage_ratio` is the share of them that is in groups.
///
/// It sets `on_before_task_poll`, `on_after_task_poll` and `on_thread_park`, of which tokio keeps
/// one each. A program with hooks of its own sets those instead: with [`task_begins`] as the last
/// thing in the first, or on a current-thread runtime [`poll_begins`]; with [`poll_ends`] in the
/// second; and with [`thread_parks`](super::lazy::thread_parks) as the first thing in the third.
///
/// A `block_in_place` within a task of ours must go through [`in_place`](super::lazy::in_place).
/// Otherwise the thread may go on to other blocking work, and the group is charged for that until a
/// task of ours comes.
///
/// ```ignore
/// let mut builder = tokio::runtime::Builder::new_multi_thread();
/// let runtime = dormouse::tokio::poll_hooks(&mut builder).build()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn poll_hooks(builder: &mut Builder) -> &mut Builder {
    let has_workers = OnceLock::new();
    let before = move |task: &TaskMeta<'_>| {
        let flavor = || Handle::try_current().map(|handle| handle.runtime_flavor());
        if *has_workers.get_or_init(|| flavor().is_ok_and(|flavor| flavor != RuntimeFlavor::CurrentThread)) {
            task_begins(task.id());
        } else {
            poll_begins();
        }
    };
    builder.on_thread_park(thread_parks).on_before_task_poll(before).on_after_task_poll(|_| poll_ends())
}

/// Call this when a worker of a multi-thread runtime is about to poll `task`.
///
/// ```ignore
/// builder.on_before_task_poll(|task| {
///     // … the program's own hook, and then:
///     dormouse::tokio::task_begins(task.id());
/// });
/// ```
pub fn task_begins(task: Id) {
    let number = number(task);
    begins(number, place(number).load(Ordering::Relaxed) == number);
}

/// A thread is about to poll this task, which is not ours as a whole.
pub(super) fn others_task_begins(task: Id) {
    begins(number(task), false);
}

fn begins(number: u64, is_ours: bool) {
    LAST.set(number);
    if is_lazy() != is_ours {
        set_lazy(is_ours);
    }
    // Last: what has been charged until here is none of this poll's.
    poll_begins();
}

pin_project! {
    /// A task, which is ours as a whole if it is in a group.
    pub(super) struct Whole<F> {
        // `None` once dropped, which happens before the next task is read.
        #[pin]
        future: Option<Inherited<F>>,
    }

    impl<F> PinnedDrop for Whole<F> {
        fn drop(this: Pin<&mut Self>) {
            this.project().future.set(None);
            // Dropped by a runtime that ends: no hook is called for the next task.
            if try_id().is_some_and(|task| number(task) != LAST.get()) {
                set_lazy(false);
            }
        }
    }
}

/// A task, which is spawned as long as the other value lives.
pub(super) fn ours<F: Future>(future: Inherited<F>) -> (Whole<F>, Spawning) {
    let before = SPAWNING.replace(future.group().is_some());
    (Whole { future: Some(future) }, Spawning { before })
}

/// This thread spawns a task of ours.
pub(super) struct Spawning {
    before: bool,
}

impl Drop for Spawning {
    fn drop(&mut self) {
        SPAWNING.set(self.before);
    }
}

/// Whether this thread is about to spawn a task of ours that is in a group.
pub(super) fn is_ours_now() -> bool {
    SPAWNING.get()
}

impl<F: Future> Future for Whole<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // None: as in `Instrumented`.
        let Some(future) = self.project().future.as_pin_mut() else { return Poll::Pending };
        if future.group().is_some()
            && let Some(task) = try_id()
        {
            let number = number(task);
            let place = place(number);
            if place.load(Ordering::Relaxed) != number {
                place.store(number, Ordering::Relaxed);
            }
        }
        future.poll(cx)
    }
}

fn place(number: u64) -> &'static AtomicU64 {
    &OURS[spread(number, PLACE_BITS)]
}
