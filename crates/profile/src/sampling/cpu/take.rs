//! One profile that is being taken: which samples it takes, and their weights.
//!
//! Timers run at the highest rate of all profiles. A profile of a lower rate takes a sample when
//! the thread has used its period of CPU time since the one before, on average; so profiles do not
//! disturb one another. The weight of a sample is the CPU time of the thread since the last one
//! that this profile took. However the kernel's tick, the rate or a full queue thin out the
//! samples, their weights add up to what the thread used until the last one.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dormouse_clock::thread_cpu_ns_of;
use dormouse_protocol::profile::{Moment, NO_GROUP, Profile, ProfileCoverage, ProfileKind, Sample, Thread};
use dormouse_sys::clock::monotonic_ns;

use super::arm;
use super::handler::Record;
use super::slots::SlotId;
use super::timer;
use crate::aggregate::Aggregate;
use crate::mappings::{Mappings, REPLACED};
use crate::options::Options;

/// The most moments of samples: some 12 MB.
const MOST_MOMENTS: usize = 500_000;

/// The note on a full timeline.
const NO_MOMENTS: &str = "there was no more room for the times of samples: later ones are spread over the rest of \
                          the time; profile for less time";

/// The end of a profile whose tables cannot grow.
pub(super) const NO_MEMORY: &str = "there was no more memory for the profile: nothing was sampled after that";

/// The name of a thread that ended before anybody has read its name.
const ENDED: &str = "(ended thread)";

/// A thread in a profile.
#[derive(Debug)]
struct Sampled {
    /// Its index among the profile's threads; `None` before the first sample.
    index: Option<u32>,
    tid: u32,
    /// Its name when it was found, if it began during the profile: it may end before its first
    /// sample is read.
    name: Option<String>,
    /// Its CPU time at the last sample taken; `None` if the kernel does not report it.
    last: Option<u64>,
    /// The CPU time from which on it takes another one.
    due: u64,
}

/// A thread that no sample meets, or met for a while.
#[derive(Debug)]
struct Unsampled {
    name: String,
    /// The CPU time that no sample met.
    value: u64,
    /// Its CPU time when it was last checked; `None` while it is armed.
    seen: Option<u64>,
}

impl Unsampled {
    /// It has used `used` by now.
    fn look(&mut self, used: u64) {
        if let Some(seen) = &mut self.seen {
            self.value += used.saturating_sub(*seen);
            *seen = used.max(*seen);
        }
    }
}

/// A profile that is being taken.
#[derive(Debug)]
pub(super) struct Take {
    period: u64,
    began: Instant,
    /// `CLOCK_MONOTONIC` then.
    began_ns: u64,
    unix_ns: u64,
    /// The process's CPU time then.
    process_ns: u64,
    dropped: u64,
    /// Records that came behind later ones of their thread.
    late: u64,
    threads: HashMap<SlotId, Sampled>,
    seen: u64,
    armed: u64,
    refused: HashSet<u32>,
    /// Threads that block the signal.
    blocking: HashSet<u32>,
    /// Threads that block the signal, have no timer or run the kernel's code.
    unsampled: HashMap<u32, Unsampled>,
    aggregate: Aggregate,
    timeline: Option<Vec<Moment>>,
    coverage: ProfileCoverage,
    /// The reason why nothing is sampled any more.
    over: Option<&'static str>,
}

impl Take {
    /// Begins without threads. `dropped` is the queue's count so far.
    pub(super) fn new(options: &Options, process_ns: u64, dropped: u64) -> Self {
        Self {
            period: options.period_ns(),
            began: Instant::now(),
            began_ns: monotonic_ns(),
            unix_ns: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64),
            process_ns,
            dropped,
            late: 0,
            threads: HashMap::new(),
            seen: 0,
            armed: 0,
            refused: HashSet::new(),
            blocking: HashSet::new(),
            unsampled: HashMap::new(),
            aggregate: Aggregate::new(),
            timeline: options.timeline.then(Vec::new),
            coverage: ProfileCoverage::default(),
            over: None,
        }
    }

    /// Its period, in nanoseconds of a thread's CPU time.
    pub(super) fn period(&self) -> u64 {
        self.period
    }

    /// Adds an armed thread, which had used `cpu_ns` before this profile began, if the kernel
    /// reports it.
    pub(super) fn add_thread(&mut self, id: SlotId, tid: u32, cpu_ns: Option<u64>) {
        if self.over.is_some() {
            return;
        }
        if self.threads.try_reserve(1).is_err() {
            return self.end(NO_MEMORY);
        }
        // A sample of a thread that lives shorter than the period may be at any place of its life,
        // also where timers expire more often.
        let due = cpu_ns.unwrap_or(0) + arm::random() % self.period;
        let thread = Sampled { index: None, tid, name: None, last: cpu_ns, due };
        if self.threads.insert(id, thread).is_none() {
            self.seen += 1;
            self.armed += 1;
        }
    }

    /// A thread was found that has used `cpu_ns` in its life. Most have begun since this profile
    /// did. One that was there, and was not seen, has used no more in the meantime than there was.
    pub(super) fn find_thread(&mut self, id: SlotId, tid: u32, cpu_ns: Option<u64>) {
        let elapsed = self.began.elapsed().as_nanos() as u64;
        let before = self.resume(tid, cpu_ns);
        self.add_thread(id, tid, before.or(cpu_ns.map(|used| used.saturating_sub(elapsed))));
        if let Some(thread) = self.threads.get_mut(&id) {
            thread.name = thread_name(tid);
        }
    }

    /// Nothing is sampled any more, for this reason.
    pub(super) fn end(&mut self, why: &'static str) {
        self.over.get_or_insert(why);
    }

    /// A thread has no timer, for this reason.
    pub(super) fn refuse(&mut self, tid: u32, why: &str) {
        self.leave_out(tid, Some(why), None);
    }

    /// A thread is not armed, because it blocks the signal.
    pub(super) fn block(&mut self, tid: u32) {
        self.leave_out(tid, None, None);
    }

    /// A thread is not armed, because it blocks the signal or for the reason `why`. Its samples
    /// have the CPU time before `last`.
    fn leave_out(&mut self, tid: u32, why: Option<&str>, last: Option<u64>) {
        let set = if why.is_some() { &mut self.refused } else { &mut self.blocking };
        if set.try_reserve(1).is_err() {
            return self.end(NO_MEMORY);
        }
        if set.insert(tid) {
            self.seen += 1;
            self.find_unsampled(tid, false, last);
        }
        if let Some(why) = why {
            self.note(why);
        }
    }

    /// A thread was found that no sample will meet: its CPU time since `last` is a row of its own.
    pub(super) fn find_unsampled(&mut self, tid: u32, is_of_kernel: bool, last: Option<u64>) {
        let Some(used) = thread_cpu_ns_of(tid) else { return };
        // As in `find_thread`: it may have begun since.
        let elapsed = self.began.elapsed().as_nanos() as u64;
        let since = last.unwrap_or(used.saturating_sub(elapsed));
        if let Some(known) = self.unsampled.get_mut(&tid) {
            known.seen.get_or_insert(since);
            return known.look(used);
        }
        if self.unsampled.try_reserve(1).is_err() {
            return;
        }
        let name = thread_name(tid).unwrap_or_default();
        let name = if is_of_kernel { format!("(kernel: {name})") } else { name };
        let value = used.saturating_sub(since);
        self.unsampled.insert(tid, Unsampled { name, value, seen: Some(used) });
    }

    /// Reads the clocks of threads that no sample meets. One that has ended keeps its last time.
    pub(super) fn look_at_unsampled(&mut self) {
        for (&tid, thread) in self.unsampled.iter_mut().filter(|(_, thread)| thread.seen.is_some()) {
            if let Some(used) = thread_cpu_ns_of(tid) {
                thread.look(used);
            }
        }
    }

    /// An armed thread is armed no more, because it blocks the signal or for the reason `why`.
    pub(super) fn disarm(&mut self, id: SlotId, why: Option<&str>) {
        if let Some(thread) = self.threads.remove(&id) {
            self.seen -= 1;
            self.armed -= 1;
            self.leave_out(thread.tid, why, thread.last);
        }
    }

    /// A thread is armed that has used `cpu_ns` in its life. Gives that if it had this number while
    /// it blocked the signal or was not armed for another reason, and a row of its own has all of
    /// it; its samples begin there.
    fn resume(&mut self, tid: u32, cpu_ns: Option<u64>) -> Option<u64> {
        self.seen -= u64::from(self.blocking.remove(&tid));
        let thread = self.unsampled.get_mut(&tid)?;
        let used = cpu_ns?;
        thread.look(used);
        // One that has used less is another thread, with the same number.
        let seen = thread.seen.take()?;
        (seen <= used).then_some(used)
    }

    /// Tells the reader something, once.
    pub(super) fn note(&mut self, sentence: &str) {
        if !self.coverage.notes.iter().any(|known| known == sentence) {
            self.coverage.notes.push(sentence.to_owned());
        }
    }

    /// Other code lies in these ranges than before.
    pub(super) fn replace(&mut self, ranges: &[Range<u64>]) {
        if self.aggregate.has_any_in(ranges) {
            self.note(REPLACED);
        }
    }

    /// A thread has ended: its slot will be another's.
    pub(super) fn remove_thread(&mut self, id: SlotId) {
        self.threads.remove(&id);
    }

    /// Adds a sample at the thread's CPU time `cpu_ns`. `timer_period` is that of its timer; `name`
    /// returns the thread's name, if it has not ended.
    pub(super) fn add(
        &mut self,
        record: &Record,
        cpu_ns: u64,
        timer_period: u64,
        library: &Range<usize>,
        name: impl FnOnce() -> Option<String>,
    ) {
        if self.over.is_some() {
            return;
        }
        let Some(thread) = self.threads.get_mut(&SlotId::from_value(record.of_kind.value)) else { return };
        // A thread whose timers have this profile's period leaves a sample for each; of the others
        // the profile takes as many as it asked for.
        let is_due = self.period <= timer_period || cpu_ns >= thread.due;
        let last = thread.last.unwrap_or_else(|| cpu_ns.saturating_sub(timer_period));
        if !is_due || cpu_ns < last {
            // Before the first one, it is from before this profile.
            self.late += u64::from(cpu_ns < last && thread.index.is_some());
            return;
        }
        let weight = cpu_ns - last;
        thread.last = Some(cpu_ns);
        // The ticks of the kernel come as they like. A sample that came a little early for the due
        // time was not taken, and the next one comes late; so it may be owed one, but no more.
        thread.due = (thread.due + self.period).max(cpu_ns.saturating_sub(self.period));
        let (tid, known, aggregate) = (thread.tid, &mut thread.name, &mut self.aggregate);
        let index = *thread.index.get_or_insert_with(|| {
            let name = name().or(known.take()).unwrap_or_else(|| ENDED.to_owned());
            aggregate.add_thread(Thread { tid, name })
        });
        let frames = &record.frames;
        let coverage = &mut self.coverage;
        coverage.samples += 1;
        coverage.overruns += u64::from(record.of_kind.overruns);
        // By frame pointers, which the C library does not keep.
        let is_in_library =
            |at: Option<usize>| frames.is_missed && at.is_some_and(|at| library.contains(&at));
        coverage.in_library += u64::from(is_in_library(frames.first()));
        coverage.uncopied += u64::from(frames.is_missed);
        // A caller's address in the C library: it has called the first function of the thread.
        let is_whole = !frames.is_cut()
            && is_in_library(frames.known().last())
            && frames.known().any(|at| !library.contains(&at));
        coverage.cut += u64::from(frames.is_cut());
        coverage.ended += u64::from(frames.is_whole() || is_whole);
        let stack = frames.stack(frames.lack().filter(|_| !is_whole));
        let row = aggregate.add(record.group, index, stack, [1, weight, 0, 0]);
        if let Some(timeline) = &mut self.timeline {
            if timeline.len() < MOST_MOMENTS && timeline.try_reserve(1).is_ok() {
                let at_ns = record.at_ns.saturating_sub(self.began_ns);
                timeline.push(Moment { at_ns, sample: row, value: weight });
            } else {
                self.note(NO_MOMENTS);
            }
        }
    }

    /// Asks for names again: threads name themselves after they have begun. A thread that has ended
    /// keeps its name.
    pub(super) fn name_threads(&mut self, name_of: impl Fn(SlotId) -> Option<String>) {
        let rows = self.aggregate.threads_mut();
        for (&id, thread) in &self.threads {
            // Beyond the last row there is one for all.
            let row = thread.index.and_then(|index| rows.get_mut(index as usize));
            if let Some(row) = row.filter(|row| row.tid == thread.tid)
                && let Some(name) = name_of(id)
            {
                row.name = name;
            }
        }
    }

    /// The bytes that a profile takes.
    pub(super) fn size(&self) -> usize {
        self.aggregate.size() + self.timeline.as_ref().map_or(0, |timeline| size_of_val(&timeline[..]))
    }

    /// The profile so far.
    pub(super) fn read(&self, process_ns: u64, dropped: u64, mappings: &Mappings) -> Profile {
        let (groups, mut threads, stacks, mut samples) = self.aggregate.parts();
        for (&tid, of) in &self.unsampled {
            if of.value > 0 {
                let thread = threads.len() as u32;
                threads.push(Thread { tid, name: of.name.clone() });
                samples.push(Sample { thread, values: [0, of.value, 0, 0], ..Sample::default() });
            }
        }
        let in_groups = samples.iter().filter(|row| row.group != NO_GROUP).map(|row| row.values[1]).sum();
        let coverage = ProfileCoverage {
            total: process_ns.saturating_sub(self.process_ns),
            in_groups,
            threads: self.seen,
            armed: self.armed,
            refused: self.refused.len() as u64,
            blocking: self.blocking.len() as u64,
            dropped: dropped - self.dropped + self.late,
            merged: self.aggregate.merged(),
            notes: self.coverage.notes.iter().cloned().chain(self.over.map(str::to_owned)).collect(),
            ..self.coverage.clone()
        };
        Profile {
            kind: ProfileKind::Cpu,
            unix_ns: self.unix_ns,
            duration_ns: self.began.elapsed().as_nanos() as u64,
            period: self.period,
            pid: dormouse_sys::process::identity::pid(),
            program: program(),
            groups,
            threads,
            stacks,
            samples,
            mappings: mappings.code(),
            timeline: self.timeline.clone().unwrap_or_default(),
            live: false,
            coverage,
        }
    }
}

/// The name of a thread that has a slot.
pub(super) fn name_of(id: SlotId) -> Option<String> {
    let slot = id.slot()?;
    let name = thread_name(slot.tid())?;
    // Else it may be that of another thread, which has its id by now.
    (!timer::is_over(slot.timer())).then_some(name)
}

/// The name of a thread of this process; `None` if it has ended.
fn thread_name(tid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// The path of this program.
fn program() -> String {
    std::env::current_exe().map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
