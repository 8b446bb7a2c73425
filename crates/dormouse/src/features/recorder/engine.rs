//! The flight recorder: probes that stay awake, and the newest of their records.
//!
//! There is one in a process. Its keys are held here, where every thread may end it and the agent
//! lists it; its records are with the lookout, which empties the rings as often as they fill. It
//! reads from the hub as a trace does.
//!
//! | event | keys | records |
//! |---|---|---|
//! | [`start`] | held, by the thread that asks | none until the lookout has begun |
//! | a pass | | the newest of all rings, as many as the memory holds |
//! | [`stop`], by anybody | given back, by the thread that asks | gone when the lookout gets to it |
//! | its time is over | given back, by the lookout | gone |
//! | the lookout was killed | given back, by the next that asks for it | gone |
//! | a fork, in the child | none | none |
//!
//! # Locking
//!
//! `RUNNING`, for moments. No key is switched under it. A fork waits for it. The child drops its
//! contents without freeing anything.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dormouse_keys::{BatchReport, Key, KeyUse, Lease};
use dormouse_sys::keeper::KeeperError;
use dormouse_sys::process::fork::{Mutex, MutexGuard, Phase};
use dormouse_sys::process::lock::Reentrant;
use dormouse_sys::records::{RING_BYTES, RINGS, RingOwner};

use crate::core::trace::queue::{Chunk, Queued, RecordQueue};
use crate::core::trace::{Dropped, Trace, TraceError, thread_name};
use crate::lookout::{Engine, LOOKOUT, Watched};

/// The default memory of a recorder.
pub const DEFAULT_MEMORY: usize = 8 * 1024 * 1024;
/// The least: some rings' worth.
const LEAST_MEMORY: usize = 256 * 1024;
/// The most.
const MOST_MEMORY: usize = 1024 * 1024 * 1024;

/// How often rings are emptied at least, and at most.
const SELDOM: Duration = Duration::from_millis(100);
const OFTEN: Duration = Duration::from_millis(1);

/// How long the lookout may be busy before no recorder begins.
const PATIENCE: Duration = Duration::from_secs(3);

/// A ring is to be so full when it is emptied: the rest is for threads that speed up.
const AIM: usize = RING_BYTES / 4;

/// Names of threads that are remembered. Those of living threads can be asked for.
const NAMES: usize = 1024;

/// Losses that are remembered one by one.
const LOSSES: usize = 256;

static RUNNING: Mutex<Running> = Mutex::with_child(
    Phase::Recorder,
    Running { held: None, is_parents: false },
    // Freeing is for later: a fork may have come over the allocator.
    |running| running.is_parents = true,
);

/// The recorder as all threads see it.
#[derive(Debug)]
struct Running {
    held: Option<Held>,
    is_parents: bool,
}

#[derive(Debug)]
struct Held {
    /// `None` while [`lend`] has lent it.
    lease: Option<Lease>,
    /// Whether the lookout has its errand.
    is_begun: bool,
    until: Option<Instant>,
    stat: RecorderStat,
}

/// The state of a recorder at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderStat {
    /// The recorder's number, never reused in a process.
    pub number: u64,
    /// The glob list that chose the recorder's keys.
    pub glob: String,
    /// The number of keys that the recorder holds.
    pub keys: usize,
    /// The memory that the recorder may take, in bytes.
    pub memory: usize,
    /// The memory that records occupy, in bytes.
    pub held: usize,
    /// The number of records that the recorder has.
    pub records: u64,
    /// The number of records that were replaced by newer ones.
    pub aged: u64,
    /// The number of records lost before they reached the recorder: the oldest of full rings, and
    /// those that found no ring.
    pub dropped: u64,
    /// The age of the oldest record.
    pub kept: Option<Duration>,
    /// The time until the recorder ends by itself; `None` if it does not.
    pub left: Option<Duration>,
    /// The time between two reads of the rings.
    pub tick: Duration,
}

/// Why the recorder cannot start, or is missing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderError {
    /// The glob list is invalid, or its keys cannot be switched.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// One records already.
    #[error("a recorder runs already, of `{glob}`: end it first (`dormouse record TARGET --off`)")]
    Running {
        /// Its glob list.
        glob: String,
    },
    /// An amount of memory that no recorder may have.
    #[error(
        "{bytes} bytes of memory: a recorder takes from {} KiB to {} MiB",
        LEAST_MEMORY / 1024, MOST_MEMORY / (1024 * 1024)
    )]
    Memory {
        /// The requested number of bytes.
        bytes: usize,
    },
    /// The process does not have this much memory.
    #[error("there are no {bytes} bytes of memory for the recorder")]
    NoMemory {
        /// The requested number of bytes.
        bytes: usize,
    },
    /// The thread that reads the rings could not be started.
    #[error("the lookout: {0}")]
    Lookout(#[from] KeeperError),
}

fn running() -> Result<MutexGuard<Running>, Reentrant> {
    let mut running = RUNNING.lock()?;
    if std::mem::take(&mut running.is_parents) {
        std::mem::forget(running.held.take());
    }
    Ok(running)
}

/// Starts the recorder of these keys, for a time or until it is stopped: its number, and the report
/// of the batch that woke them.
pub(crate) fn start(
    glob: &str,
    keys: impl FnOnce() -> Result<Vec<KeyUse>, TraceError>,
    memory: usize,
    length: Option<Duration>,
) -> Result<(u64, BatchReport), RecorderError> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if !(LEAST_MEMORY..=MOST_MEMORY).contains(&memory) {
        return Err(RecorderError::Memory { bytes: memory });
    }
    // Before keys are switched for nothing.
    if let Some(running) = stat() {
        return Err(RecorderError::Running { glob: running.glob });
    }
    // It may be writing to a disk that does not answer.
    LOOKOUT.ask_for(PATIENCE, |_| ())?;
    let queue = RecordQueue::with_memory(memory).map_err(|_| RecorderError::NoMemory { bytes: memory })?;
    let mut trace = Trace::of(keys()?)?;
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let Some(lease) = trace.take_lease() else {
        return Err(TraceError::from(dormouse_keys::Error::Reentrant).into());
    };
    let (report, until) = (lease.report(), length.and_then(|length| Instant::now().checked_add(length)));
    let stat = RecorderStat {
        number,
        glob: glob.to_owned(),
        keys: lease.keys().len(),
        memory,
        held: 0,
        records: 0,
        aged: 0,
        dropped: 0,
        kept: None,
        left: None,
        tick: SELDOM,
    };
    {
        let mut running = running().map_err(|_| KeeperError::Reentrant)?;
        if let Some(other) = &running.held {
            let glob = other.stat.glob.clone();
            drop(running);
            return Err(RecorderError::Running { glob });
        }
        running.held = Some(Held { lease: Some(lease), is_begun: false, until, stat: stat.clone() });
    }
    let run = Run::new(trace, queue, until, stat);
    // Its answer is waited for: without memory the lookout refuses.
    let begun = LOOKOUT.begin(move |engines| {
        engines.get::<Recording>().begin(run);
        Ok::<_, std::convert::Infallible>(())
    });
    if let Err(error) = begun {
        drop(take(Some(number)));
        return Err(error.into());
    }
    if let Ok(mut running) = running()
        && let Some(held) = running.held.as_mut().filter(|held| held.stat.number == number)
    {
        held.is_begun = true;
    }
    Ok((number, report))
}

/// Ends the recorder, or none if its number is another one; gives its last figures. Its keys go off
/// unless somebody else holds them.
pub(crate) fn stop(number: Option<u64>) -> Option<RecorderStat> {
    let held = take(number)?;
    LOOKOUT.end(Watched::by::<Recording>(held.stat.number));
    Some(held.now())
}

/// Takes the recorder's keys from where others see them.
fn take(number: Option<u64>) -> Option<Held> {
    let mut running = running().ok()?;
    let is_it = |held: &mut Held| number.is_none_or(|number| held.stat.number == number);
    running.held.take_if(is_it)
}

/// The recorder as the lookout saw it last.
pub(crate) fn stat() -> Option<RecorderStat> {
    let stat = {
        let running = running().ok()?;
        let held = running.held.as_ref()?;
        if !held.is_begun {
            return Some(held.now());
        }
        held.now()
    };
    if LOOKOUT.is_there() {
        return Some(stat);
    }
    // The lookout was killed, and the records are gone with it.
    drop(take(Some(stat.number)));
    None
}

/// The keys that the recorder holds, and how long it does.
pub(crate) fn held_keys() -> (Vec<&'static Key>, Option<Duration>) {
    let Some(RecorderStat { left, .. }) = stat() else { return Default::default() };
    let keys = running().ok().and_then(|it| Some(it.held.as_ref()?.lease.as_ref()?.keys().to_vec()));
    (keys.unwrap_or_default(), left)
}

/// The recorder's lease, for a batch that ends leases by force. It is not lent under the lock: a
/// thread that has a lock of an early phase may not wait for the patch lock, or a fork that another
/// copy of dormouse takes part in never ends.
#[derive(Debug)]
pub(crate) struct LentLease {
    number: u64,
    lease: Option<Lease>,
}

/// Lends the lease, if there is a recorder. Dropped, it goes back, or ends with the recorder that
/// has ended meanwhile.
pub(crate) fn lend() -> Option<LentLease> {
    let mut running = running().ok()?;
    let held = running.held.as_mut()?;
    Some(LentLease { number: held.stat.number, lease: held.lease.take() })
}

impl LentLease {
    pub(crate) fn lease_mut(&mut self) -> Option<&mut Lease> {
        self.lease.as_mut()
    }

    fn give_back(&mut self) -> Option<Lease> {
        let lease = self.lease.take()?;
        let Ok(mut running) = running() else { return Some(lease) };
        match running.held.as_mut().filter(|held| held.stat.number == self.number) {
            Some(held) => held.lease.replace(lease),
            None => Some(lease),
        }
    }
}

impl Drop for LentLease {
    fn drop(&mut self) {
        // Not under the lock, either.
        drop(self.give_back());
    }
}

impl Held {
    fn now(&self) -> RecorderStat {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let keys = self.lease.as_ref().map_or(self.stat.keys, |lease| lease.keys().len());
        RecorderStat { keys, left, ..self.stat.clone() }
    }
}

/// The recorder's records.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    run: Option<Run>,
}

/// A recorder that runs.
#[derive(Debug)]
pub(crate) struct Run {
    trace: Trace,
    queue: RecordQueue,
    /// By the number of the ring, the thread of it whose records came last.
    writers: Box<[Option<RingOwner>; RINGS]>,
    names: VecDeque<(RingOwner, String)>,
    /// How many records had come at all, and how many more were lost since the entry before.
    losses: VecDeque<(u64, u64)>,
    until: Option<Instant>,
    next: Instant,
    stat: RecorderStat,
}

/// A copy of a recorder's records, with the names that they need.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) queued: Queued,
    /// The keys of its probes, by the number in records.
    pub(crate) keys: HashMap<u32, &'static Key>,
}

impl Engine for Recording {
    fn is_empty(&self) -> bool {
        self.run.is_none()
    }

    fn step(&mut self, now: Instant, _: &mut [Box<dyn Engine>]) -> Option<Instant> {
        let run = self.run.as_mut()?;
        if run.until.is_some_and(|until| until <= now) {
            let number = run.stat.number;
            stop(Some(number));
            self.end(number);
            return None;
        }
        if run.next <= now {
            let fullest = run.look();
            run.stat.tick = next_tick(run.stat.tick, fullest);
            run.next = now + run.stat.tick;
            run.tell();
        }
        Some(run.until.map_or(run.next, |until| until.min(run.next)))
    }

    fn end(&mut self, number: u64) {
        self.run.take_if(|run| run.stat.number == number);
    }
}

impl Recording {
    fn begin(&mut self, run: Run) {
        // A thread that has ended it meanwhile found nothing here to end.
        let is_held = |run: &Run| {
            running().is_ok_and(|it| it.held.as_ref().is_some_and(|held| held.stat.number == run.stat.number))
        };
        self.run = Some(run).filter(is_held);
    }

    /// The recorder, if there is one, with all records up to now.
    pub(crate) fn newest(&mut self) -> Option<&mut Run> {
        let run = self.run.as_mut()?;
        run.look();
        run.tell();
        Some(run)
    }
}

/// The time until the next read of the rings, after one at which the fullest ring had `fullest`
/// bytes. It shrinks at once, and grows slowly, because a thread that has paused may go on.
fn next_tick(tick: Duration, fullest: usize) -> Duration {
    let right = tick.mul_f64(AIM as f64 / fullest.max(1) as f64);
    right.min(2 * tick).clamp(OFTEN, SELDOM)
}

impl Run {
    fn new(trace: Trace, queue: RecordQueue, until: Option<Instant>, stat: RecorderStat) -> Self {
        let (writers, names) = (Box::new([const { None }; RINGS]), VecDeque::new());
        let losses = VecDeque::with_capacity(LOSSES);
        Self { trace, queue, writers, names, losses, until, next: Instant::now(), stat }
    }

    /// Takes the records that have come. Gives the bytes of the fullest ring.
    fn look(&mut self) -> usize {
        let (queued, fullest) = self.trace.take_with_fill();
        for chunk in queued.chunks() {
            self.name(&chunk);
            self.queue.add_chunk(&chunk);
        }
        let Dropped { rings, trace } = self.trace.dropped();
        self.stat.aged += self.queue.take_dropped();
        self.lose(rings + trace);
        fullest
    }

    /// Notes that records were lost before they came here.
    fn lose(&mut self, lost: u64) {
        self.stat.dropped += lost;
        let (aged, come) = (self.stat.aged, self.stat.aged + self.queue.size().0);
        while self.losses.front().is_some_and(|(come, _)| *come < aged) {
            self.losses.pop_front();
        }
        if lost == 0 {
            return;
        }
        let is_full = self.losses.len() == LOSSES;
        match self.losses.back_mut() {
            Some(last) if is_full => *last = (come, last.1 + lost),
            _ => self.losses.push_back((come, lost)),
        }
    }

    /// How many records are missing among those from that number on. Numbers count from the
    /// recorder's first record.
    pub(crate) fn lost_since(&self, number: u64) -> u64 {
        self.losses.iter().filter(|(come, _)| *come >= number).map(|(_, lost)| lost).sum()
    }

    /// Stores the name of a thread, which may have ended when the records are read.
    fn name(&mut self, chunk: &Chunk<'_>) {
        let Some(writer) = self.writers.get_mut(chunk.ring) else { return };
        if writer.replace(chunk.writer) == Some(chunk.writer) {
            return;
        }
        if self.names.len() >= NAMES {
            self.names.pop_front();
        }
        self.names.push_back((chunk.writer, thread_name(chunk.writer.tid)));
    }

    /// Has other threads see what there is.
    fn tell(&mut self) {
        (self.stat.records, self.stat.held) = self.queue.size();
        self.stat.kept = self.queue.oldest_tsc().map(|tsc| {
            let ticks = dormouse_clock::point().tsc.saturating_sub(tsc);
            Duration::from_nanos(dormouse_clock::ticks_to_ns(ticks))
        });
        if let Ok(mut running) = running()
            && let Some(held) = running.held.as_mut().filter(|held| held.stat.number == self.stat.number)
        {
            // The glob list is there, and allocates nothing.
            let (own, glob) = (std::mem::take(&mut self.stat.glob), std::mem::take(&mut held.stat.glob));
            held.stat = RecorderStat { glob, ..self.stat.clone() };
            self.stat.glob = own;
        }
    }

    /// The figures at the last pass.
    pub(crate) fn stat(&self) -> &RecorderStat {
        &self.stat
    }

    /// Its trace: keys, and the probes of its records.
    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Its records chunk by chunk, the oldest first.
    pub(crate) fn chunks(&mut self) -> impl Iterator<Item = Chunk<'_>> {
        self.queue.chunks()
    }

    /// The name that a thread had when its records came. Of very many threads, the oldest that
    /// have ended have none.
    pub(crate) fn name_of(&self, writer: RingOwner) -> String {
        let known = self.names.iter().rev().find(|(owner, _)| *owner == writer);
        known.map_or_else(|| thread_name(writer.tid), |(_, name)| name.clone())
    }

    /// A copy of its records; none without memory for it.
    pub(crate) fn copy(&self) -> Option<Copied> {
        Some(Copied { queued: self.queue.copy()?, keys: self.trace.probes().collect() })
    }
}

#[cfg(test)]
mod tests;
