//! Profiles of page faults that are being taken, on the keeper's thread.
//!
//! Profiles that are taken at once share the samples of the finest. Threads that begin meanwhile
//! are found by scans; their earlier faults are only in the account, and so is a thread's rest of
//! less than N faults.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZero;
use std::time::{Duration, Instant};

use dormouse_protocol::profile::{Profile, ProfileKind};
use dormouse_sys::perf::{Error as Refusal, OpenEvent};
use dormouse_sys::process::threads;
use dormouse_sys::{signals, trap};
use dormouse_unwind::own;

use super::copies::Copies;
use super::event;
use super::handler::{Fault, QUEUE};
use crate::Error;
use crate::mappings::Mappings;
use crate::options::Options;
use crate::sampling::engine::Engine;
use crate::sampling::queue::Queue;
use crate::sampling::sum::Sum;

/// The time between two readings of the queue.
const DRAIN: Duration = Duration::from_millis(50);
/// The shortest time between two scans for new threads.
const RESCAN: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST: Duration = Duration::from_secs(1);
/// The pause between scans for new threads is this many times the CPU time of the last scan.
const RARELY: u32 = 500;
/// Records that there is room for: twenty thousand a second.
const RECORDS: usize = 1024;

/// The sampler of page faults.
#[derive(Debug, Default)]
pub(in crate::sampling) struct Sampler {
    takes: BTreeMap<u64, Take>,
    armed: Option<Armed>,
    copies: Option<Copies>,
    mappings: Mappings,
}

/// One profile.
#[derive(Debug)]
struct Take {
    sum: Sum,
    every: NonZero<u32>,
    /// The samples that were lost before.
    dropped: u64,
    armed: HashSet<u32>,
    refused: HashSet<u32>,
}

/// The events of all threads.
#[derive(Debug)]
struct Armed {
    queue: &'static Queue<Fault>,
    data: u64,
    every: NonZero<u32>,
    /// By thread; none: it was refused.
    events: HashMap<u32, Option<OpenEvent>>,
    list: Vec<u32>,
    next_scan: Instant,
    /// An obstacle has come, and the events were closed.
    is_over: bool,
}

/// Learns the C library, which brings in most pages: a sample of a fault leaves no copy of its
/// stack, so functions that are not known would be without callers until the next step.
fn learn_library() {
    let known = libc::getpid as *const () as usize;
    if !dormouse_sys::loader::is_in_executable(known) {
        own::learn_object(known as u64);
    }
}

impl Engine for Sampler {
    fn kind(&self) -> ProfileKind {
        ProfileKind::Faults
    }

    fn start(&mut self, number: u64, options: &Options, note: Option<&str>) -> Result<(), Error> {
        learn_library();
        self.drain();
        let every = NonZero::new(options.faults).unwrap_or(NonZero::<u32>::MIN);
        let data = event::take_signal().map_err(Error::Unavailable)?;
        let queue = match &self.armed {
            Some(armed) => armed.queue,
            None => QUEUE.begin(RECORDS).map_err(|error| Error::Unavailable(error.to_string()))?,
        };
        // A thread that ended while it wrote blocks a queue: the next profile gets another one.
        if self.takes.is_empty() {
            self.copies = Copies::begin();
        }
        let mut sum = Sum::new(ProfileKind::Faults, every.get().into());
        if let Some(note) = note {
            sum.note(note);
        }
        let (armed, refused) = (HashSet::new(), HashSet::new());
        let take = Take { sum, every, dropped: queue.dropped() + trap::cramped(), armed, refused };
        self.look_at_mappings();
        self.takes.insert(number, take);
        let refused = self.arm(queue, data);
        // A refusal to all is an error; one to some, a note.
        let has_none = self.armed.as_ref().is_none_or(|armed| armed.events.values().all(Option::is_none));
        if let (Some(error), true) = (refused, has_none) {
            self.end(number);
            return Err(Error::Unavailable(error.to_string()));
        }
        Ok(())
    }

    fn size(&self, number: u64) -> usize {
        self.takes.get(&number).map_or(0, |take| take.sum.size())
    }

    fn read(&mut self, number: u64) -> Option<Profile> {
        self.scan();
        self.drain();
        self.look_at_mappings();
        let dropped = self.armed.as_ref().map_or(0, |armed| armed.queue.dropped() + trap::cramped());
        let take = self.takes.get_mut(&number)?;
        take.sum.coverage.dropped = dropped - take.dropped;
        Some(take.sum.read(&self.mappings, |_| ()))
    }

    fn end(&mut self, number: u64) {
        self.drain();
        self.takes.remove(&number);
        match self.armed.take().filter(|_| !self.takes.is_empty()) {
            Some(armed) if self.finest() == Some(armed.every) => self.armed = Some(armed),
            Some(Armed { queue, data, events, .. }) => {
                // Closed before others are opened, so that no fault counts twice.
                drop(events);
                _ = self.arm(queue, data);
            }
            None => {}
        }
    }

    fn step(&mut self) -> Option<Duration> {
        self.drain();
        let armed = self.armed.as_ref()?;
        if armed.next_scan <= Instant::now() || !armed.is_over && event::obstacle().is_some() {
            self.scan();
        }
        Some(DRAIN)
    }
}

impl Sampler {
    fn look_at_mappings(&mut self) {
        self.mappings.refresh();
        self.takes.values_mut().for_each(|take| take.sum.replace(self.mappings.replaced()));
    }

    /// Whether nobody profiles.
    pub(in crate::sampling) fn is_empty(&self) -> bool {
        self.takes.is_empty()
    }

    fn finest(&self) -> Option<NonZero<u32>> {
        self.takes.values().map(|take| take.every).min()
    }

    /// Arms all threads as the finest profile wants it. An answer is the first refusal.
    fn arm(&mut self, queue: &'static Queue<Fault>, data: u64) -> Option<Refusal> {
        let every = self.finest()?;
        // Others than those that there are: they are closed first, so that no fault counts twice.
        let known = self.armed.take().filter(|armed| armed.every == every && !armed.is_over);
        self.armed = Some(known.unwrap_or_else(|| Armed {
            queue,
            data,
            every,
            events: HashMap::new(),
            list: Vec::new(),
            next_scan: Instant::now(),
            is_over: false,
        }));
        self.scan()
    }

    /// Arms threads that have begun, and forgets those that have ended. An answer is the first
    /// refusal.
    fn scan(&mut self) -> Option<Refusal> {
        let armed = self.armed.as_mut()?;
        let takes = &mut self.takes;
        let mut note = |sentence: &str| takes.values_mut().for_each(|take| take.sum.note(sentence));
        if armed.is_over {
            return None;
        }
        if let Some(obstacle) = event::obstacle() {
            armed.is_over = true;
            armed.events.clear();
            note(obstacle);
            return None;
        }
        let before = Instant::now();
        if threads::list(&mut armed.list).is_err() {
            note("the list of threads cannot be read");
            return None;
        }
        let mut first = None;
        for &tid in &armed.list {
            if armed.events.contains_key(&tid) || signals::is_ours(tid) {
                continue;
            }
            if event::obstacle().is_some() {
                // The next step closes the others.
                break;
            }
            if armed.events.try_reserve(1).is_err() {
                note("threads are left out: there is no memory for them");
                break;
            }
            let event = match event::open(tid, armed.data, armed.every) {
                Ok(event) => Some(event),
                Err(Refusal::NoSuchThread { .. }) => continue,
                Err(error) => {
                    note(&format!("threads are left out: {error}"));
                    first.get_or_insert(error);
                    None
                }
            };
            armed.events.insert(tid, event);
        }
        armed.list.sort_unstable();
        let list = &armed.list;
        armed.events.retain(|tid, _| list.binary_search(tid).is_ok() || threads::is_alive(*tid));
        for take in takes.values_mut() {
            take.know(&armed.events);
        }
        armed.next_scan = Instant::now() + (before.elapsed() * RARELY).clamp(RESCAN, LONGEST);
        first
    }

    fn drain(&mut self) {
        let Some(armed) = &self.armed else { return };
        let (takes, copies) = (&mut self.takes, &mut self.copies);
        armed.queue.drain(|record| {
            let Fault { tid, faults, copy } = record.of_kind;
            if let Some(frames) = copies.as_mut().filter(|_| copy != 0).and_then(|it| it.take(copy)) {
                record.frames = frames;
            }
            for take in takes.values_mut() {
                take.sum.add(tid, record, [1, faults.into(), 0, 0]);
            }
        });
    }
}

impl Take {
    /// Counts the threads.
    fn know(&mut self, events: &HashMap<u32, Option<OpenEvent>>) {
        for (&tid, event) in events {
            let threads = if event.is_some() { &mut self.armed } else { &mut self.refused };
            if threads.try_reserve(1).is_ok() {
                threads.insert(tid);
            }
        }
        let (armed, refused) = (self.armed.len() as u64, self.refused.len() as u64);
        let coverage = &mut self.sum.coverage;
        (coverage.threads, coverage.armed, coverage.refused) = (armed + refused, armed, refused);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[test]
    fn events_are_closed_before_others_are_opened() {
        dormouse_testkit::in_child(|| {
            let mut sampler = Sampler::default();
            for (number, faults) in [(1, 1000), (2, 500)] {
                let options = Options { kind: ProfileKind::Faults, faults, ..Options::default() };
                if let Err(error) = sampler.start(number, &options, None) {
                    return dormouse_testkit::skip(error);
                }
            }
            let fine = sampler.armed.as_ref().unwrap();
            let count = fine.events.values().flatten().count();
            assert!(count > 1, "the list of threads needs a descriptor");
            // No descriptor is free beside those of the events.
            let next = std::fs::File::open("/dev/null").unwrap();
            let most = std::os::fd::AsRawFd::as_raw_fd(&next) as u64;
            drop(next);
            setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..getrlimit(Resource::Nofile) })
                .unwrap();
            sampler.end(2);
            let coarse = sampler.armed.as_ref().unwrap();
            assert_eq!(coarse.events.values().flatten().count(), count);
            sampler.end(1);
        });
    }
}
