//! The present prices of a poll and of a record, measured in this process by a thread of dormouse's
//! own. It measures in a loop, with warm caches: the service's threads pay this much at least.

use std::hint::black_box;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Instant;

use dormouse_clock::stamp;
use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::process::identity;
use dormouse_sys::signals;
use dormouse_sys::thread::Current;

use crate::core::group::Group;
use crate::core::own_probes;
use crate::core::probe::{Probe, record_of};
use crate::core::record::RecordKind;

/// Polls or records that are timed together.
const TIMES: u64 = 64;
/// Rounds, of which the shortest counts: a disturbance makes one longer.
const ROUNDS: usize = 4;
/// How long a price is good for, unless what is awake changes.
const AGE_NS: u64 = 10_000_000_000;

/// A record of it belongs to no trace.
static PROBE: Probe = Probe::new(",value");

/// A price, in picoseconds.
#[derive(Debug)]
pub(crate) struct Price {
    ps: AtomicU64,
    /// When it was measured; 0: never.
    at_ns: AtomicU64,
    /// The number of keys that were on then.
    awake: AtomicU64,
    /// Nanoseconds for [`TIMES`] times.
    measure: fn() -> u64,
}

/// The price of a poll of a future in a group.
pub(crate) static POLL: Price = Price::new(time_polls);
/// The price of a record with one value.
pub(crate) static RECORD: Price = Price::new(time_records);

impl Price {
    const fn new(measure: fn() -> u64) -> Self {
        Self { ps: AtomicU64::new(0), at_ns: AtomicU64::new(0), awake: AtomicU64::new(0), measure }
    }

    /// The price in picoseconds, measured anew if it is old; `None` if it was never measured. The
    /// service's own threads measure nothing. Nor is there a measurement while polls are recorded,
    /// because the traces would contain it.
    ///
    /// # Cost
    ///
    /// Some ten microseconds each ten seconds.
    pub(crate) fn read(&self) -> Option<u64> {
        let (now, awake) = (monotonic_ns(), dormouse_keys::count_on() as u64);
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        let is_good = now.saturating_sub(at_ns) < AGE_NS && awake == self.awake.load(Ordering::Relaxed);
        let may_measure = signals::is_ours(identity::tid()) && !own_probes::are_awake();
        if may_measure && (at_ns == 0 || !is_good) {
            let ns = (0..ROUNDS).map(|_| (self.measure)()).min().unwrap_or_default();
            self.ps.store(ns * 1000 / TIMES, Ordering::Relaxed);
            self.awake.store(awake, Ordering::Relaxed);
            self.at_ns.store(now.max(1), Ordering::Relaxed);
        }
        let is_known = self.at_ns.load(Ordering::Relaxed) != 0;
        is_known.then(|| self.ps.load(Ordering::Relaxed))
    }
}

fn time_polls() -> u64 {
    let mut polled = pin!(Group::hidden().instrument(std::future::pending::<()>()));
    let mut context = Context::from_waker(Waker::noop());
    timed(|| _ = black_box(polled.as_mut().poll(&mut context)))
}

fn time_records() -> u64 {
    let nobody = Current { task: 0, group: 0 };
    timed(|| record_of(&PROBE, RecordKind::Point, stamp(), nobody, |writer| writer.unsigned(0)))
}

fn timed(mut once: impl FnMut()) -> u64 {
    let begun = Instant::now();
    (0..TIMES).for_each(|_| once());
    begun.elapsed().as_nanos() as u64
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::mpsc;

    use dormouse_testkit::{Filter, HANG, in_child};

    use super::*;

    #[test]
    fn there_is_a_price_under_a_filter() {
        in_child(|| {
            Filter::refuse(&[libc::SYS_acct]).install();
            let (tell, told) = mpsc::channel();
            let measure = move || tell.send((POLL.read(), RECORD.read())).unwrap();
            signals::spawn("dormouse-price", 1 << 20, measure).unwrap();
            let (poll, record) = told.recv_timeout(HANG).unwrap();
            assert!(dormouse_sys::perf::is_filtered() && poll > Some(0) && record > Some(0));
            assert_eq!(Price::new(time_polls).read(), None, "a thread of the service's measures nothing");
        });
    }
}
