//! The switch from one task's counters to another's.
//!
//! A context follows the counters of the thread that runs its task: it knows what they showed when it came
//! on. To take it off means to read them all. Between two equivalent contexts that is not needed: what is to be
//! added up in the end may as well go on in the same place. So the context that is on goes to the next
//! task and stays on, and the next task's goes to the previous one, where it is as good as the other: it lies
//! still and can be taken up anywhere, on another thread too.
//!
//! # Invariants
//!
//! 1. A context is on for one thread at most, and only that thread changes it.
//! 2. An exchange leaves one context on and the other off, as they were.
//! 3. Numbers of threads are never reused.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::inherit::TaskContext;
use crate::layout::Readings;

/// No thread.
pub(crate) const NOWHERE: u64 = 0;

static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);
static STRAYED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static THREAD: Cell<u64> = const { Cell::new(NOWHERE) };
}

/// What a switch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switched {
    /// Neither task has counters.
    Nothing,
    /// The contexts were equivalent and were exchanged; no counter was read.
    Exchanged,
    /// The previous task's counters were read out, the next one's read in.
    Read,
}

/// The calling thread goes from the task that has context `previous` to that which has `next`. At the first
/// task of a thread `previous` is [`TaskContext::none`], and after the last one `next` is.
///
/// A task that is switched out may be switched in on another thread. A context that is still on for another
/// thread is not brought up to date: see [`strayed`].
///
/// # Cost
///
/// Between equivalent contexts a few comparisons and the exchange of two pointers. Else one read of
/// every counter, or two if the tasks have different ones.
#[inline]
pub fn switch(previous: &mut TaskContext, next: &mut TaskContext) -> Switched {
    let (Some(from), Some(to)) = (&previous.0, &next.0) else {
        return if previous.0.is_none() && next.0.is_none() {
            Switched::Nothing
        } else {
            read_over(previous, next)
        };
    };
    if from.is_equivalent(to) && from.on() == this_thread() && to.on() == NOWHERE {
        std::mem::swap(previous, next);
        return Switched::Exchanged;
    }
    read_over(previous, next)
}

/// As [`switch`], but every task keeps its own context, whose counts are then the task's own.
///
/// # Cost
///
/// One read of every counter, or two if the tasks have different ones.
#[inline]
pub fn switch_eager(previous: &mut TaskContext, next: &mut TaskContext) -> Switched {
    if previous.0.is_none() && next.0.is_none() {
        return Switched::Nothing;
    }
    read_over(previous, next)
}

/// How often a context was still on for one thread when another one took it up or ended it, and what it had
/// counted since its last read was lost.
pub fn strayed() -> u64 {
    STRAYED.load(Ordering::Relaxed)
}

pub(crate) fn stray() {
    STRAYED.fetch_add(1, Ordering::Relaxed);
}

/// The number of the calling thread.
#[inline]
pub(crate) fn this_thread() -> u64 {
    // Past the end of the thread's locals: constant, without a destructor, so it is always there.
    THREAD.with(|thread| match thread.get() {
        NOWHERE => {
            let number = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
            thread.set(number);
            number
        }
        number => number,
    })
}

#[inline(never)]
fn read_over(previous: &mut TaskContext, next: &mut TaskContext) -> Switched {
    let here = this_thread();
    let mut readings = Readings::default();
    let mut is_read = false;
    if let Some(from) = &mut previous.0 {
        is_read = from.end(here, &mut readings);
    }
    if let Some(to) = &mut next.0 {
        // It is on already if its task was switched in twice.
        let ended = to.end(here, &mut readings);
        // The one goes off and the other comes on at one moment: a reading of the same counters does for both.
        let from = previous.0.as_ref().filter(|_| is_read);
        let same = ended || from.is_some_and(|from| from.layout.reads_as(&to.layout));
        if !same && to.is_enabled() {
            to.layout.read(&mut readings);
        }
        to.begin(here, &readings);
    }
    Switched::Read
}
