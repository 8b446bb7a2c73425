//! The sampler's work, on its own thread: it arms threads, reads what handlers leave, and passes it
//! to the profiles that are being taken.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use dormouse_clock::{process_cpu_ns, process_exact, thread_cpu_ns_of};
use dormouse_sys::process::{identity, threads};
use dormouse_sys::{masks, perf, signals};

use super::arm::{self, Refused};
use super::bounds::Blocks;
use super::copies::Copies;
use super::handler::{self, Record, Tick};
use super::signal;
use super::slots::{self, Slot, SlotId};
use super::take::{NO_MEMORY, Take, name_of};
use super::timer;
use crate::mappings::Mappings;
use crate::options::Options;
use crate::sampling::queue::Queue;
use crate::{Error, Profile};

/// The time between two readings of the queue.
const DRAIN: Duration = Duration::from_millis(100);
/// The shortest time between two scans for new threads.
const RESCAN: Duration = Duration::from_millis(200);
/// The pause between scans for new threads is this many times the CPU time of the last scan, but at
/// most [`LONGEST`]: scans use at most 0.2 % of a CPU, or with more than a thousand threads what
/// one scan a second takes.
const RARELY: u32 = 500;
/// The corresponding factor for reading the mappings, which is done only after new threads were
/// found.
const SELDOM: u32 = 100;
/// Records of each processor that there is room for: half a second at the highest rate of usual
/// kernels. A record has 4 KiB.
const RECORDS: usize = 128;
/// The most records that there is room for, on machines with many processors.
const MOST_RECORDS: usize = 4096;

/// How many threads that blocked the signal are checked again in each scan: it takes 15 us each.
const ASK_AGAIN: usize = 64;
/// CPU time without a sample after which a thread is taken to block the signal: some ticks, and
/// periods of its timer.
const SILENT: (u64, u64) = (20_000_000, 2);

/// The longest time between two scans for new threads.
const LONGEST: Duration = Duration::from_secs(1);

/// The note on a thread whose clock is refused.
const UNTOLD: &str = "the kernel refuses threads their CPU clock, as a filter of system calls does: samples weigh as \
                      much as the period of their timer";

/// The duty of the sampler's thread.
#[derive(Debug)]
pub(in crate::sampling) struct Sampler {
    takes: BTreeMap<u64, Take>,
    queue: &'static Queue<Tick>,
    /// Handlers copy stacks of which they miss a table; `None`: there is no memory for copies.
    copies: Option<Copies>,
    armed: HashMap<u32, Armed>,
    /// The threads that have no timer, and why. They are not tried again.
    refused: HashMap<u32, Refused>,
    /// Threads that are not armed, because they block the signal: one that waits for signals would
    /// get ours.
    blocking: HashSet<u32>,
    /// Threads that run the kernel's code alone.
    of_kernel: HashSet<u32>,
    /// The last of them that was asked again.
    asked: u32,
    /// Threads whose stack is to be found.
    unbound: Vec<SlotId>,
    blocks: Blocks,
    list: Vec<u32>,
    mappings: Mappings,
    /// The code of the C library, where it is an object of its own.
    library: Range<usize>,
    next_scan: Instant,
    /// The host has taken our signal.
    is_over: bool,
}

/// An armed thread.
#[derive(Debug)]
struct Armed {
    id: SlotId,
    /// Its CPU time at its last sample, or when it was last checked.
    seen_ns: u64,
}

impl Armed {
    /// Whether it has ended, also if another thread has its id by now.
    fn has_ended(&self) -> bool {
        self.id.slot().is_none_or(|slot| timer::is_over(slot.timer()))
    }
}

impl Sampler {
    /// Prepares what stays: the signal's handler, and the queue.
    pub(super) fn new() -> Result<Self, Error> {
        arm::begin_in_child();
        signal::take(handler::handle).map_err(|error| unavailable(&format!("no signal is free: {error}")))?;
        let queue = handler::QUEUE.begin(records()).map_err(|error| unavailable(&error.to_string()))?;
        // The last sampler may have been killed, or is a parent's.
        arm::end_abandoned();
        handler::end_to_copy();
        arm::hook();
        Ok(Self {
            takes: BTreeMap::new(),
            queue,
            copies: Copies::begin().ok(),
            armed: HashMap::new(),
            refused: HashMap::new(),
            blocking: HashSet::new(),
            of_kernel: HashSet::new(),
            asked: 0,
            unbound: Vec::new(),
            blocks: Blocks::find(),
            list: Vec::new(),
            mappings: Mappings::default(),
            library: 0..0,
            next_scan: Instant::now(),
            is_over: false,
        })
    }

    /// Whether there is no profile.
    pub(super) fn is_empty(&self) -> bool {
        self.takes.is_empty()
    }

    /// Begins a profile.
    pub(super) fn start(&mut self, number: u64, options: &Options, note: Option<&str>) -> Result<(), Error> {
        self.step();
        if self.is_over || !signal::is_ours(handler::handle) {
            self.end_over();
            signal::take(handler::handle)
                .map_err(|error| unavailable(&format!("no signal is free: {error}")))?;
            self.is_over = false;
        }
        let mut take = Take::new(options, process_ns(), self.queue.dropped());
        if let Some(note) = note {
            take.note(note);
        }
        self.run_at(self.period().min(take.period()));
        self.scan();
        self.refresh_mappings();
        for (&tid, armed) in &self.armed {
            take.add_thread(armed.id, tid, thread_cpu_ns_of(tid));
        }
        for (&tid, why) in &self.refused {
            take.refuse(tid, &why.to_string());
        }
        self.blocking.iter().for_each(|&tid| take.block(tid));
        self.of_kernel.iter().for_each(|&tid| take.find_unsampled(tid, true, None));
        self.takes.insert(number, take);
        Ok(())
    }

    /// The profile so far.
    pub(super) fn read(&mut self, number: u64) -> Option<Profile> {
        self.step();
        self.find_silent();
        self.refresh_mappings();
        let take = self.takes.get_mut(&number)?;
        take.name_threads(name_of);
        take.look_at_unsampled();
        Some(take.read(process_ns(), self.queue.dropped(), &self.mappings))
    }

    /// The bytes that a profile takes.
    pub(super) fn size(&self, number: u64) -> usize {
        self.takes.get(&number).map_or(0, Take::size)
    }

    /// Ends a profile.
    pub(super) fn end(&mut self, number: u64) {
        self.drain();
        self.takes.remove(&number);
        if self.takes.is_empty() {
            self.disarm_all();
        } else {
            self.run_at(self.period());
        }
    }

    /// Reads what handlers have left, and from time to time looks for threads. Gives the time until
    /// the next step.
    pub(super) fn step(&mut self) -> Duration {
        self.adopt();
        self.drain();
        if !self.is_over && !self.takes.is_empty() && !signal::is_ours(handler::handle) {
            self.end_over();
        }
        if slots::are_cramped() {
            self.disarm_if(|_, armed| armed.id.slot().is_some_and(Slot::is_cramped), Some(Refused::Stack));
        }
        if self.next_scan <= Instant::now() && !self.takes.is_empty() {
            self.scan();
        }
        // Copies are long, and there is room for few.
        self.copies.as_mut().map_or(DRAIN, Copies::pause)
    }

    /// The shortest period that a profile has.
    fn period(&self) -> u64 {
        self.takes.values().map(Take::period).min().unwrap_or(u64::MAX)
    }

    /// Has all timers run at this period.
    fn run_at(&mut self, period: u64) {
        if self.is_over || period == arm::period() {
            return;
        }
        arm::set_period(period);
        // A thread that has armed itself finds the new period, or is in the list by now.
        self.adopt();
        for armed in self.armed.values() {
            arm::change(armed.id, period);
        }
    }

    /// Arms threads that have begun, and gives back the slots of those that have ended.
    fn scan(&mut self) {
        if self.is_over {
            return;
        }
        let before = own_cpu();
        if threads::list(&mut self.list).is_err() {
            self.takes.values_mut().for_each(|take| take.note("the list of threads cannot be read"));
            return;
        }
        self.list.sort_unstable();
        let list = &self.list;
        let has_ended = |tid: u32| list.binary_search(&tid).is_err() && !threads::is_alive(tid);
        self.refused.retain(|&tid, _| !has_ended(tid));
        self.blocking.retain(|&tid| !has_ended(tid));
        self.of_kernel.retain(|&tid| !has_ended(tid));
        self.takes.values_mut().for_each(Take::look_at_unsampled);
        let mut ended = Vec::new();
        for (&tid, armed) in &self.armed {
            if (has_ended(tid) || armed.has_ended()) && ended.try_reserve(1).is_ok() {
                ended.push(tid);
            }
        }
        if !ended.is_empty() {
            // Their last samples: none come after this.
            self.drain();
        }
        for tid in ended {
            let Some(armed) = self.armed.remove(&tid) else { continue };
            arm::disarm(armed.id);
            self.takes.values_mut().for_each(|take| take.remove_thread(armed.id));
        }
        self.find_silent();
        let mut pause = own_cpu().saturating_sub(before) * RARELY;
        let period = arm::period();
        // In turn, so that each of those that block is asked again some time.
        let (first, mut asked) = (self.list.partition_point(|&tid| tid <= self.asked), 0);
        for at in (first..self.list.len()).chain(0..first) {
            let tid = self.list[at];
            let is_known = self.armed.contains_key(&tid)
                || self.refused.contains_key(&tid)
                || self.of_kernel.contains(&tid);
            if is_known || signals::is_ours(tid) {
                continue;
            }
            if self.blocking.contains(&tid) {
                asked += 1;
                if asked > ASK_AGAIN {
                    continue;
                }
                self.asked = tid;
            }
            self.arm(tid, period);
        }
        if let Some(first) = self.armed.get(&identity::pid()) {
            // Its stack grows.
            if first.id.slot().is_some_and(Slot::has_strayed) {
                self.unbound.push(first.id);
            }
        }
        let before = own_cpu();
        self.find_stacks();
        pause += own_cpu().saturating_sub(before) * SELDOM;
        self.next_scan = Instant::now() + pause.clamp(RESCAN, LONGEST);
    }

    fn arm(&mut self, tid: u32, period: u64) {
        if !self.has_room() {
            return;
        }
        // The kernel's own, as io_uring's: none runs code of the program's.
        if threads::is_of_kernel(tid) {
            self.of_kernel.insert(tid);
            return self.takes.values_mut().for_each(|take| take.find_unsampled(tid, true, None));
        }
        // One that was found deaf stays so until a scan finds it open.
        let signal = signal::number();
        let was_deaf = self.blocking.contains(&tid);
        if masks::is_blocking(tid, signal) || was_deaf && masks::is_blocking_now(tid, signal) {
            self.blocking.insert(tid);
            return self.takes.values_mut().for_each(|take| take.block(tid));
        }
        self.blocking.remove(&tid);
        match arm::arm(tid, period) {
            Ok(Some(id)) => self.add_thread(tid, id),
            // It has armed itself, and is announced.
            Ok(None) => {}
            Err(Refused::Taken) => self.end_over(),
            // The kernel finds no such thread: it has ended.
            Err(Refused::Kernel(libc::EINVAL)) if !threads::is_alive(tid) => {}
            Err(why) => {
                let text = why.to_string();
                self.takes.values_mut().for_each(|take| take.refuse(tid, &text));
                self.refused.insert(tid, why);
            }
        }
    }

    /// Whether there is memory for one more thread. If not, the profiles end.
    fn has_room(&mut self) -> bool {
        let has_room = self.armed.try_reserve(1).is_ok()
            && self.refused.try_reserve(1).is_ok()
            && self.blocking.try_reserve(1).is_ok()
            && self.of_kernel.try_reserve(1).is_ok()
            && self.unbound.try_reserve(1).is_ok();
        if !has_room {
            self.takes.values_mut().for_each(|take| take.end(NO_MEMORY));
        }
        has_room
    }

    /// Disarms threads that run and leave no samples, because they block the signal.
    fn find_silent(&mut self) {
        let (ticks, periods) = SILENT;
        let least = ticks + periods.saturating_mul(arm::period());
        let is_silent = |tid: u32, armed: &mut Armed| {
            let used = thread_cpu_ns_of(tid).filter(|used| used.saturating_sub(armed.seen_ns) > least);
            // It is asked once in a while.
            // No start of a thread, for which the C library blocks all signals, takes that long.
            used.inspect(|&used| armed.seen_ns = used).is_some()
                && masks::is_blocking_now(tid, signal::number())
        };
        self.disarm_if(is_silent, None);
    }

    /// Disarms threads because they block the signal, or for the reason `why`.
    fn disarm_if(&mut self, mut is_it: impl FnMut(u32, &mut Armed) -> bool, why: Option<Refused>) {
        let armed = self.armed.len();
        if self.blocking.try_reserve(armed).is_err() || self.refused.try_reserve(armed).is_err() {
            return;
        }
        let text = why.map(|why| why.to_string());
        for (tid, armed) in self.armed.extract_if(|&tid, armed| is_it(tid, armed)) {
            arm::disarm(armed.id);
            match why {
                Some(why) => _ = self.refused.insert(tid, why),
                None => _ = self.blocking.insert(tid),
            }
            self.takes.values_mut().for_each(|take| take.disarm(armed.id, text.as_deref()));
        }
    }

    /// Learns of threads that have armed themselves.
    fn adopt(&mut self) {
        for (tid, id) in slots::announced() {
            if id.slot().is_some() && self.has_room() {
                self.add_thread(tid, id);
            } else {
                arm::disarm(id);
            }
        }
    }

    fn add_thread(&mut self, tid: u32, id: SlotId) {
        let used = thread_cpu_ns_of(tid);
        self.armed.insert(tid, Armed { id, seen_ns: used.unwrap_or(0) });
        self.unbound.push(id);
        self.takes.values_mut().for_each(|take| take.find_thread(id, tid, used));
    }

    /// Finds the stacks of threads that have begun.
    fn find_stacks(&mut self) {
        // Threads that have come and gone in the meantime: the mappings are not looked at for them.
        self.unbound.retain(|id| id.slot().is_some());
        if self.unbound.is_empty() {
            return;
        }
        self.look_at_mappings();
        for id in self.unbound.drain(..) {
            let Some(slot) = id.slot() else { continue };
            if let Some(bounds) = self.blocks.bounds(slot.tid(), &self.mappings) {
                slot.set_bounds(bounds.start, bounds.end);
            }
        }
    }

    /// Reads what handlers have left.
    fn drain(&mut self) {
        let queue = self.queue;
        queue.drain(|record| {
            let copies = self.copies.as_mut().filter(|_| record.of_kind.is_copied);
            let unwound = copies.and_then(|copies| copies.take(record));
            self.give(unwound.as_ref().unwrap_or(record));
        });
    }

    fn give(&mut self, record: &Record) {
        let Tick { value, cpu_ns, overruns, .. } = record.of_kind;
        let id = SlotId::from_value(value);
        let Some(tid) = id.slot().map(Slot::tid) else { return };
        if self.armed.get(&tid).is_none_or(|thread| thread.id != id) {
            // It has armed itself since the last step.
            self.adopt();
        }
        let Self { takes, library, armed, .. } = self;
        let Some(thread) = armed.get_mut(&tid).filter(|thread| thread.id == id) else { return };
        let (is_told, period) = (cpu_ns != 0, arm::period());
        // The timer shows it, too, though less precisely.
        let expired = period.saturating_mul(1 + u64::from(overruns));
        thread.seen_ns = if is_told { cpu_ns } else { thread.seen_ns.saturating_add(expired) };
        for take in takes.values_mut() {
            if !is_told {
                take.note(UNTOLD);
            }
            take.add(record, thread.seen_ns, period, library, || name_of(id));
        }
    }

    fn look_at_mappings(&mut self) {
        self.mappings.refresh();
        self.takes.values_mut().for_each(|take| take.replace(self.mappings.replaced()));
    }

    fn refresh_mappings(&mut self) {
        self.look_at_mappings();
        let known = libc::pthread_create as *const () as u64;
        let program = std::env::current_exe().unwrap_or_default();
        let library = self.mappings.of(known).filter(|mapping| mapping.path.as_str() != program.as_os_str());
        self.library = library.map_or(0..0, |mapping| mapping.start as usize..mapping.end as usize);
    }

    /// The host has taken the signal.
    fn end_over(&mut self) {
        self.is_over = true;
        self.disarm_all();
        let note = "the program has set an action of its own for the signal by which samples are taken: \
                    nothing was sampled after that";
        self.takes.values_mut().for_each(|take| take.end(note));
    }

    fn disarm_all(&mut self) {
        arm::set_period(0);
        // Nothing is allocated: there may be no memory.
        slots::announced().for_each(|(_, id)| arm::disarm(id));
        for (_, armed) in self.armed.drain() {
            arm::disarm(armed.id);
        }
        self.unbound.clear();
        self.blocking.clear();
        self.of_kernel.clear();
        self.refused.clear();
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.disarm_all();
    }
}

/// The number of records for which there is room. All processors count, even if the calling thread
/// is bound to one of them.
fn records() -> usize {
    (perf::online_cpus().len() * RECORDS).min(MOST_RECORDS)
}

fn unavailable(why: &str) -> Error {
    Error::Unavailable(why.to_owned())
}

/// CPU time of the process, up to date where there is a list of threads.
fn process_ns() -> u64 {
    process_exact().unwrap_or_else(|_| process_cpu_ns())
}

/// CPU time of the sampler itself.
fn own_cpu() -> Duration {
    // Not rustix's, which panics where a filter refuses it.
    Duration::from_nanos(thread_cpu_ns_of(identity::tid()).unwrap_or(0))
}

#[cfg(test)]
mod tests;
