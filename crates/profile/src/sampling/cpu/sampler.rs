//! The sampler's work, on its own thread: arms threads, reads what handlers leave, and gives it to
//! the profiles that are being taken.
//!
//! # Safety
//!
//! The unsafe code asks the kernel for an address of another thread's.
#![allow(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use dormouse_clock::{process_cpu_ns, process_exact, thread_cpu_ns_of};
use dormouse_sys::process::{identity, threads};
use dormouse_sys::{masks, signals};

use super::arm::{self, Refused};
use super::handler::{self, Record, Tick};
use super::signal;
use super::slots::{self, SlotId};
use super::take::Take;
use crate::mappings::Mappings;
use crate::options::Options;
use crate::sampling::queue::Queue;
use crate::{Error, Profile};

/// The time between two looks at the queue.
const DRAIN: Duration = Duration::from_millis(100);
/// The shortest time between two looks for new threads.
const RESCAN: Duration = Duration::from_millis(200);
/// A look for new threads comes after so many times of the CPU time that the last one took.
const RARELY: u32 = 500;
/// The same for a look at the mappings, which follows only where there were new threads.
const SELDOM: u32 = 100;
/// Records of each processor that there is room for: a second at the highest rate of usual kernels.
const RECORDS: usize = 256;
/// The most records that there is room for, on machines with many processors.
const MOST_RECORDS: usize = 8192;

/// The longest time between two looks for new threads.
const LONGEST: Duration = Duration::from_secs(1);

/// The duty of the sampler's thread.
#[derive(Debug)]
pub(in crate::sampling) struct Sampler {
    takes: Vec<(u64, Take)>,
    queue: &'static Queue<Tick>,
    /// The armed threads.
    armed: HashMap<u32, SlotId>,
    /// The threads that have no timer, and why. Nobody asks for them again.
    refused: HashMap<u32, String>,
    /// Threads whose stack is to be found.
    unbound: Vec<SlotId>,
    list: Vec<u32>,
    mappings: Mappings,
    /// The code of the C library, where it is an object of its own.
    library: Range<usize>,
    next_scan: Instant,
    /// The host has taken our signal.
    is_over: bool,
}

impl Sampler {
    /// Prepares what stays: the signal's handler, and the queue.
    pub(in crate::sampling) fn new() -> Result<Self, Error> {
        let is_child = arm::begin_in_child();
        signal::take(handler::handle).map_err(|error| unavailable(&format!("no signal is free: {error}")))?;
        let queue = match handler::queue() {
            // The parent's has records of the parent.
            Some(queue) if !is_child && queue.is_whole() => queue,
            _ => {
                let processors = std::thread::available_parallelism().map_or(1, usize::from);
                let records = (processors * RECORDS).min(MOST_RECORDS);
                let queue = Queue::map(records).map_err(|error| unavailable(&error.to_string()))?;
                handler::write_to(queue);
                queue
            }
        };
        arm::hook();
        Ok(Self {
            takes: Vec::new(),
            queue,
            armed: HashMap::new(),
            refused: HashMap::new(),
            unbound: Vec::new(),
            list: Vec::new(),
            mappings: Mappings::default(),
            library: 0..0,
            next_scan: Instant::now(),
            is_over: false,
        })
    }

    /// Whether nobody profiles.
    pub(in crate::sampling) fn is_empty(&self) -> bool {
        self.takes.is_empty()
    }

    /// Begins a profile.
    pub(in crate::sampling) fn start(&mut self, number: u64, options: &Options) -> Result<(), Error> {
        self.step();
        if self.is_over || !signal::is_ours(handler::handle) {
            self.end_over();
            signal::take(handler::handle)
                .map_err(|error| unavailable(&format!("no signal is free: {error}")))?;
            self.is_over = false;
        }
        let mut take = Take::new(options, process_ns(), self.queue.dropped());
        self.run_at(self.period().min(take.period()));
        self.scan();
        self.refresh_mappings();
        for (&tid, &id) in &self.armed {
            take.add_thread(id, tid, thread_cpu_ns_of(tid).unwrap_or(0));
        }
        for (&tid, why) in &self.refused {
            take.refuse(tid, why);
        }
        self.takes.push((number, take));
        Ok(())
    }

    /// A profile so far.
    pub(in crate::sampling) fn read(&mut self, number: u64) -> Option<Profile> {
        self.step();
        self.refresh_mappings();
        let at = self.takes.iter().position(|&(other, _)| other == number)?;
        let (_, take) = &mut self.takes[at];
        for thread in take.threads_mut() {
            // Threads name themselves after they have begun; one that has ended keeps its name.
            if let Some(name) = name_of(thread.tid) {
                thread.name = name;
            }
        }
        let least = 2 * take.period();
        let used = |(tid, before): (u32, u64)| {
            let is_busy = thread_cpu_ns_of(tid).is_some_and(|now| now.saturating_sub(before) > least);
            is_busy && masks::is_blocking(tid, signal::number())
        };
        let blocking = take.silent().filter(|&thread| used(thread)).count() as u64;
        Some(take.read(process_ns(), self.queue.dropped(), blocking, &self.mappings))
    }

    /// Ends a profile.
    pub(in crate::sampling) fn end(&mut self, number: u64) {
        self.drain();
        self.takes.retain(|&(other, _)| other != number);
        if self.takes.is_empty() {
            self.disarm_all();
        } else {
            self.run_at(self.period());
        }
    }

    /// Reads what handlers have left, and from time to time looks for threads. Gives the time until
    /// the next step.
    pub(in crate::sampling) fn step(&mut self) -> Duration {
        self.adopt();
        self.drain();
        if self.next_scan <= Instant::now() && !self.takes.is_empty() {
            self.scan();
        }
        DRAIN
    }

    /// The shortest period that a profile has.
    fn period(&self) -> u64 {
        self.takes.iter().map(|(_, take)| take.period()).min().unwrap_or(u64::MAX)
    }

    /// Has all timers run at this period.
    fn run_at(&mut self, period: u64) {
        if self.is_over || period == arm::period() {
            return;
        }
        arm::set_period(period);
        for &id in self.armed.values() {
            arm::change(id, period);
        }
    }

    /// Arms threads that have begun, and gives back the slots of those that have ended.
    fn scan(&mut self) {
        if !self.is_over && !signal::is_ours(handler::handle) {
            self.end_over();
        }
        if self.is_over {
            return;
        }
        let before = own_cpu();
        if threads::list(&mut self.list).is_err() {
            self.takes.iter_mut().for_each(|(_, take)| take.note("the list of threads cannot be read"));
            return;
        }
        let mut pause = own_cpu().saturating_sub(before) * RARELY;
        let period = arm::period();
        for at in 0..self.list.len() {
            let tid = self.list[at];
            if !self.armed.contains_key(&tid) && !self.refused.contains_key(&tid) && !signals::is_ours(tid) {
                self.arm(tid, period);
            }
        }
        let listed: HashSet<u32> = self.list.iter().copied().collect();
        let has_ended = |tid: u32| !listed.contains(&tid) && !threads::is_alive(tid);
        self.refused.retain(|&tid, _| !has_ended(tid));
        let ended: Vec<_> =
            self.armed.iter().filter(|&(&tid, _)| has_ended(tid)).map(|(&t, &id)| (t, id)).collect();
        if !ended.is_empty() {
            // Its last samples.
            self.drain();
        }
        for (tid, id) in ended {
            self.armed.remove(&tid);
            arm::disarm(id);
            self.takes.iter_mut().for_each(|(_, take)| take.remove_thread(id));
        }
        if let Some(&first) = self.armed.get(&identity::pid()) {
            // Its stack grows.
            if first.slot().is_some_and(slots::Slot::has_strayed) {
                self.unbound.push(first);
            }
        }
        let before = own_cpu();
        self.find_stacks();
        pause += own_cpu().saturating_sub(before) * SELDOM;
        self.next_scan = Instant::now() + pause.clamp(RESCAN, LONGEST);
    }

    fn arm(&mut self, tid: u32, period: u64) {
        let why = match arm::arm(tid, period) {
            Ok(Some(id)) => return self.add_thread(tid, id),
            // It has armed itself, and is announced.
            Ok(None) => return,
            Err(Refused::Kernel(error)) if error.raw_os_error() == Some(libc::EINVAL) => return, // it has ended
            Err(Refused::Kernel(error)) => format!(
                "the kernel refused threads a timer: {error} (`ulimit -i` is how many signals a user may have queued, and timers count as such)"
            ),
            Err(Refused::Limit) => "dormouse takes a quarter of the queued signals that a user may have (`ulimit -i`) for its timers at most: further threads have none".to_owned(),
            Err(Refused::Slots) => format!("{} threads can be sampled at most", slots::SLOTS),
        };
        self.takes.iter_mut().for_each(|(_, take)| take.refuse(tid, &why));
        self.refused.insert(tid, why);
    }

    /// Learns of threads that have armed themselves.
    fn adopt(&mut self) {
        for (tid, id) in slots::announced() {
            if id.generation == 0 {
                slots::at(id.index).free();
            } else if id.slot().is_some() {
                self.add_thread(tid, id);
            }
        }
    }

    fn add_thread(&mut self, tid: u32, id: SlotId) {
        self.armed.insert(tid, id);
        self.unbound.push(id);
        let used = thread_cpu_ns_of(tid).unwrap_or(0);
        self.takes.iter_mut().for_each(|(_, take)| take.find_thread(id, tid, used));
    }

    /// Finds the stacks of threads that have begun. The C library puts a thread's control block, in
    /// which the kernel knows an address, at the upper end of its stack.
    fn find_stacks(&mut self) {
        if self.unbound.is_empty() {
            return;
        }
        self.mappings.refresh();
        for id in self.unbound.drain(..) {
            let Some(slot) = id.slot() else { continue };
            if slot.tid() == identity::pid() {
                let stack = self.mappings.stack();
                slot.set_bounds(stack.start as usize, stack.end as usize);
            } else if let Some(block) = control_block(slot.tid())
                && let Some(low) = self.mappings.readable_from(block as u64)
            {
                slot.set_bounds(low as usize, block);
            }
        }
    }

    fn drain(&mut self) {
        let period = arm::period();
        let (takes, library) = (&mut self.takes, &self.library);
        let read = |record: &Record| {
            for (_, take) in &mut *takes {
                let tid = SlotId::from_value(record.of_kind.value).slot().map_or(0, slots::Slot::tid);
                take.add(record, period, library, || name_of(tid).unwrap_or_default());
            }
        };
        let mut read = read;
        while self.queue.pop(&mut read).is_some() {}
    }

    fn refresh_mappings(&mut self) {
        self.mappings.refresh();
        let known = libc::pthread_create as *const () as u64;
        let program = std::env::current_exe().unwrap_or_default();
        let library = self.mappings.of(known).filter(|mapping| mapping.path.as_str() != program.as_os_str());
        self.library = library.map_or(0..0, |mapping| mapping.start as usize..mapping.end as usize);
    }

    /// The host has taken the signal.
    fn end_over(&mut self) {
        self.is_over = true;
        self.disarm_all();
        let note = "the program has set a handler of its own for the signal by which samples are taken: \
                    nothing was sampled after that";
        self.takes.iter_mut().for_each(|(_, take)| take.end(note));
    }

    fn disarm_all(&mut self) {
        arm::set_period(0);
        // Nothing is allocated: there may be no memory.
        slots::announced().for_each(|(_, id)| arm::disarm(id));
        for (_, id) in self.armed.drain() {
            arm::disarm(id);
        }
        self.unbound.clear();
        self.refused.clear();
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.disarm_all();
    }
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

/// The name of a thread.
fn name_of(tid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}

/// An address in the control block of a thread, if the C library has told the kernel one.
fn control_block(tid: u32) -> Option<usize> {
    let (mut head, mut length) = (0_usize, 0_usize);
    // SAFETY: valid places; a thread that does not exist is refused.
    let refused =
        unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut length) } != 0;
    (!refused && head != 0).then_some(head)
}
