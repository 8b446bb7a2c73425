//! Where tasks spend their time: on a CPU, stalled, runnable, or awaiting; by group.
//!
//! A task is *in a poll*, *runnable* (woken or begun, and not polled yet), or *awaiting* (neither).
//! The three times, and for how long a request was *queued* before its task began, add up to its
//! age. A poll is *on a CPU*, or *stalled*: the kernel runs another thread meanwhile, or the poll
//! blocks. The time on a CPU is in the account of groups
//! ([`GroupStat::cpu`](crate::GroupStat::cpu)); the rest of the time in polls is stalled.
//!
//! Times are taken only while a [`Waiting`] exists; `DORMOUSE_WAITS=1` has them taken from
//! [`init`](crate::init) on. Sums and buckets are of all times so far: subtract two readings for
//! the time between them.
//!
//! ```
//! use dormouse::waits::Waiting;
//! use dormouse::{Event, Group};
//!
//! let route = Group::new("GET /menu");
//! let _waiting = Waiting::start()?;
//! let _counting = dormouse::start_counting(&[Event::TASK_CLOCK])?;
//! let (before, cpu) = (route.read_waits(), route.read().cpu);
//! // … the route is served …
//! let waits = route.read_waits().since(&before);
//! let on_cpu = route.read().cpu - cpu;
//! let stalled_ns = waits.poll_ns.saturating_sub(on_cpu.as_nanos() as u64);
//! if let Some(p99) = waits.requests.quantile_ns(0.99) {
//!     println!("99 of 100 requests within {p99} ns, one in task {}", waits.requests.max_task);
//! }
//! println!("{stalled_ns} ns stalled, {} runnable", waits.runnable_ns);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod taking;
pub(crate) mod verb;

pub use dormouse_waits::calls::{LONGEST_PEER, PEERS, PeerCalls, PeerName};
pub use dormouse_waits::{
    CpuTaking, Exemplar, GroupWaits, Histogram, LivingTask, PlaceTime, Placing, QueueTimes, TaskState,
    Traffic, Waiting, buckets, is_on, living, places, read, times_by_place, wake_unplaced,
};

use dormouse_waits::calls::read_calls_of;
use dormouse_waits::{exemplars, read_group};

pub use crate::core::ends::outcome_word;
use crate::core::group::Group;

impl Group {
    /// Reads where the group's tasks have spent their time while times were taken
    /// ([`waits`](crate::waits)). All zeros for a group that has no times.
    ///
    /// # Cost
    ///
    /// Reads one row of each thread, and the group of each living task.
    pub fn read_waits(self) -> GroupWaits {
        let none = GroupWaits { group: self.id(), ..GroupWaits::default() };
        read_group(self.id()).unwrap_or(none)
    }

    /// Reads the group's outgoing calls, by peer, since times were first taken
    /// ([`Call`](crate::Call)).
    ///
    /// ```
    /// use dormouse::waits::Waiting;
    /// use dormouse::{Call, CallKind, Group};
    ///
    /// let (route, _waiting) = (Group::new("GET /orders"), Waiting::start()?);
    /// let call = || Call::begin(CallKind::Redis, "GET order:7").run(|| Ok::<_, ()>(7));
    /// let found = route.scope(call);
    /// let calls = route.read_calls();
    /// assert_eq!(calls[0].peer.unwrap().as_str(), "GET");
    /// assert_eq!((calls[0].times.count(), calls[0].errors), (1, Some(0)));
    /// # Ok::<(), dormouse::keys::Error>(())
    /// ```
    ///
    /// # Cost
    ///
    /// Reads 5 KB for each peer.
    pub fn read_calls(self) -> Vec<PeerCalls> {
        let mut all = Vec::new();
        read_calls_of(self.id(), |of| all.push(of.clone()));
        all
    }

    /// Reads one recent request for each power of two of [`GroupWaits::requests`], in the order of
    /// buckets: one with a trace, or the longest. The zero bucket has none, nor have groups past
    /// the 1,024th.
    ///
    /// # Cost
    ///
    /// Reads 64 bytes for each, and for each other bucket of its power of two if none has a trace.
    pub fn read_exemplars(self) -> Vec<Exemplar> {
        exemplars(self.id(), |exemplar| exemplar)
    }
}
