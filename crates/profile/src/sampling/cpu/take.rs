//! One profile that is being taken: which samples it takes, and their weights.
//!
//! Timers run at the highest rate that anybody asked for. A profile of a lower rate takes a sample
//! when the thread has used its period of CPU time since the one before, on average; so profiles do
//! not disturb one another. The weight of a sample is the CPU time of the thread since the last one
//! that this profile took: whatever the tick of the kernel, the rate or a full queue make of the
//! samples, their weights add up to what the thread used until the last one.

use std::collections::{HashMap, HashSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::arm;
use super::handler::Record;
use super::slots::SlotId;
use crate::aggregate::Aggregate;
use crate::mappings::Mappings;
use crate::options::Options;
use crate::profile::{Moment, NO_GROUP, Profile, ProfileCoverage, ProfileKind, Thread};
use crate::sampling::walk::End;

/// The most moments of samples: some 12 MB.
const MOST_MOMENTS: usize = 500_000;

/// A thread, as a profile knows it.
#[derive(Debug)]
struct Sampled {
    /// Its index among the profile's threads; none before the first sample.
    index: Option<u32>,
    tid: u32,
    /// Its CPU time at the last sample taken.
    last: u64,
    /// The CPU time from which on it takes another one.
    due: u64,
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
    threads: HashMap<SlotId, Sampled>,
    seen: u64,
    armed: u64,
    refused: HashSet<u32>,
    aggregate: Aggregate,
    timeline: Option<Vec<Moment>>,
    coverage: ProfileCoverage,
    is_over: bool,
}

impl Take {
    /// Begins with no thread. `dropped` is what the queue says so far.
    pub(super) fn new(options: &Options, process_ns: u64, dropped: u64) -> Self {
        Self {
            period: options.period_ns(),
            began: Instant::now(),
            began_ns: monotonic_ns(),
            unix_ns: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64),
            process_ns,
            dropped,
            threads: HashMap::new(),
            seen: 0,
            armed: 0,
            refused: HashSet::new(),
            aggregate: Aggregate::new(),
            timeline: options.timeline.then(Vec::new),
            coverage: ProfileCoverage::default(),
            is_over: false,
        }
    }

    /// Its period, in nanoseconds of a thread's CPU time.
    pub(super) fn period(&self) -> u64 {
        self.period
    }

    /// A thread is armed, and has used `cpu_ns` before this profile began.
    pub(super) fn add_thread(&mut self, id: SlotId, tid: u32, cpu_ns: u64) {
        if self.is_over {
            return;
        }
        // A sample of a thread that lives shorter than the period may be at any place of its life,
        // also where timers expire more often.
        let due = cpu_ns + arm::random() % self.period;
        let thread = Sampled { index: None, tid, last: cpu_ns, due };
        if self.threads.insert(id, thread).is_none() {
            self.seen += 1;
            self.armed += 1;
        }
    }

    /// A thread was found that has used `cpu_ns` in its life. Most have begun since this profile
    /// did. One that was there, and was not seen, has used no more in the meantime than there was.
    pub(super) fn find_thread(&mut self, id: SlotId, tid: u32, cpu_ns: u64) {
        let elapsed = self.began.elapsed().as_nanos() as u64;
        self.add_thread(id, tid, cpu_ns.saturating_sub(elapsed));
    }

    /// Nothing is sampled any more, for this reason.
    pub(super) fn end(&mut self, why: &str) {
        self.is_over = true;
        self.note(why);
    }

    /// A thread has no timer, for this reason.
    pub(super) fn refuse(&mut self, tid: u32, why: &str) {
        if self.refused.insert(tid) {
            self.seen += 1;
        }
        self.note(why);
    }

    /// Tells the reader something, once.
    pub(super) fn note(&mut self, sentence: &str) {
        if !self.coverage.notes.iter().any(|known| known == sentence) {
            self.coverage.notes.push(sentence.to_owned());
        }
    }

    /// A thread has ended: its slot will be another's.
    pub(super) fn remove_thread(&mut self, id: SlotId) {
        self.threads.remove(&id);
    }

    /// A sample. `timer_period` is that of its timer; `name` says what the thread is called.
    pub(super) fn add(
        &mut self,
        record: &Record,
        timer_period: u64,
        library: &std::ops::Range<usize>,
        name: impl FnOnce() -> String,
    ) {
        let Some(thread) = self.threads.get_mut(&SlotId::from_value(record.of_kind.value)) else { return };
        // A thread whose timers have this profile's period leaves a sample for each; of the others
        // the profile takes as many as it asked for.
        let is_due = self.period <= timer_period || record.of_kind.cpu_ns >= thread.due;
        if !is_due || record.of_kind.cpu_ns < thread.last {
            return;
        }
        let weight = record.of_kind.cpu_ns - thread.last;
        thread.last = record.of_kind.cpu_ns;
        thread.due += (record.of_kind.cpu_ns.saturating_sub(thread.due) / self.period + 1) * self.period;
        let (tid, aggregate) = (thread.tid, &mut self.aggregate);
        let index = *thread.index.get_or_insert_with(|| aggregate.add_thread(Thread { tid, name: name() }));
        let frames = record.frames();
        let row = aggregate.add(record.group, index, frames.iter().map(|&at| at as u64), [1, weight, 0, 0]);
        let coverage = &mut self.coverage;
        coverage.samples += 1;
        coverage.overruns += u64::from(record.of_kind.overruns);
        // A caller's address in the C library: it has called the first function of the thread.
        let is_whole = frames.len() > 1 && frames.last().is_some_and(|outermost| library.contains(outermost));
        match record.end {
            End::Cut => coverage.cut += 1,
            End::Last => coverage.ended += 1,
            End::Lost if is_whole => coverage.ended += 1,
            End::Lost => {}
        }
        let has_room =
            |timeline: &mut Vec<_>| timeline.len() < MOST_MOMENTS && timeline.try_reserve(1).is_ok();
        if let Some(timeline) =
            self.timeline.as_mut().and_then(|timeline| has_room(timeline).then_some(timeline))
        {
            let at_ns = record.at_ns.saturating_sub(self.began_ns);
            timeline.push(Moment { at_ns, sample: row, value: weight });
        }
    }

    /// The threads of which no sample has come, with their CPU time when they were first seen.
    pub(super) fn silent(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.threads.values().filter(|thread| thread.index.is_none()).map(|thread| (thread.tid, thread.last))
    }

    /// The threads of which samples have come.
    pub(super) fn threads_mut(&mut self) -> &mut [Thread] {
        self.aggregate.threads_mut()
    }

    /// The profile so far.
    pub(super) fn read(&self, process_ns: u64, dropped: u64, blocking: u64, mappings: &Mappings) -> Profile {
        let (groups, threads, stacks, samples) = self.aggregate.parts();
        let in_groups = samples.iter().filter(|row| row.group != NO_GROUP).map(|row| row.values[1]).sum();
        let coverage = ProfileCoverage {
            total: process_ns.saturating_sub(self.process_ns),
            in_groups,
            threads: self.seen,
            armed: self.armed,
            refused: self.refused.len() as u64,
            blocking,
            dropped: dropped - self.dropped,
            merged: self.aggregate.merged(),
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
            mappings: mappings.code().to_vec(),
            timeline: self.timeline.clone().unwrap_or_default(),
            coverage,
        }
    }
}

/// The path of this program.
fn program() -> String {
    std::env::current_exe().map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned())
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
