//! The thread that ends holds. The first hold starts it.
//!
//! It sleeps on the holds' lock until the next hold ends or, when there is none, until it is woken.
//! So it costs nothing while there is nothing to do. To end holds it takes the locks of a batch.
//! Each copy of dormouse in a process that has holds has such a thread, and so stays loaded.
//!
//! # Promises to the host
//!
//! The thread blocks all signals that are sent to the process. It does not keep the process from
//! ending. A forked child has neither the thread nor holds; its first hold starts another thread.

use std::time::{Duration, Instant};

#[cfg(not(all(test, loom)))]
use crate::hold::TimerThread;
use crate::hold::{self, Hold};
use crate::plan::{self, Change, Changes, Guards};
use crate::{Error, Protocol, clock};

/// The time after which a hold whose end was refused is tried again: another patcher has changed a
/// site, and may leave it.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// The keys that are held on for a time through this copy of the library, with holders and
/// remaining times.
///
/// # Cost
///
/// Waits for a batch that is under way, but takes no patch lock. Empty in a signal handler that
/// interrupted a batch of its thread, and without memory.
pub fn holds() -> Vec<Hold> {
    hold::lock().ok().and_then(|holds| holds.list(clock::now()).ok()).unwrap_or_default()
}

/// Starts the thread that ends holds if it does not run yet; otherwise the first hold of the
/// process starts it. For a process that cannot start threads later, because a filter of system
/// calls kills it for that: the agent calls this when it starts.
///
/// Not under the patch lock: starting a thread, and keeping a copy loaded for it, waits for the
/// loader. Several callers may each start a thread, and each gets its own error; the first thread
/// to run stays.
#[cfg(not(all(test, loom)))]
pub fn start_timer() -> Result<(), Error> {
    if hold::lock()?.timer != TimerThread::None {
        return Ok(());
    }
    dormouse_sys::loader::pin_self()?;
    dormouse_sys::signals::spawn("dormouse-timer", 512 * 1024, run).map_err(|source| Error::Denied {
        what: "starting the thread that switches keys off",
        source,
        setting: "raise the limit of threads (ulimit -u, pids.max), or call dormouse_keys::start_timer() \
                  before threads are refused",
    })?;
    let mut holds = hold::lock()?;
    if holds.timer == TimerThread::None {
        holds.timer = TimerThread::Started;
    }
    Ok(())
}

/// A loom model cannot contain a thread without an end.
#[cfg(all(test, loom))]
#[expect(clippy::unnecessary_wraps, reason = "the same shape as where there is a thread")]
pub fn start_timer() -> Result<(), Error> {
    Ok(())
}

#[cfg(not(all(test, loom)))]
fn run() {
    let Ok(mut holds) = hold::lock() else { return };
    if std::mem::replace(&mut holds.timer, TimerThread::Runs) == TimerThread::Runs {
        return;
    }
    drop(holds);
    loop {
        let now = clock::now();
        // Its first hold took the locks, so there are some; but there may be no memory for an
        // index.
        if let Ok(mut guards) = Guards::lock() {
            end_due(&mut guards, now);
        } else {
            std::thread::sleep(RETRY);
            continue;
        }
        // The locks may have taken long.
        sleep(clock::now());
    }
}

/// Waits for the end of the next hold, or for word of an earlier one. Not at all, if one has begun
/// since the thread looked (at `now`) and is over.
pub(crate) fn sleep(now: Instant) {
    // No handler runs over this thread, which has the holds at no other time.
    let Ok(mut holds) = hold::lock() else { return };
    holds.looks_at = holds.next();
    match holds.looks_at {
        Some(at) if at <= now => {}
        at => hold::wait(holds, at.map(|at| at - now)),
    }
}

/// Ends the holds that are to end now, all in one batch. Keys that cannot be switched off do not
/// keep the others on.
pub(crate) fn end_due(guards: &mut Guards, now: Instant) {
    let at = now + RETRY;
    let Ok(mut due) = guards.holds.due(now) else { return guards.holds.postpone(now, at, |_| true) };
    while !due.is_empty() {
        let mut changes = Changes::default();
        for &(key, holder) in &due {
            changes.add([key], Change::End(Some(holder)));
        }
        let Err(error) = plan::commit(guards, &mut changes, Protocol::of_process()) else { return };
        guards.holds.postpone(now, at, |key| error.concerns(key));
        due.retain(|(key, _)| !error.concerns(key));
    }
}

#[cfg(all(test, not(loom)))]
#[allow(unsafe_code, reason = "a site of this crate's own is")]
mod tests;
