//! Who reads the rings: traces, each with the probes that it asked for.
//!
//! A ring has one reader, and of several copies of dormouse in a process one reads the rings of all. Whoever polls its
//! trace empties all rings and deals the records out to all traces; a trace that is polled too rarely loses what does
//! not fit its queue, and counts it. Nobody polls while there is no trace.
//!
//! # Locking
//!
//! `HUB` before a trace's queue; neither is held while keys are switched, and probes take neither.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dormouse_keys::{Key, KeyUse, Lease, Selector, SelectorError};
use dormouse_sys::loader::PinError;
use dormouse_sys::rendezvous;
use dormouse_sys::ring::{self, Writer};

use crate::probe::Probe;
use crate::record::{Reader, Record};

/// Bytes that a trace holds for a reader who is slow.
const QUEUE_BYTES: usize = 4 * 1024 * 1024;

static HUB: Mutex<Hub> = Mutex::new(Hub { traces: Vec::new(), buffer: Vec::new() });

struct Hub {
    traces: Vec<Arc<Subscriber>>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Subscriber {
    probes: HashSet<u32>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: Vec<Chunk>,
    bytes: usize,
    dropped: u64,
}

/// Records of one thread, one behind the other.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) writer: Writer,
    pub(crate) bytes: Vec<u8>,
}

/// Records lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// In full or missing rings.
    pub rings: u64,
    /// In this trace's queue, because it was not polled in time.
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
    /// The keys could not be switched on.
    #[error(transparent)]
    Keys(#[from] dormouse_keys::Error),
    /// Another copy of dormouse traces, and records are read once.
    #[error("the copy of dormouse in {object} reads this process's records: trace there")]
    Elsewhere {
        /// The object that it is in.
        object: String,
    },
    /// The object that this copy of dormouse is in is being unloaded.
    #[error(transparent)]
    Leaving(#[from] PinError),
}

/// A running trace: its probes are awake until it is dropped.
#[derive(Debug)]
pub struct Trace {
    keys: Vec<KeyUse>,
    names: HashMap<u32, (&'static Key, &'static Probe)>,
    subscriber: Arc<Subscriber>,
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
/// trace.poll(|probe, thread, record| println!("{} {}: {:?}", thread.tid, probe.name(), record.values));
/// # Ok(())
/// # }
/// ```
pub fn trace(glob: &str) -> Result<Trace, TraceError> {
    let keys = Selector::parse(glob)?.keys();
    if keys.is_empty() {
        return Err(TraceError::NoMatch { glob: glob.to_owned() });
    }
    Trace::of(keys)
}

fn hub() -> MutexGuard<'static, Hub> {
    HUB.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Trace {
    pub(crate) fn of(keys: Vec<KeyUse>) -> Result<Self, TraceError> {
        rendezvous::stay()?;
        rendezvous::read_rings().map_err(|object| TraceError::Elsewhere { object })?;
        // Measures the counter, by which the ends of scopes tell how long they took.
        dormouse_clock::point();
        let names: HashMap<u32, _> = keys
            .iter()
            .filter_map(|k| k.key.attached::<Probe>().map(|probe| (probe.id(), (k.key, probe))))
            .collect();
        let subscriber =
            Arc::new(Subscriber { probes: names.keys().copied().collect(), queue: Mutex::default() });
        {
            let mut hub = hub();
            // What was recorded before is nobody's, or the other traces'.
            hub.deal();
            hub.traces.push(Arc::clone(&subscriber));
        }
        let mut trace = Self { keys, names, subscriber, lease: None, dropped_before: ring::dropped() };
        // From here on the drop takes the subscriber off again, also when this fails.
        trace.lease = Some(Lease::of(trace.keys.iter().map(|k| k.key))?);
        Ok(trace)
    }

    /// The keys that the glob list selected.
    pub fn keys(&self) -> &[KeyUse] {
        &self.keys
    }

    /// The lease that keeps them on.
    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    pub(crate) fn lease_mut(&mut self) -> Option<&mut Lease> {
        self.lease.as_mut()
    }

    /// Hands over the records that have come: probe, thread, record. Those of one thread come in order.
    pub fn poll(&mut self, mut each: impl FnMut(&'static Key, Writer, Record<'_>)) {
        for chunk in self.take() {
            for record in Reader::new(&chunk.bytes).flatten() {
                if let Some((key, _)) = self.names.get(&record.probe) {
                    each(key, chunk.writer, record);
                }
            }
        }
    }

    /// As [`Trace::poll`], undecoded.
    pub(crate) fn take(&mut self) -> Vec<Chunk> {
        hub().deal();
        let mut queue = self.subscriber.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.bytes = 0;
        std::mem::take(&mut queue.chunks)
    }

    /// Records lost since the last call. Those lost in rings may have been any trace's.
    pub fn dropped(&mut self) -> Dropped {
        let total = ring::dropped();
        let rings = total.saturating_sub(std::mem::replace(&mut self.dropped_before, total));
        let mut queue = self.subscriber.queue.lock().unwrap_or_else(PoisonError::into_inner);
        Dropped { rings, trace: std::mem::take(&mut queue.dropped) }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.lease = None;
        hub().traces.retain(|s| !Arc::ptr_eq(s, &self.subscriber));
    }
}

impl Hub {
    /// Empties all rings into the queues.
    fn deal(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        ring::drain_all(&mut buffer, |writer, bytes| {
            for trace in &self.traces {
                trace.offer(writer, bytes);
            }
        });
        self.buffer = buffer;
    }
}

impl Subscriber {
    fn offer(&self, writer: Writer, bytes: &[u8]) {
        let mut wanted = Vec::new();
        let mut count = 0;
        let mut reader = Reader::new(bytes);
        while let Some(Ok((probe, record))) = reader.next_raw() {
            if self.probes.contains(&probe) {
                wanted.extend_from_slice(record);
                count += 1;
            }
        }
        if count == 0 {
            return;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.bytes + wanted.len() > QUEUE_BYTES {
            queue.dropped += count;
        } else {
            queue.bytes += wanted.len();
            queue.chunks.push(Chunk { writer, bytes: wanted });
        }
    }
}
