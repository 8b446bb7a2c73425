//! Runtimes whose tasks are told apart, by tokio's hooks around each poll: lazy for ours, eager for all others.
//!
//! A hook is told a task's number, not whose it is. So a task that is ours as a whole, from the beginning of each poll to
//! its end, writes its number into a table when it is polled, and the hook before its next poll finds it there. Any other
//! number, also one that has lost its place to another task, makes the thread eager for that poll: what is kept is
//! charged before the task runs, and counters are read at the end of each group in it. So nothing depends on the table
//! being complete.
//!
//! # Things it does not do
//!
//! tokio calls no hook for the root future, so a current-thread runtime stays eager; nor when `block_in_place` makes a
//! worker a thread for blocking work: as with [`all_instrumented`](super::lazy::all_instrumented), its closure goes
//! through [`in_place`](super::lazy::in_place).

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use ::tokio::runtime::{Builder, Handle, RuntimeFlavor};
use ::tokio::task::Id;
use dormouse_events::{park, set_lazy};
use pin_project_lite::pin_project;

/// Tasks that are told at once. One that loses its place to another is eager until it has it back.
const PLACES: usize = 4096;

/// Numbers of tasks that are ours as a whole.
static OURS: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

thread_local! {
    static IS_LAZY: Cell<bool> = const { Cell::new(false) };
}

/// Has the runtime's workers leave the last task of a group current until the next one comes, where that is one of this
/// module's or of a group's; see the [module](crate::tokio). Only in builds of the whole program with
/// `--cfg tokio_unstable`.
///
/// It sets `on_before_task_poll` and `on_thread_park`, of which tokio keeps one each. Who has hooks of his own sets those
/// instead, with [`task_begins`] as the last thing in the one, of multi-thread runtimes only, and
/// [`thread_parks`](super::lazy::thread_parks) as the first in the other.
pub fn poll_hooks(builder: &mut Builder) -> &mut Builder {
    let has_workers = OnceLock::new();
    builder.on_thread_park(park).on_before_task_poll(move |task| {
        let flavor = || Handle::try_current().map(|handle| handle.runtime_flavor());
        if *has_workers.get_or_init(|| flavor().is_ok_and(|flavor| flavor != RuntimeFlavor::CurrentThread)) {
            task_begins(task.id());
        }
    })
}

/// A worker of a multi-thread runtime is about to poll this task.
pub fn task_begins(task: Id) {
    let number = number(task);
    let is_ours = place(number).load(Ordering::Relaxed) == number;
    if IS_LAZY.replace(is_ours) != is_ours {
        set_lazy(is_ours);
    }
}

pin_project! {
    /// A task that is ours as a whole.
    pub(super) struct Whole<F> {
        #[pin]
        future: F,
    }
}

pub(super) fn whole<F>(future: F) -> Whole<F> {
    Whole { future }
}

impl<F: Future> Future for Whole<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if let Some(task) = ::tokio::task::try_id() {
            let number = number(task);
            let place = place(number);
            if place.load(Ordering::Relaxed) != number {
                place.store(number, Ordering::Relaxed);
            }
        }
        self.project().future.poll(cx)
    }
}

fn place(number: u64) -> &'static AtomicU64 {
    &OURS[number as usize % PLACES]
}

/// What tokio calls a task, which is not to be had otherwise: it hashes as the number that it is.
fn number(task: Id) -> u64 {
    let mut number = Number(0);
    task.hash(&mut number);
    number.0
}

struct Number(u64);

impl Hasher for Number {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
