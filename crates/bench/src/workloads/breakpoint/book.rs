//! The accountings that are compared: none, the hash of `dormouse-breakpoints`, and the list.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use dormouse_breakpoints::oracle::SlotList;
use dormouse_breakpoints::{Registers, Reservation, SlotKind, SlotRequest, Slots, Target, TaskId};

use crate::clocks::wall;
use crate::runner::Failure;

/// Something that accounts breakpoints of tasks.
pub(super) enum Book {
    None,
    Hash(Slots),
    List(Listed),
}

/// The list under its one mutex.
pub(super) struct Listed {
    list: Mutex<SlotList>,
    waited: AtomicU64,
}

/// A breakpoint's slots, until dropped.
#[expect(dead_code, reason = "a reservation is held for its drop")]
pub(super) enum Held<'b> {
    None,
    Hash(Reservation<'b>),
    List(OnList<'b>),
}

/// A breakpoint on the list.
pub(super) struct OnList<'b>(&'b Listed, usize);

fn request(task: u64) -> SlotRequest {
    SlotRequest::new(Target::Task(TaskId(task)), SlotKind::Data)
}

impl Book {
    pub(super) fn hash(cpus: u32) -> Result<Self, Failure> {
        Ok(Self::Hash(Slots::new(Registers::X86, cpus)?))
    }

    pub(super) fn list(cpus: u32) -> Self {
        let list = Mutex::new(SlotList::new(Registers::X86, cpus));
        Self::List(Listed { list, waited: AtomicU64::new(0) })
    }

    /// Takes the slots of one breakpoint of a task, on all processors.
    pub(super) fn reserve(&self, task: u64) -> Result<Held<'_>, Failure> {
        let refused = |why: &dyn std::fmt::Display| Failure::wrong(format!("task {task}: {why}"));
        Ok(match self {
            Self::None => Held::None,
            Self::Hash(slots) => Held::Hash(slots.reserve(request(task)).map_err(|error| refused(&error))?),
            Self::List(listed) => {
                let place = listed.lock().reserve(request(task));
                Held::List(OnList(listed, place.ok_or_else(|| refused(&"the list has no space"))?))
            }
        })
    }

    /// Takes the slots of tasks that stay.
    pub(super) fn populate(&self, tasks: u32, breakpoints: u32) -> Result<(), Failure> {
        for task in (0..tasks).map(u64::from) {
            if let Self::List(listed) = self {
                listed.lock().populate(&vec![request(task); breakpoints as usize]);
            } else {
                // Millions of guards would take memory that the accounting does not.
                (0..breakpoints).try_for_each(|_| self.reserve(task).map(std::mem::forget))?;
            }
        }
        Ok(())
    }

    /// How long threads have waited for locks, summed.
    pub(super) fn waited(&self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Hash(slots) => slots.waited(),
            Self::List(listed) => Duration::from_nanos(listed.waited.load(Ordering::Relaxed)),
        }
    }

    /// How many tasks hold slots, if the book counts that.
    pub(super) fn tasks(&self) -> usize {
        if let Self::Hash(slots) = self { slots.tasks() } else { 0 }
    }
}

impl Listed {
    /// Takes the lock, and reads the clock only if the lock is held, as [`Slots`] does.
    fn lock(&self) -> MutexGuard<'_, SlotList> {
        match self.list.try_lock() {
            Ok(list) => list,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let (took, list) = wall(|| self.list.lock().unwrap_or_else(PoisonError::into_inner));
                self.waited.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
                list
            }
        }
    }
}

impl Drop for OnList<'_> {
    fn drop(&mut self) {
        self.0.lock().release(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list does not ask when it is populated; it must stand as if it had.
    #[test]
    fn both_books_are_full_for_their_population() {
        for book in [Book::hash(2).unwrap(), Book::list(2)] {
            book.populate(10, 4).unwrap();
            for task in 0..12 {
                assert_eq!(book.reserve(task).is_ok(), task >= 10);
            }
            assert!(matches!(book.reserve(3), Err(Failure::Wrong(_))));
        }
    }
}
