//! Detecting tasks that do not return from a poll.
//!
//! A scan finds which poll each thread is in ([`PollScanner`]). A poll that scans have found there
//! for the threshold is a *long poll*: its thread's stack is read, and a report is made. While it
//! lasts there is another report with a fresh stack each time that its length has doubled, and a
//! last one when it is over. There are two scans in a threshold, and one at the moment when a known
//! poll becomes a long one.
//!
//! From the first report on, scans also sample what the thread is in ([`ThreadSample`]): each time
//! that the poll has become longer by an eighth, but no more often than a scan, and ten times a
//! second at least.
//!
//! This adds nothing to a poll: the scans read what the thread has written for itself. They take a
//! system call for each thread with a task, so with very many threads they are rarer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use dormouse_events::{PollScanner, SeenPoll};
use dormouse_profile::{NoStack, StackReader, ThreadStack};
use dormouse_sys::process::identity;
use dormouse_sys::process::kernel_view::kernel_function;
use dormouse_waits::{is_on, polled};

use crate::core::group::Group;
use crate::features::stalls::{ThreadIn, ThreadSample, ThreadTally};
use crate::lookout::{Engine, NAME, own_cpu};

/// The shortest and the longest time between two scans.
const LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// The pause between scans is this many times the CPU time of the last scan, apart from stacks: at
/// most a twentieth of a processor goes to scans.
const RARELY: u32 = 20;

/// The longest time between two scans, however many threads there are.
const LONGEST: Duration = Duration::from_millis(200);

/// Watches at once.
const MAX_WATCHES: usize = 64;

/// Reports that wait for their taker.
const MAX_REPORTS: usize = 256;

/// The time that one scan has for stacks, but for the first of them. The others are read at the
/// next scan.
const STACKS: Duration = Duration::from_millis(50);

/// The shortest and the longest time between two samples of a thread in a long poll.
const THREAD_LOOKS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// A report on a poll that has lasted for a watch's threshold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LongPoll {
    /// The number of the poll, the same in all reports on it.
    pub number: u64,
    /// When the report was made.
    pub at: SystemTime,
    /// The id of the thread that polls.
    pub tid: u32,
    /// The name of that thread.
    pub thread: String,
    /// The number of the task that is charged now: the polled one, or one that was entered inside.
    pub task: u64,
    /// That task's group.
    pub group: Option<Group>,
    /// For how long the poll has lasted.
    pub lasted: Duration,
    /// Whether `lasted` is exact, because times of tasks are taken ([`crate::waits`]). Otherwise it
    /// is the time between the first and the last scan that saw the poll, which may have begun and
    /// ended up to one scan interval, at most 10 ms, before and after.
    pub is_exact: bool,
    /// The stack of that thread; `None` if the poll is over.
    pub stack: Option<ThreadStack>,
    /// Why there is no stack.
    pub no_stack: Option<NoStack>,
    /// The calls and states in which the thread was found since the first report, each with the
    /// number of samples; the most frequent first. Samples are closer at first, and never more than
    /// a tenth of a second apart unless the lookout is late.
    pub looks: Vec<(ThreadIn, u64)>,
    /// The last of these samples; `None` if the poll is over.
    pub now: Option<LongPollNow>,
    /// Whether the poll has ended. This is then the last report about it.
    pub is_over: bool,
}

/// The call or state of a thread in a long poll, when a report is made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LongPollNow {
    /// The call or state.
    pub within: ThreadIn,
    /// The first arguments of the system call, if it is in one.
    pub arguments: Option<[u64; 3]>,
    /// The function of the kernel in which it sleeps, where the kernel shows it.
    pub kernel_function: Option<String>,
    /// The id of the thread that owns the mutex for which it sleeps, if that is one of the C
    /// library's (glibc): the futex looks like one. The thread's stack shows whether it is.
    pub mutex_owner: Option<u32>,
}

/// The numbers of watches and of long polls, which no two have, also of two lookouts.
static LAST_WATCH: AtomicU64 = AtomicU64::new(0);
static LAST_POLL: AtomicU64 = AtomicU64::new(0);

/// The reports of a watch, on their way to their taker.
#[derive(Debug)]
pub(crate) struct Reports {
    /// The thread that makes them.
    lookout: u32,
    /// Nobody makes reports any more.
    is_over: AtomicBool,
    /// The time between two scans, in nanoseconds.
    between_ns: AtomicU64,
    /// Held for moments, and never over a fork: a child does not touch it.
    waiting: Mutex<VecDeque<LongPoll>>,
    lost: AtomicU64,
}

impl Reports {
    fn new() -> Self {
        Self {
            lookout: identity::tid(),
            is_over: AtomicBool::new(false),
            between_ns: AtomicU64::new(0),
            waiting: Mutex::default(),
            lost: AtomicU64::new(0),
        }
    }

    /// Whether no more reports will come: the lookout has panicked, or was killed.
    pub(crate) fn is_over(&self) -> bool {
        // The number of a thread that was killed may be another one's.
        let is_gone = || match std::fs::read(format!("/proc/self/task/{}/comm", self.lookout)) {
            Ok(name) => !name.starts_with(NAME.as_bytes()),
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        self.is_over.load(Ordering::Relaxed) || is_gone()
    }

    /// The time between two scans.
    pub(crate) fn between(&self) -> Duration {
        Duration::from_nanos(self.between_ns.load(Ordering::Relaxed))
    }

    /// Takes the reports so far, at most `most`.
    pub(crate) fn take(&self, most: usize) -> Vec<LongPoll> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(most);
        waiting.drain(..count).collect()
    }

    /// How many reports were lost, because they were not taken in time.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Adds a report; if there is no room, it replaces the oldest one. The lookout does not wait: a
    /// report that comes while others are being taken is lost unless that ends within a moment.
    fn push(&self, report: LongPoll) {
        for _ in 0..100 {
            let mut waiting = match self.waiting.try_lock() {
                Ok(waiting) => waiting,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::yield_now();
                    continue;
                }
            };
            if waiting.len() >= MAX_REPORTS {
                waiting.pop_front();
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            if waiting.try_reserve(1).is_ok() {
                return waiting.push_back(report);
            }
            break;
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// A client's request to watch long polls.
#[derive(Debug)]
struct PollWatch {
    number: u64,
    threshold: Duration,
    reports: Arc<Reports>,
}

impl Drop for PollWatch {
    fn drop(&mut self) {
        self.reports.is_over.store(true, Ordering::Relaxed);
    }
}

/// A poll that scans have found.
#[derive(Debug)]
struct KnownPoll {
    seen: SeenPoll,
    /// The end of the first scan that saw it.
    since: Instant,
    /// The begin of the last scan that saw it.
    until: Instant,
    /// Its number as a long poll; 0 if it is none yet.
    number: u64,
    /// By watch, the length at which the next report is due.
    due: Vec<(u64, Duration)>,
    samples: ThreadTally,
    last_sample: Option<(Instant, ThreadSample)>,
}

/// The means of scanning threads and reading stacks.
#[derive(Debug)]
struct Readers {
    scanner: PollScanner,
    /// Made at the first scan: to read tables may take long, and somebody waits for a watch.
    stacks: Option<Result<StackReader, NoStack>>,
}

/// The watches for long polls.
#[derive(Debug, Default)]
pub(crate) struct LongPollWatches {
    watches: Vec<PollWatch>,
    readers: Option<Readers>,
    /// By the index of the thread's block.
    known: HashMap<usize, KnownPoll>,
    next: Option<Instant>,
}

impl Engine for LongPollWatches {
    fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    fn step(&mut self, now: Instant, _: &mut [Box<dyn Engine>]) -> Option<Instant> {
        let between = self.watches.iter().map(|watch| watch.threshold / 2).min()?;
        if self.next.is_none_or(|next| next <= now) {
            let took = self.scan(now);
            let least = (took * RARELY).clamp(LOOKS[0], LONGEST);
            let between = between.clamp(LOOKS[0], LOOKS[1]).max(least);
            for watch in &self.watches {
                watch.reports.between_ns.store(between.as_nanos() as u64, Ordering::Relaxed);
            }
            let due = self
                .known
                .values()
                .flat_map(|poll| self.watches.iter().map(|watch| poll.since + poll.due(watch)));
            let now = Instant::now();
            self.next = due.chain([now + between]).min().map(|next| next.max(now + least));
        }
        self.next
    }

    fn end(&mut self, number: u64) {
        self.watches.retain(|watch| watch.number != number);
        self.known.values_mut().for_each(|poll| poll.due.retain(|(of, _)| *of != number));
        if self.watches.is_empty() {
            *self = Self::default();
        }
    }
}

impl LongPollWatches {
    /// Watches for polls of that length: the number by which it ends, and the reports.
    pub(crate) fn start(&mut self, threshold: Duration) -> Result<(u64, Arc<Reports>), String> {
        if self.watches.len() >= MAX_WATCHES {
            return Err(format!("{MAX_WATCHES} watches for long polls are there: end one of them"));
        }
        if self.readers.is_none() {
            let scanner =
                PollScanner::new().map_err(|error| format!("threads cannot be looked at: {error}"))?;
            self.readers = Some(Readers { scanner, stacks: None });
        }
        let number = LAST_WATCH.fetch_add(1, Ordering::Relaxed) + 1;
        let reports = Arc::new(Reports::new());
        self.watches.push(PollWatch { number, threshold, reports: Arc::clone(&reports) });
        self.next = None;
        Ok((number, reports))
    }

    /// Scans the threads, and reads stacks. Returns the CPU time of the former.
    fn scan(&mut self, now: Instant) -> Duration {
        let Some(Readers { scanner, stacks }) = &mut self.readers else { return Duration::ZERO };
        stacks.get_or_insert_with(StackReader::new);
        let began = own_cpu();
        let mut polls: Vec<SeenPoll> = Vec::new();
        for seen in scanner.polls() {
            if polls.try_reserve(1).is_err() {
                break;
            }
            polls.push(seen);
        }
        let took = own_cpu().saturating_sub(began);
        let seen_at = Instant::now();
        if self.known.try_reserve(polls.len()).is_err() {
            return took;
        }
        let mut before = std::mem::take(&mut self.known);
        for seen in polls {
            let known = match before.remove(&seen.block()) {
                Some(known) if known.seen.is_same(&seen) => KnownPoll { seen, until: now, ..known },
                gone => {
                    self.tell_end(gone);
                    KnownPoll::new(seen, seen_at)
                }
            };
            self.known.insert(seen.block(), known);
        }
        for gone in before.into_values() {
            self.tell_end(Some(gone));
        }
        let due: Vec<usize> = self.known.keys().copied().filter(|at| self.is_due(*at)).collect();
        for (done, at) in due.into_iter().enumerate() {
            if done == 0 || now.elapsed() < STACKS {
                self.tell(at);
            }
        }
        took + self.sample(now)
    }

    /// Samples the threads in long polls. Returns the CPU time of that.
    fn sample(&mut self, now: Instant) -> Duration {
        let Some(Readers { scanner, .. }) = &self.readers else { return Duration::ZERO };
        let mut due = self.known.values_mut().filter(|poll| poll.is_sample_due(now)).peekable();
        if due.peek().is_none() {
            return Duration::ZERO;
        }
        let began = own_cpu();
        due.take_while(|_| now.elapsed() < STACKS).for_each(|poll| poll.sample(scanner));
        own_cpu().saturating_sub(began)
    }

    /// Whether a report on the poll is due.
    fn is_due(&self, at: usize) -> bool {
        let Some(poll) = self.known.get(&at) else { return false };
        let lasted = poll.seen_for();
        self.watches.iter().any(|watch| lasted >= poll.due(watch))
    }

    /// Reports a poll to the watches for which that is due.
    fn tell(&mut self, at: usize) {
        let (Some(readers), Some(poll)) = (&mut self.readers, self.known.get_mut(&at)) else { return };
        let stack = match &mut readers.stacks {
            Some(Ok(stacks)) => stacks.read(poll.seen.tid),
            Some(Err(why)) => Err(why.clone()),
            None => return,
        };
        // A stack is that of the poll only if the poll is still there.
        let until = Instant::now();
        let again = readers.scanner.again(&poll.seen);
        if poll.number == 0 {
            poll.number = LAST_POLL.fetch_add(1, Ordering::Relaxed) + 1;
        }
        let Some(seen) = again else { return };
        (poll.seen, poll.until) = (seen, until);
        poll.sample(&readers.scanner);
        let seen_for = poll.seen_for();
        let (stack, no_stack) = match stack {
            Ok(stack) => (Some(stack), None),
            Err(why) => (None, Some(why)),
        };
        let now = poll.now(&readers.scanner);
        let report = LongPoll { stack, no_stack, now, ..poll.report(seen_for, false) };
        for watch in &self.watches {
            let mut due = poll.due(watch);
            if seen_for < due {
                continue;
            }
            while due <= seen_for {
                due = due.saturating_mul(2);
            }
            poll.due.retain(|(of, _)| *of != watch.number);
            poll.due.push((watch.number, due));
            watch.reports.push(report.clone());
        }
    }

    /// Reports the end of a poll to the watches that have reported it.
    fn tell_end(&self, gone: Option<KnownPoll>) {
        let Some(poll) = gone.filter(|poll| poll.number != 0) else { return };
        let lasted = poll.seen_for();
        let report = poll.report(lasted, true);
        for watch in &self.watches {
            // A poll that ended while its stack was read was not reported to any watch.
            let is_known = poll.due.iter().any(|(of, _)| *of == watch.number);
            if is_known || poll.due.is_empty() && lasted >= watch.threshold {
                watch.reports.push(report.clone());
            }
        }
    }
}

impl KnownPoll {
    fn new(seen: SeenPoll, at: Instant) -> Self {
        let samples = ThreadTally::default();
        Self { seen, since: at, until: at, number: 0, due: Vec::new(), samples, last_sample: None }
    }

    /// Whether it is a long poll, and time to sample its thread.
    fn is_sample_due(&self, now: Instant) -> bool {
        let [shortest, longest] = THREAD_LOOKS;
        let pause = (self.seen_for() / 8).clamp(shortest, longest);
        self.number != 0 && self.last_sample.is_none_or(|(at, _)| at + pause <= now)
    }

    /// Samples what its thread is in. The sample counts if the poll is still there afterwards.
    fn sample(&mut self, scanner: &PollScanner) {
        let sample = ThreadSample::at(self.seen.tid);
        if scanner.again(&self.seen).is_some() {
            self.samples.add(sample.within, 1);
            self.last_sample = Some((Instant::now(), sample));
        }
    }

    /// The last sample, for a report that is made right after it.
    fn now(&self, scanner: &PollScanner) -> Option<LongPollNow> {
        let (_, ThreadSample { within, arguments }) = self.last_sample.filter(|(at, _)| *at >= self.until)?;
        let kernel_function = arguments.and_then(|_| kernel_function(self.seen.tid));
        let futex = arguments.filter(|_| within == ThreadIn::Call(libc::SYS_futex as u32));
        let mutex_owner = futex.and_then(|[futex, ..]| mutex_owner(scanner, futex as usize, self.seen.tid));
        Some(LongPollNow { within, arguments, kernel_function, mutex_owner })
    }

    fn seen_for(&self) -> Duration {
        self.until.saturating_duration_since(self.since)
    }

    /// The length at which the next report for a watch is due.
    fn due(&self, watch: &PollWatch) -> Duration {
        let known = self.due.iter().find(|(of, _)| *of == watch.number);
        known.map_or(watch.threshold, |(_, due)| *due)
    }

    /// A report without a stack.
    fn report(&self, seen_for: Duration, is_over: bool) -> LongPoll {
        let SeenPoll { tid, task, group, .. } = self.seen;
        let exact = if is_on() && !is_over {
            let is_it = |poll: &dormouse_waits::PolledTask| {
                (poll.block, poll.task) == (self.seen.block(), self.seen.polled)
            };
            polled().find(is_it).map(|poll| Duration::from_nanos(poll.for_ns))
        } else {
            None
        };
        let name = std::fs::read(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
        LongPoll {
            number: self.number,
            at: SystemTime::now(),
            tid,
            thread: String::from_utf8_lossy(&name).trim_end().to_owned(),
            task,
            group: Group::by_id(group),
            lasted: exact.unwrap_or(seen_for),
            is_exact: exact.is_some(),
            stack: None,
            no_stack: None,
            looks: self.samples.sorted(),
            now: None,
            is_over,
        }
    }
}

/// The owner of a mutex of glibc's at that address for which a thread waits. Such a mutex has three
/// words of 32 bits at its beginning: 2 while somebody waits, a count, and the owner's thread id.
fn mutex_owner(scanner: &PollScanner, futex: usize, waits: u32) -> Option<u32> {
    const CONTENDED: u32 = 2;
    let state = scanner.word(futex)? as u32;
    let owner = scanner.word(futex.checked_add(8)?)? as u32;
    let is_thread = || std::fs::exists(format!("/proc/self/task/{owner}")).unwrap_or(false);
    (state == CONTENDED && owner != 0 && owner != waits && is_thread()).then_some(owner)
}
