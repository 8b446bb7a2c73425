//! The readers of the rings: traces, each with the probes that it selected.
//!
//! A ring has one reader, and of several copies of dormouse in a process one reads the rings of
//! all. Each poll of a trace empties all rings and distributes the records to all traces. A trace
//! that is polled too rarely loses the oldest records of its queue, and counts them. While there is
//! no trace the rings are not read.
//!
//! A forked child has none of its parent's traces, and none of the records in their queues.
//!
//! # Locking
//!
//! `HUB`, over which forks wait. It is not held while keys are switched, and probes do not take it.

pub(crate) mod queue;

use std::collections::{HashMap, HashSet};

use dormouse_keys::{Key, KeyUse, Lease, Selector, SelectorError};
use dormouse_sys::loader::PinError;
use dormouse_sys::process::fork::{Mutex, MutexGuard, Phase};
use dormouse_sys::process::lock::Reentrant;
use dormouse_sys::records::{self, RING_BYTES, RingOwner};
use dormouse_sys::{brief, environment, rendezvous};

use self::queue::{Queued, RecordQueue};
use crate::core::library;
use crate::core::probe::Probe;
use crate::core::record::{Reader, Record};

/// Bytes that a trace holds for a reader who is slow.
const QUEUE_BYTES: usize = 4 * 1024 * 1024;

static HUB: Mutex<Hub> = Mutex::with_child(
    Phase::Hub,
    Hub { traces: Vec::new(), last: 0, buffer: Vec::new(), is_parents: false },
    // Freeing is for later: a fork may have come over the allocator.
    |hub| hub.is_parents = true,
);

struct Hub {
    traces: Vec<Subscriber>,
    /// The number of the last trace.
    last: u64,
    buffer: Vec<u8>,
    /// The traces are those of the process that this one was forked from.
    is_parents: bool,
}

/// A trace, and the records that are queued for it.
#[derive(Debug)]
struct Subscriber {
    trace: u64,
    probes: HashSet<u32>,
    queue: RecordQueue,
}

/// The number of lost records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Records lost in full or missing rings.
    pub rings: u64,
    /// Records lost in this trace's queue, because it was not polled in time.
    pub trace: u64,
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The glob list does not parse.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// The glob list matches no key.
    #[error("no key matches `{glob}`")]
    NoMatch {
        /// The list.
        glob: String,
    },
    /// It matches keys, but no probe.
    #[error("no probe matches, but keys that have no records, as `{key}`")]
    NoProbe {
        /// The first of them.
        key: &'static str,
    },
    /// The keys could not be switched on.
    #[error(transparent)]
    Keys(#[from] dormouse_keys::Error),
    /// Another copy of dormouse traces, and records are read once.
    #[error("the copy of dormouse in {object} reads this process's records: trace there")]
    Elsewhere {
        /// The object that it is in.
        object: String,
    },
    /// The object that contains this copy of dormouse is being unloaded.
    #[error(transparent)]
    Leaving(#[from] PinError),
}

/// A running trace: its probes are awake until it is dropped.
///
/// ```no_run
/// let mut trace = dormouse::trace("order.*,!*.row")?;
/// // As long as it lives, and often enough:
/// trace.poll(|key, _thread, record| println!("{} {:?}", key.name(), record.values));
/// # Ok::<(), dormouse::TraceError>(())
/// ```
#[derive(Debug)]
pub struct Trace {
    keys: Vec<KeyUse>,
    names: HashMap<u32, (&'static Key, &'static Probe)>,
    /// In the hub, where it is no more in a forked child.
    number: u64,
    lease: Option<Lease>,
    dropped_before: u64,
}

/// Wakes the probes that a glob list selects (see [`Selector`]) and collects their records.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # fn brew() { dormouse::probe!("brew.step", cups = 2); }
/// let mut trace = dormouse::trace("brew.*")?;
/// brew();
/// trace.poll(|probe, thread, record| {
///     println!("{} {}: {:?}", thread.tid, probe.name(), record.values);
/// });
/// # Ok(())
/// # }
/// ```
pub fn trace(glob: &str) -> Result<Trace, TraceError> {
    let keys = Selector::parse(glob)?.try_keys()?;
    if keys.is_empty() {
        return Err(TraceError::NoMatch { glob: glob.to_owned() });
    }
    Trace::of(keys)
}

/// The name of a thread of this process; empty when it has ended. The kernel cuts names anywhere,
/// also in the middle of a character.
pub(crate) fn thread_name(tid: u32) -> String {
    let name = brief::read(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// Returns an error in a signal handler that interrupted its thread's use of the hub, and in the
/// middle of a fork.
fn hub() -> Result<MutexGuard<Hub>, Reentrant> {
    let mut hub = HUB.lock()?;
    if std::mem::take(&mut hub.is_parents) {
        hub.traces.clear();
    }
    Ok(hub)
}

/// Moves the new records from the rings to the queues of all traces.
pub(crate) fn gather() {
    if let Ok(mut hub) = hub() {
        hub.deal();
    }
}

impl Trace {
    /// A trace of the probes among these keys. Other keys are left as they are: one may be a flag
    /// of the service's, which changes its behaviour.
    pub(crate) fn of(mut keys: Vec<KeyUse>) -> Result<Self, TraceError> {
        if environment::is_off() {
            return Err(dormouse_keys::Error::Off.into());
        }
        let first = keys.first().map_or("", |k| k.key.name());
        keys.retain(|k| k.key.attached::<Probe>().is_some());
        if keys.is_empty() {
            return Err(TraceError::NoProbe { key: first });
        }
        library::install();
        dormouse_sys::loader::pin_self()?;
        rendezvous::read_rings().map_err(|object| TraceError::Elsewhere { object })?;
        // Measures the counter, from which the ends of scopes compute how long they took.
        dormouse_clock::point();
        let names: HashMap<u32, _> = keys
            .iter()
            .filter_map(|k| k.key.attached::<Probe>().map(|probe| (probe.id(), (k.key, probe))))
            .collect();
        let probes = names.keys().copied().collect();
        let number = {
            let mut hub = hub().map_err(|_| dormouse_keys::Error::Reentrant)?;
            // Earlier records belong to the other traces, or to none.
            hub.deal();
            hub.last += 1;
            let trace = hub.last;
            hub.traces.push(Subscriber { trace, probes, queue: RecordQueue::new(QUEUE_BYTES) });
            trace
        };
        let mut trace = Self { keys, names, number, lease: None, dropped_before: records::dropped() };
        // From here on the drop takes the subscriber off again, also when this fails.
        trace.lease = Some(Lease::of(trace.keys.iter().map(|k| k.key))?);
        Ok(trace)
    }

    /// The probes that the glob list selected.
    pub fn keys(&self) -> &[KeyUse] {
        &self.keys
    }

    /// The lease that keeps them on.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Takes the lease away: its owner keeps the keys on from now on.
    pub(crate) fn take_lease(&mut self) -> Option<Lease> {
        self.lease.take()
    }

    pub(crate) fn lease_mut(&mut self) -> Option<&mut Lease> {
        self.lease.as_mut()
    }

    /// Calls `each` for the new records, with probe, thread and record. The records of one thread
    /// come in order.
    pub fn poll(&mut self, mut each: impl FnMut(&'static Key, RingOwner, Record<'_>)) {
        for chunk in self.take().chunks() {
            for record in Reader::new(chunk.bytes).flatten() {
                if let Some((key, _)) = self.names.get(&record.probe) {
                    each(key, chunk.writer, record);
                }
            }
        }
    }

    /// Takes the new records, undecoded.
    pub(crate) fn take(&mut self) -> Queued {
        self.take_with_fill().0
    }

    /// Takes the new records, undecoded, and returns the bytes in the fullest ring that was
    /// emptied.
    pub(crate) fn take_with_fill(&mut self) -> (Queued, usize) {
        let Ok(mut hub) = hub() else { return Default::default() };
        let fullest = hub.deal();
        (hub.find(self.number).map(|subscriber| subscriber.queue.take()).unwrap_or_default(), fullest)
    }

    /// The keys of probes, by the number that their records carry.
    pub(crate) fn probes(&self) -> impl Iterator<Item = (u32, &'static Key)> {
        self.names.iter().map(|(number, (key, _))| (*number, *key))
    }

    /// Records lost since the last call. Those lost in rings may belong to any trace.
    pub fn dropped(&mut self) -> Dropped {
        let total = records::dropped();
        let rings = total.saturating_sub(std::mem::replace(&mut self.dropped_before, total));
        let mut hub = hub().ok();
        let subscriber = hub.as_mut().and_then(|hub| hub.find(self.number));
        Dropped { rings, trace: subscriber.map_or(0, |subscriber| subscriber.queue.take_dropped()) }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.lease = None;
        if let Ok(mut hub) = hub() {
            hub.traces.retain(|subscriber| subscriber.trace != self.number);
        }
    }
}

impl Hub {
    fn find(&mut self, trace: u64) -> Option<&mut Subscriber> {
        self.traces.iter_mut().find(|subscriber| subscriber.trace == trace)
    }

    /// Empties all rings into the queues. Gives the bytes of the fullest.
    fn deal(&mut self) -> usize {
        self.buffer.clear();
        if self.buffer.try_reserve(RING_BYTES).is_err() {
            // The records stay in the rings, which keep the newest, and count.
            return 0;
        }
        let mut fullest = 0;
        records::drain_each(&mut self.buffer, |ring, writer, bytes| {
            fullest = fullest.max(bytes.len());
            for trace in &mut self.traces {
                trace.offer(ring, writer, bytes);
            }
        });
        fullest
    }
}

impl Subscriber {
    fn offer(&mut self, ring: usize, writer: RingOwner, records: &[u8]) {
        let probes = &self.probes;
        let wanted = || {
            let mut reader = Reader::new(records);
            std::iter::from_fn(move || reader.next_raw()?.ok())
                .filter_map(|(probe, record)| probes.contains(&probe).then_some(record))
        };
        let (count, length) = wanted().fold((0, 0), |(count, length), r| (count + 1, length + r.len()));
        if count > 0 {
            self.queue.add((ring, writer), (count, length), wanted());
        }
    }
}

#[cfg(test)]
mod tests {
    use dormouse_testkit::in_child;

    use super::*;

    fn made(bytes: &str) {
        crate::probe!("gathering.made", bytes);
    }

    #[test]
    fn a_late_reader_loses_records_of_its_queue() {
        in_child(|| {
            let text = "x".repeat(200);
            made(&text);
            let mut trace = trace("gathering.*").unwrap();
            // Half a ring each time, and twice its queue in all.
            let rounds = 4 * QUEUE_BYTES / RING_BYTES;
            for _ in 0..rounds {
                (0..RING_BYTES / 2 / 256).for_each(|_| made(&text));
                gather();
            }
            let dropped = trace.dropped();
            assert!(dropped.rings == 0 && dropped.trace > 0, "{dropped:?}");
            let mut kept = 0;
            trace.poll(|_, _, _| kept += 1);
            assert_eq!(kept + dropped.trace, (rounds * (RING_BYTES / 2 / 256)) as u64);
        });
    }
}
