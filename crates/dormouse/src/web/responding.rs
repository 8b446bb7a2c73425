//! An answer that comes later: a future that any executor can poll.
//!
//! A thread of ours works, and wakes the future's task. So no thread of the host works, and no
//! runtime with a timer is needed. If the future is dropped, because the client has closed the
//! connection, the thread is notified.
//!
//! # Locking
//!
//! The future and its thread share one lock, held for moments. A forked child may have inherited it
//! locked by a thread that it does not have, so the child never takes it: there the answer is 503.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use dormouse_sys::process::identity;
use dormouse_sys::signals;

use super::answer::WebAnswer;

/// The answer to a request. Dropping it before its end cancels the work for it.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Responding(State);

#[derive(Debug)]
enum State {
    /// `None` after it was returned.
    Ready(Option<WebAnswer>),
    Working {
        shared: Arc<Shared>,
        forks: u32,
    },
}

/// Shared with the thread that works.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    place: Mutex<Place>,
    /// The future was dropped.
    dropped: Condvar,
}

#[derive(Debug, Default)]
struct Place {
    answer: Option<WebAnswer>,
    waker: Option<Waker>,
    is_dropped: bool,
}

/// Has a thread work for an answer. `work` may wait by [`Shared::is_wanted_at`]; `None` if the
/// answer is not wanted any more.
pub(crate) fn on_a_thread(
    name: &str,
    stack: usize,
    work: impl FnOnce(&Shared) -> Option<WebAnswer> + Send + 'static,
) -> Responding {
    let shared = Arc::new(Shared::default());
    let of_thread = Arc::clone(&shared);
    let run = move || {
        let answer = catch_unwind(AssertUnwindSafe(|| work(&of_thread)));
        let failed = || Some(WebAnswer::text(500, "dormouse failed, please report it"));
        if let Some(answer) = answer.unwrap_or_else(|_| failed()) {
            // A panic of the host's waker is not ours to suffer.
            let _ = catch_unwind(AssertUnwindSafe(|| of_thread.finish(answer)));
        }
    };
    match signals::spawn(name, stack, run) {
        Ok(()) => Responding(State::Working { shared, forks: identity::forks() }),
        Err(why) => WebAnswer::text(503, &format!("no thread for an answer: {why}")).into(),
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this moment; false as soon as the future is dropped.
    pub(crate) fn is_wanted_at(&self, end: Instant) -> bool {
        let mut place = self.lock();
        while !place.is_dropped {
            let left = end.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return true;
            }
            place = self.dropped.wait_timeout(place, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    fn finish(&self, answer: WebAnswer) {
        let waker = {
            let mut place = self.lock();
            place.answer = Some(answer);
            place.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// At once.
impl From<WebAnswer> for Responding {
    fn from(answer: WebAnswer) -> Self {
        Self(State::Ready(Some(answer)))
    }
}

impl Future for Responding {
    type Output = WebAnswer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WebAnswer> {
        let answer = match &mut self.0 {
            State::Ready(answer) => answer.take(),
            State::Working { forks, .. } if *forks != identity::forks() => {
                Some(WebAnswer::text(503, "the answer was left behind in the process that forked this one"))
            }
            State::Working { shared, .. } => {
                let mut place = shared.lock();
                let Some(answer) = place.answer.take() else {
                    match &mut place.waker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        none => *none = Some(cx.waker().clone()),
                    }
                    return Poll::Pending;
                };
                Some(answer)
            }
        };
        self.0 = State::Ready(None);
        answer.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Responding {
    fn drop(&mut self) {
        if let State::Working { shared, forks } = &self.0
            && *forks == identity::forks()
        {
            let waker = {
                let mut place = shared.lock();
                place.is_dropped = true;
                place.waker.take()
            };
            shared.dropped.notify_one();
            drop(waker);
        }
    }
}
