//! An answer that comes after some seconds: a future that any executor polls.
//!
//! A thread of ours takes the profile, sleeps until its end, renders the answer and wakes the
//! future's task. So no thread of the host starts, reads or renders a profile, and no runtime with
//! a timer is needed. If the future is dropped, because the client has hung up, the thread wakes
//! and the profile ends.
//!
//! # Locking
//!
//! The future and its thread share one lock, held for moments. A forked child may have got it in
//! the hands of a thread that it does not have, so the child never takes it: there the answer is
//! 503.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use dormouse_profile::{Symbols, encode};
use dormouse_sys::process::identity;
use dormouse_sys::signals;

use super::answer::WebAnswer;
use super::page::page;
use super::query::{Asked, Taking};
use crate::memory;
use crate::profile::run::ProfileRun;

/// Profiles over HTTP at once.
const AT_ONCE: u64 = 8;

/// The stack of a thread that takes one, and names its addresses.
const STACK: usize = 1024 * 1024;

/// The memory of a profile and its answer.
const MEMORY: usize = 16 * 1024 * 1024;

/// How many there are, in the lower half; the upper half counts forks, and says whose they are.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// The answer to a request for a profile. If it is dropped before its end, the profile ends.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Responding(State);

#[derive(Debug)]
enum State {
    /// `None`: it was given.
    Ready(Option<WebAnswer>),
    Taking {
        shared: Arc<Shared>,
        forks: u32,
    },
}

/// Shared with the thread that takes the profile.
#[derive(Debug, Default)]
struct Shared {
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

/// One of the profiles that may run at once.
#[derive(Debug)]
struct Turn {
    forks: u32,
}

/// Answers a request for a path and, behind a question mark, a query; see the [module](super).
///
/// # Cost
///
/// Starts a thread, which ends with the answer.
pub fn respond(path_and_query: &str) -> Responding {
    let (taking, turn) = match begin(path_and_query) {
        Ok(begun) => begun,
        Err(answer) => return answer.into(),
    };
    let shared = Arc::new(Shared::default());
    let of_thread = Arc::clone(&shared);
    let run = move || {
        let answer = catch_unwind(AssertUnwindSafe(|| take(&taking, |end| of_thread.is_wanted_at(end))));
        let failed = || Some(WebAnswer::text(500, "dormouse failed, please report it"));
        // Before the answer, so that a client that has it has room for its next profile.
        drop(turn);
        if let Some(answer) = answer.unwrap_or_else(|_| failed()) {
            // A panic of the host's waker is not ours to suffer.
            let _ = catch_unwind(AssertUnwindSafe(|| of_thread.finish(answer)));
        }
    };
    match signals::spawn("dormouse-pprof", STACK, run) {
        Ok(()) => Responding(State::Taking { shared, forks: identity::forks() }),
        Err(why) => WebAnswer::text(503, &format!("no thread for a profile: {why}")).into(),
    }
}

/// [`respond`] on the calling thread, which sleeps until the profile is taken.
pub fn respond_blocking(path_and_query: &str) -> WebAnswer {
    let (taking, _turn) = match begin(path_and_query) {
        Ok(begun) => begun,
        Err(answer) => return answer,
    };
    let sleep = |end: Instant| {
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
        true
    };
    take(&taking, sleep).unwrap_or_else(WebAnswer::no_memory)
}

/// The wish of the request, with leave to begin; else the answer at once.
fn begin(path_and_query: &str) -> Result<(Taking, Turn), WebAnswer> {
    let taking = match Asked::parse(path_and_query)? {
        Asked::Page => return Err(WebAnswer::page(page())),
        Asked::Symbol => return Err(WebAnswer::text(200, "num_symbols: 0")),
        Asked::Profile(taking) => taking,
    };
    let turn = Turn::take().ok_or_else(|| {
        WebAnswer::text(429, &format!("{AT_ONCE} profiles are being taken: try again when one has ended"))
    })?;
    Ok((taking, turn))
}

/// Takes a profile until its end, for which `wait` waits; `None` if it says that nobody wants it.
fn take(taking: &Taking, wait: impl FnOnce(Instant) -> bool) -> Option<WebAnswer> {
    if !memory::is_there(MEMORY) {
        return Some(WebAnswer::no_memory());
    }
    let run = match ProfileRun::start(&taking.spec) {
        Ok(run) => run,
        Err(why) => return Some(WebAnswer::refusal(&why)),
    };
    if !wait(Instant::now() + taking.length) {
        return None;
    }
    if !memory::is_there(MEMORY) {
        return Some(WebAnswer::no_memory());
    }
    let profile = run.read();
    drop(run);
    let symbols = if taking.symbols { super::symbols(&profile) } else { Symbols::default() };
    Some(WebAnswer::profile(encode::pprof(&profile, &symbols)))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this moment; false as soon as the future is dropped.
    fn is_wanted_at(&self, end: Instant) -> bool {
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

impl Turn {
    fn take() -> Option<Self> {
        let forks = identity::forks();
        let more = |there: u64| {
            let running = if there >> 32 == u64::from(forks) { there & u64::from(u32::MAX) } else { 0 };
            (running < AT_ONCE).then_some(u64::from(forks) << 32 | (running + 1))
        };
        // Not made where there is no room: dropped, it would give back another's.
        RUNNING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok().then(|| Self { forks })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A parent's is none of its child's.
        let less = |there: u64| (there >> 32 == u64::from(self.forks)).then(|| there - 1);
        let _ = RUNNING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
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
            State::Taking { forks, .. } if *forks != identity::forks() => {
                Some(WebAnswer::text(503, "the profile was left behind in the process that forked this one"))
            }
            State::Taking { shared, .. } => {
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
        if let State::Taking { shared, forks } = &self.0
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
