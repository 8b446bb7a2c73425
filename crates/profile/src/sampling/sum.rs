//! The sum of samples by thread and group, for profiles of allocations and of faults.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use dormouse_protocol::profile::{NO_GROUP, Profile, ProfileCoverage, ProfileKind, Sample, Thread, Values};

use super::queue::Record;
use crate::aggregate::Aggregate;
use crate::mappings::{Mappings, REPLACED};

/// The samples of one profile.
#[derive(Debug)]
pub(super) struct Sum {
    kind: ProfileKind,
    period: u64,
    began: Instant,
    unix_ns: u64,
    threads: HashMap<u32, u32>,
    aggregate: Aggregate,
    pub(super) coverage: ProfileCoverage,
}

impl Sum {
    pub(super) fn new(kind: ProfileKind, period: u64) -> Self {
        Self {
            kind,
            period,
            began: Instant::now(),
            unix_ns: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64),
            threads: HashMap::new(),
            aggregate: Aggregate::new(),
            coverage: ProfileCoverage::default(),
        }
    }

    /// Its period, in the unit of the main column.
    pub(super) fn period(&self) -> u64 {
        self.period
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

    /// Adds a sample of a thread: the index of its row.
    pub(super) fn add<T>(&mut self, tid: u32, record: &Record<T>, values: Values) -> u32 {
        let aggregate = &mut self.aggregate;
        let thread = match self.threads.get(&tid).copied() {
            Some(thread) => thread,
            None if self.threads.try_reserve(1).is_err() => aggregate.other_threads(),
            None => {
                let thread = aggregate.add_thread(Thread { tid, name: name_of(tid).unwrap_or_default() });
                self.threads.insert(tid, thread);
                thread
            }
        };
        self.coverage.samples += 1;
        self.coverage.cut += u64::from(record.frames.is_cut());
        self.coverage.ended += u64::from(record.frames.is_whole());
        let stack = record.frames.stack(record.frames.lack());
        aggregate.add(record.group, thread, stack, values)
    }

    /// The bytes that a profile takes.
    pub(super) fn size(&self) -> usize {
        self.aggregate.size()
    }

    /// The profile so far; `revise` may change the rows.
    pub(super) fn read(&mut self, mappings: &Mappings, revise: impl FnOnce(&mut [Sample])) -> Profile {
        for thread in self.aggregate.threads_mut() {
            // Threads name themselves after they have begun; one that has ended keeps its name.
            if let Some(name) = name_of(thread.tid) {
                thread.name = name;
            }
        }
        let (groups, threads, stacks, mut samples) = self.aggregate.parts();
        revise(&mut samples);
        let main = self.kind.main_column();
        let in_groups = samples.iter().filter(|row| row.group != NO_GROUP).map(|row| row.values[main]).sum();
        let merged = self.aggregate.merged();
        Profile {
            kind: self.kind,
            unix_ns: self.unix_ns,
            duration_ns: self.began.elapsed().as_nanos() as u64,
            period: self.period,
            pid: dormouse_sys::process::identity::pid(),
            program: std::env::current_exe()
                .map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned()),
            groups,
            threads,
            stacks,
            samples,
            mappings: mappings.code(),
            coverage: ProfileCoverage { in_groups, merged, ..self.coverage.clone() },
            ..Profile::default()
        }
    }
}

/// The name of a thread.
fn name_of(tid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/self/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().to_owned())
}
