//! One answer, from a thread to another one that waits for it.
//!
//! A channel of std's does the same, and is compiled anew for each type that it carries, in three
//! flavours: 200 KB of a program in which keepers answer with forty types.
//!
//! | state | event | next |
//! |---|---|---|
//! | `WAITED_FOR` | [`Answerer::give`] | `GIVEN` |
//! | `WAITED_FOR` | the answerer is dropped | `GONE` |
//! | `GIVEN`, `GONE` | any | the same |
//!
//! # Invariants
//!
//! 1. The asker touches the value's lock only in the state `GIVEN`, in which the answerer has left
//!    it. So in a child of a fork, where the answerer is no more, the asker waits for no lock.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::futex;

const WAITED_FOR: u32 = 0;
const GIVEN: u32 = 1;
const GONE: u32 = 2;

/// The state, on which the asker sleeps.
#[derive(Debug)]
struct Progress(AtomicU32);

impl Progress {
    /// Leaves the state in which there is no answer yet, unless that has happened.
    fn end(&self, state: u32) {
        // Release: pairs with the load in `wait`. The value is there.
        if self.0.compare_exchange(WAITED_FOR, state, Ordering::Release, Ordering::Relaxed).is_ok() {
            futex::wake(&self.0, 1);
        }
    }

    /// The state after at most that time. A signal may end the wait early.
    fn wait(&self, at_most: Duration) -> u32 {
        if self.0.load(Ordering::Relaxed) == WAITED_FOR {
            let timeout = at_most.try_into().ok();
            let _ = futex::wait(&self.0, WAITED_FOR, timeout.as_ref());
        }
        // Acquire: pairs with the exchange in `end`.
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct Place<T> {
    progress: Progress,
    value: Mutex<Option<T>>,
}

/// The side that answers. If it is dropped, there will be no answer.
#[derive(Debug)]
pub struct Answerer<T>(Arc<Place<T>>);

/// The side that waits.
#[derive(Debug)]
pub struct Asker<T>(Arc<Place<T>>);

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// There is none yet.
    NotYet,
    /// There will be none.
    Gone,
}

/// A place for one answer.
pub fn answer<T>() -> (Answerer<T>, Asker<T>) {
    let place = Arc::new(Place { progress: Progress(AtomicU32::new(WAITED_FOR)), value: Mutex::new(None) });
    (Answerer(Arc::clone(&place)), Asker(place))
}

impl<T> Answerer<T> {
    /// Gives the answer.
    pub fn give(self, value: T) {
        *self.0.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.0.progress.end(GIVEN);
    }
}

impl<T> Drop for Answerer<T> {
    fn drop(&mut self) {
        self.0.progress.end(GONE);
    }
}

impl<T> Asker<T> {
    /// The answer, once. Waits for at most that time, and less if a signal interrupts the wait.
    ///
    /// # Errors
    ///
    /// If there is no answer yet, or there will be none.
    pub fn wait(&self, at_most: Duration) -> Result<T, NoAnswer> {
        match self.0.progress.wait(at_most) {
            WAITED_FOR => Err(NoAnswer::NotYet),
            GIVEN => {
                let mut value = self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
                value.take().ok_or(NoAnswer::Gone)
            }
            _ => Err(NoAnswer::Gone),
        }
    }
}

#[cfg(all(test, target_os = "linux", not(any(miri, loom))))]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_wakes_its_asker() {
        let (answerer, asker) = answer();
        let thread = std::thread::spawn(move || answerer.give(7));
        let mut got = asker.wait(LONG);
        while got == Err(NoAnswer::NotYet) {
            got = asker.wait(LONG);
        }
        assert_eq!(got, Ok(7));
        assert_eq!(asker.wait(LONG), Err(NoAnswer::Gone), "it comes once");
        thread.join().unwrap();
    }

    #[test]
    fn a_dropped_answerer_ends_the_wait() {
        let (answerer, asker) = answer::<u8>();
        assert_eq!(asker.wait(Duration::ZERO), Err(NoAnswer::NotYet));
        drop(answerer);
        assert_eq!(asker.wait(LONG), Err(NoAnswer::Gone));
    }
}
