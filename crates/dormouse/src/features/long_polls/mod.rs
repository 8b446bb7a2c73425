//! Polls that last long: which task keeps a worker from all others, and in which function.
//!
//! A future that blocks or computes in a poll keeps its worker, and every task that waits for it. A
//! [`LongPolls`] reports each such poll while it lasts, with the stack of its thread.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! let polls = dormouse::long_polls(Duration::from_millis(10))?;
//! std::thread::sleep(Duration::from_secs(60));
//! for poll in polls.take() {
//!     let group = poll.group.map_or("", |group| group.name());
//!     println!("{group}: a poll of task {} has lasted {:?}", poll.task, poll.lasted);
//! }
//! # Ok::<(), dormouse::LongPollsError>(())
//! ```
//!
//! Polls of futures count, their destructors, and the stretches between two
//! [switches](crate::Task::switch_to) of fibers. Work that is entered by hand does not:
//! [scopes](crate::Group::scope), [runs](crate::Task::run), whole
//! [threads](crate::Group::spawn_thread), work of threads for blocking calls. A poll inside of such
//! work does.

mod engine;
mod verb;

use std::sync::Arc;
use std::time::Duration;

use dormouse_sys::process::identity;

pub use self::engine::{LongPoll, LongPollNow};
use self::engine::{LongPollWatches, Reports};
use crate::lookout::{LOOKOUT, Watched};

/// The shortest threshold.
const SHORTEST: Duration = Duration::from_millis(1);
/// The longest threshold.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Why long polls cannot be reported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LongPollsError {
    /// The threshold is out of range.
    #[error("a threshold for long polls of {threshold:?}: it must be from 1 ms to 24 h")]
    Threshold {
        /// It.
        threshold: Duration,
    },
    /// The process or its system does not allow it; the text has the reason.
    #[error("{0}")]
    Unavailable(String),
}

/// Reports polls that last for the threshold or longer, until the result is dropped.
///
/// ```no_run
/// use std::time::Duration;
///
/// let polls = dormouse::long_polls(Duration::from_millis(10))?;
/// // Later, and again and again:
/// for poll in polls.take() {
///     eprintln!("{poll:?}");
/// }
/// # Ok::<(), dormouse::LongPollsError>(())
/// ```
///
/// # Cost
///
/// No cost for polls. It returns before the first scan ([`LongPolls::between`]). A thread of
/// dormouse's scans all threads twice in a threshold, a hundred to a thousand times a second; a
/// running thread in a long poll is interrupted once for its stack.
///
/// # Errors
///
/// See [`LongPollsError`].
pub fn long_polls(threshold: Duration) -> Result<LongPolls, LongPollsError> {
    if !(SHORTEST..=LONGEST).contains(&threshold) {
        return Err(LongPollsError::Threshold { threshold });
    }
    let started = LOOKOUT.begin(move |engines| engines.get::<LongPollWatches>().start(threshold));
    let started = started.map_err(|error| LongPollsError::Unavailable(format!("the lookout: {error}")))?;
    let (number, reports) = started.map_err(LongPollsError::Unavailable)?;
    Ok(LongPolls { number, reports, process: identity::id() })
}

/// The reports on long polls, until it is dropped. In a child of a fork there are none.
///
/// ```no_run
/// use std::time::Duration;
///
/// let polls = dormouse::long_polls(Duration::from_millis(10))?;
/// // Later, and again and again:
/// for poll in polls.take() {
///     eprintln!("{poll:?}");
/// }
/// # Ok::<(), dormouse::LongPollsError>(())
/// ```
#[derive(Debug)]
#[must_use = "nobody looks for long polls any more when it is dropped"]
pub struct LongPolls {
    number: u64,
    reports: Arc<Reports>,
    process: u64,
}

impl LongPolls {
    /// Takes the reports so far: for each long poll one when it has lasted for the threshold, one
    /// each time that this has doubled, and one when it is over.
    pub fn take(&self) -> Vec<LongPoll> {
        self.take_some(usize::MAX)
    }

    /// Takes at most `most` reports, the oldest first.
    pub fn take_some(&self, most: usize) -> Vec<LongPoll> {
        // The parent's lookout may have held the lock as the process forked.
        if self.process == identity::id() { self.reports.take(most) } else { Vec::new() }
    }

    /// Whether no more reports will come, because the thread that makes them was killed, for
    /// example by a filter of system calls.
    pub fn is_over(&self) -> bool {
        self.process != identity::id() || self.reports.is_over()
    }

    /// The time between two scans: half of the threshold, at most 10 ms. In processes with very
    /// many threads in tasks, scans take a twentieth of a processor, and the time is at most 200
    /// ms. Zero before the first scan.
    pub fn between(&self) -> Duration {
        self.reports.between()
    }

    /// How many reports were lost: at most 256 are kept, the newest ones.
    pub fn lost(&self) -> u64 {
        self.reports.lost()
    }
}

impl Drop for LongPolls {
    fn drop(&mut self) {
        if self.process == identity::id() {
            LOOKOUT.end(Watched::by::<LongPollWatches>(self.number));
        }
    }
}

#[cfg(all(test, not(any(dormouse_fallback, miri))))]
#[allow(unsafe_code, reason = "a thread that ends in the midst")]
mod tests {
    use super::*;
    use crate::lookout::Engine;

    #[test]
    fn a_killed_lookout_is_told() {
        dormouse_testkit::in_child(|| {
            let polls = long_polls(SHORTEST).unwrap();
            assert!(!polls.is_over());
            // SAFETY: ends the lookout's thread alone, as a filter would.
            let killed = LOOKOUT.ask(|_| unsafe { libc::syscall(libc::SYS_exit, 0) });
            assert!(killed.is_err(), "{killed:?}");
            dormouse_testkit::eventually(|| polls.is_over());
            let again = long_polls(SHORTEST).unwrap();
            assert!(!again.is_over() && again.number != polls.number);
            drop(polls);
            let watches = LOOKOUT.ask(|engines| engines.get::<LongPollWatches>().is_empty()).unwrap();
            assert!(!watches, "the end of the first is not that of the second");
        });
    }
}
