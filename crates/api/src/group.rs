//! Groups: names to which work is charged.
//!
//! # Safety
//!
//! A future is pinned where [`Instrumented`] is, and never moved out of it.
#![allow(unsafe_code)]

use core::fmt;
use core::future::Future;
use core::marker::PhantomData;
use core::pin::Pin;
#[cfg(not(all(test, loom)))]
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;
use core::task::{Context, Poll};

use crate::host::{Groups, host};

#[cfg(all(test, loom))]
use loom::sync::atomic::AtomicU32;

/// A name to which CPU time, polls and tasks are charged; a row of `dormouse top`. Groups of the
/// same name are one, also where the service has that group.
pub struct Group {
    name: &'static str,
    /// 0 until it is first found.
    number: AtomicU32,
}

/// A group as the dormouse of this program has it.
#[derive(Debug, Clone, Copy)]
struct Found {
    groups: &'static Groups,
    number: u32,
}

impl Group {
    /// A group; nothing happens until it is used.
    #[cfg(not(all(test, loom)))]
    pub const fn new(name: &'static str) -> Self {
        Self { name, number: AtomicU32::new(0) }
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Charges what this thread does to the group, until the guard is dropped.
    ///
    /// The guard must not live across an `.await`: use [`Group::instrument`] there.
    ///
    /// # Cost
    ///
    /// Without dormouse a load and a branch.
    #[inline]
    pub fn enter(&self) -> Entered {
        let inside = if host().is_some() { self.begin_and_enter() } else { None };
        Entered { inside, on_this_thread: PhantomData }
    }

    /// Charges what `f` does on this thread to the group.
    #[inline]
    pub fn scope<T>(&self, f: impl FnOnce() -> T) -> T {
        let _entered = self.enter();
        f()
    }

    /// Charges every poll of `future` to the group, as one task.
    pub const fn instrument<F: Future>(&'static self, future: F) -> Instrumented<F> {
        Instrumented { group: self, future, task: None }
    }

    fn find(&self) -> Option<Found> {
        let groups = &host()?.groups;
        // Acquire: pairs with the store, before which the group is there.
        let mut number = self.number.load(Ordering::Acquire);
        if number == 0 {
            number = (groups.find)(self.name);
            // Another thread has found the same number.
            self.number.store(number, Ordering::Release);
        }
        (number != 0).then_some(Found { groups, number })
    }

    #[cold]
    fn begin_and_enter(&self) -> Option<Inside> {
        let found = self.find()?;
        let task = (found.groups.begin)(found.number);
        let place = (found.groups.enter)(found.number, task);
        if place.is_none() {
            (found.groups.end)(found.number, task);
        }
        place.map(|place| Inside { found, task, place })
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Group").field(&self.name).finish()
    }
}

/// A thread is in a task.
#[derive(Debug)]
struct Inside {
    found: Found,
    task: u64,
    place: u64,
}

/// A thread's work is charged to a group until this is dropped; see [`Group::enter`].
#[derive(Debug)]
#[must_use = "the group is left when the guard is dropped"]
pub struct Entered {
    inside: Option<Inside>,
    on_this_thread: PhantomData<*mut ()>,
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        if let Some(Inside { found, task, place }) = self.inside.take() {
            (found.groups.leave)(found.number, task, place);
            (found.groups.end)(found.number, task);
        }
    }
}

/// A future whose polls are charged to a group; see [`Group::instrument`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Instrumented<F> {
    group: &'static Group,
    future: F,
    /// Begins with the first poll beside a dormouse, and ends after the future.
    task: Option<Begun>,
}

/// A task that ends when it is dropped.
#[derive(Debug)]
struct Begun {
    found: Found,
    number: u64,
}

impl Drop for Begun {
    fn drop(&mut self) {
        (self.found.groups.end)(self.found.number, self.number);
    }
}

/// Leaves the task also if the poll panics.
struct Left<'a> {
    task: &'a Begun,
    place: Option<u64>,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let Begun { found, number } = self.task;
        if let Some(place) = self.place {
            (found.groups.leave)(found.number, *number, place);
        }
    }
}

#[cold]
fn begin(group: &Group) -> Option<Begun> {
    let found = group.find()?;
    Some(Begun { found, number: (found.groups.begin)(found.number) })
}

impl<F: Future> Future for Instrumented<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future stays where it is, pinned; the other fields are not pinned.
        let (group, task, future) = unsafe {
            let this = self.get_unchecked_mut();
            (this.group, &mut this.task, Pin::new_unchecked(&mut this.future))
        };
        if host().is_none() {
            return future.poll(cx);
        }
        if task.is_none() {
            *task = begin(group);
        }
        let _left = task.as_ref().map(|task| {
            let place = (task.found.groups.enter)(task.found.number, task.number);
            Left { task, place }
        });
        future.poll(cx)
    }
}

#[cfg(all(test, loom))]
mod interleavings;
