//! Combines records, as they come, to a timeline.
//!
//! The records of one thread come in order, those of several threads do not. A span is put among
//! the events of its thread at its enter and completed at its exit, so most threads need no
//! sorting.
//!
//! | record | what is open on the thread | so |
//! |---|---|---|
//! | enter | any | opened |
//! | exit | an enter of the same probe and task | ends it; what was entered since has lost its exit, and ends with it |
//! | exit | none | its begin is the exit's less the time that it tells of; else the thread's exit before; else the timeline's |
//! | none more | an enter | it ends with the timeline |
//! | point | any | a moment |
//!
//! Begins and ends of tasks are matched by the task's number, whichever threads they come from, and
//! so are traces.

use std::cmp::Reverse;
use std::collections::HashMap;

use dormouse::record::{Field, Malformed, Reader, Record, RecordKind};
use dormouse_protocol::{ClockPoint, Note, ProbeInfo, WireWaited};

use crate::timeline::{
    Edges, NO_RECORD, POLL, TASK, TRACE_CONTEXT, TaskDrop, Timeline, TimelineEvent, TimelineProbe,
    TimelineTask, TimelineThread,
};

/// Bytes that a timeline takes at most before it is encoded.
const MOST_BYTES: usize = 64 << 20;
/// Bytes for an event, including bookkeeping.
const EVENT_BYTES: usize = size_of::<TimelineEvent>();
/// Bytes for a task, in a table that is half empty.
const TASK_BYTES: usize = 3 * (size_of::<TimelineTask>() + 8);
/// Bytes for a trace, in a table that is half empty.
const TRACE_BYTES: usize = 3 * (size_of::<(u64, u128)>() + 8);
/// Names that are kept of threads, and of groups.
const MOST_NAMES: usize = 1 << 16;
/// Bytes of a name that are kept; a group has no more.
const LONGEST_NAME: usize = 128;
/// Words for outcomes that are kept: more than a service has.
const MOST_OUTCOMES: usize = 64;
/// Drops that are kept: as many rows as a service has for cancelled requests.
const MOST_DROPS: usize = 512;
/// Spans of a thread that are open at once. Those further inside have no end.
const DEEPEST: usize = 1 << 9;

/// An unknown begin, which becomes the timeline's.
const UNKNOWN: u64 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Poll,
    Task,
    TraceContext,
}

/// Combines records to a timeline. Times are ticks of the counter until the end.
#[derive(Debug)]
pub struct TimelineBuilder {
    timeline: Timeline,
    clock: ClockPoint,
    /// Probes of dormouse's own; each copy in the process has some.
    own: HashMap<u32, Own>,
    by_start: HashMap<(u32, u64), usize>,
    /// The events that each thread has entered and not left, by index.
    open: Vec<Vec<u32>>,
    /// The last exit of each thread.
    exits: Vec<u64>,
    tasks: HashMap<u64, TimelineTask>,
    /// The traces of tasks.
    traces: HashMap<u64, u128>,
    first: u64,
    last: u64,
    bytes: usize,
    most: usize,
}

impl TimelineBuilder {
    /// A builder for the process `pid`, whose probes and clock a trace has announced.
    pub fn new(program: &str, pid: u32, probes: &[ProbeInfo], clock: ClockPoint) -> Self {
        let mut timeline = Timeline { program: program.to_owned(), pid, ..Timeline::default() };
        let of = |probe: &ProbeInfo| TimelineProbe {
            name: probe.name.clone(),
            fields: probe.fields.clone(),
            place: format!("{}:{}", probe.file, probe.line),
        };
        timeline.probes = probes.iter().map(|probe| (probe.id, of(probe))).collect();
        let own = |probe: &ProbeInfo| {
            let own = match &*probe.name {
                POLL => Own::Poll,
                TASK => Own::Task,
                TRACE_CONTEXT => Own::TraceContext,
                _ => return None,
            };
            Some((probe.id, own))
        };
        Self {
            own: probes.iter().filter_map(own).collect(),
            timeline,
            clock,
            by_start: HashMap::new(),
            open: Vec::new(),
            exits: Vec::new(),
            tasks: HashMap::new(),
            traces: HashMap::new(),
            first: u64::MAX,
            last: 0,
            bytes: 0,
            most: MOST_BYTES,
        }
    }

    /// Adds a note from between the records.
    pub fn learn(&mut self, note: Note) {
        match note {
            Note::Clock(clock) => self.clock = clock,
            Note::Thread { tid, start, name } => {
                if let Some(index) = self.thread(tid, start) {
                    self.timeline.threads[index].name = cut(name);
                }
            }
            Note::Group { id, name } if self.timeline.groups.len() < MOST_NAMES => {
                self.timeline.groups.insert(id, cut(name));
            }
            Note::Dropped { rings, client } => {
                self.timeline.lost = self.timeline.lost.saturating_add(rings).saturating_add(client);
            }
            _ => {}
        }
    }

    /// Adds records of one thread, one after another, and returns how many it took. A full timeline
    /// takes no more.
    ///
    /// # Errors
    ///
    /// The first record that is invalid; those before it are added.
    pub fn add(&mut self, tid: u32, start: u64, records: &[u8], most: u64) -> Result<u64, Malformed> {
        let Some(thread) = self.thread(tid, start) else {
            self.timeline.lost = self.timeline.lost.saturating_add(Reader::new(records).count() as u64);
            return Ok(0);
        };
        let mut reader = Reader::new(records);
        let mut taken = 0;
        while taken < most && !self.is_full() {
            let from = reader.position();
            let Some(record) = reader.next() else { break };
            let record = record?;
            let bytes = records.get(from..reader.position()).unwrap_or_default();
            self.take(thread, &record, bytes);
            taken += 1;
        }
        Ok(taken)
    }

    /// Whether the timeline has reached its limit of events.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.most
    }

    fn thread(&mut self, tid: u32, start: u64) -> Option<usize> {
        if let Some(&index) = self.by_start.get(&(tid, start)) {
            return Some(index);
        }
        let index = self.timeline.threads.len();
        (index < MOST_NAMES).then(|| {
            self.by_start.insert((tid, start), index);
            self.timeline.threads.push(TimelineThread { tid, start, ..TimelineThread::default() });
            self.open.push(Vec::new());
            self.exits.push(UNKNOWN);
            index
        })
    }

    fn take(&mut self, thread: usize, record: &Record<'_>, bytes: &[u8]) {
        self.first = self.first.min(record.tsc);
        self.last = self.last.max(record.tsc);
        let is_task = self.own.get(&record.probe) == Some(&Own::Task);
        match record.phase {
            RecordKind::Enter if is_task => self.task_begins(thread, record),
            RecordKind::Exit if is_task => self.task_ends(thread, record),
            RecordKind::Enter => {
                let index = self.push(thread, record, bytes, Edges::Begin);
                if self.open[thread].len() < DEEPEST {
                    self.open[thread].push(index);
                }
            }
            RecordKind::Exit => {
                self.exit(thread, record);
                self.exits[thread] = record.tsc;
            }
            RecordKind::Point => {
                self.push(thread, record, bytes, Edges::Point);
                if self.own.get(&record.probe) == Some(&Own::TraceContext) {
                    self.learn_trace(record);
                }
            }
        }
    }

    fn push(&mut self, thread: usize, record: &Record<'_>, bytes: &[u8], edges: Edges) -> u32 {
        let kept = &mut self.timeline.records;
        let at = if record.values.is_empty() || edges == Edges::End { NO_RECORD } else { kept.len() as u32 };
        if at != NO_RECORD {
            kept.extend_from_slice(bytes);
            self.bytes += bytes.len();
        }
        self.bytes += EVENT_BYTES;
        let events = &mut self.timeline.threads[thread].events;
        let (begin_ns, end_ns) = (record.tsc, record.tsc);
        let Record { task, group, probe, .. } = *record;
        events.push(TimelineEvent { begin_ns, end_ns, task, group, probe, edges, record: at });
        (events.len() - 1) as u32
    }

    fn exit(&mut self, thread: usize, record: &Record<'_>) {
        let events = &mut self.timeline.threads[thread].events;
        // A span of a function may be left in the middle of another task; a poll is of its own.
        let is_poll = self.own.get(&record.probe) == Some(&Own::Poll);
        let is_its = |&index: &u32| {
            let it = &events[index as usize];
            it.probe == record.probe && (!is_poll || it.task == record.task)
        };
        if let Some(at) = self.open[thread].iter().rposition(is_its) {
            let own = self.open[thread][at];
            for index in self.open[thread].drain(at..) {
                events[index as usize].end_ns = record.tsc;
            }
            events[own as usize].edges = Edges::Both;
            return;
        }
        let index = self.push(thread, record, &[], Edges::End);
        let begin = match record.values.first() {
            Some(Field::Unsigned(ns)) => {
                record.tsc.saturating_sub((*ns as f64 * self.clock.tsc_hz / 1e9) as u64)
            }
            _ => self.exits[thread],
        };
        self.timeline.threads[thread].events[index as usize].begin_ns = begin;
        if begin != UNKNOWN {
            self.first = self.first.min(begin);
        }
    }

    /// The task of a record, which is new.
    fn task(&mut self, thread: usize, record: &Record<'_>) -> &mut TimelineTask {
        self.bytes += TASK_BYTES;
        let (begin_ns, end_ns) = (UNKNOWN, record.tsc);
        let Record { task, group, .. } = *record;
        self.tasks.entry(task).or_insert(TimelineTask {
            task,
            group,
            parent: 0,
            is_request: false,
            thread: thread as u32,
            begin_ns,
            end_ns,
            edges: Edges::End,
            trace_id: None,
            outcome: None,
            dropped: None,
        })
    }

    /// The last one counts.
    fn learn_trace(&mut self, record: &Record<'_>) {
        let Some(Field::Text(digits) | Field::Formatted(digits)) = record.values.first() else { return };
        if let Ok(id) = u128::from_str_radix(digits, 16)
            && self.traces.insert(record.task, id).is_none()
        {
            self.bytes += TRACE_BYTES;
        }
    }

    fn task_begins(&mut self, thread: usize, record: &Record<'_>) {
        // Its end may have come first, from another thread.
        let is_over = self.tasks.contains_key(&record.task);
        let it = self.task(thread, record);
        it.thread = thread as u32;
        it.begin_ns = record.tsc;
        it.edges = if is_over { Edges::Both } else { Edges::Begin };
        if let [Field::Unsigned(parent), Field::Boolean(is_request), ..] = record.values[..] {
            (it.parent, it.is_request) = (parent, is_request);
        }
    }

    fn task_ends(&mut self, thread: usize, record: &Record<'_>) {
        let outcome = match record.values.first() {
            Some(Field::Text(word)) => self.outcome(word),
            _ => None,
        };
        let dropped = record.values.get(1..).and_then(|values| self.dropped(values));
        let it = self.task(thread, record);
        (it.end_ns, it.outcome, it.dropped) = (record.tsc, outcome, dropped);
        if it.edges == Edges::Begin {
            it.edges = Edges::Both;
        }
    }

    /// The place of the word for an outcome.
    fn outcome(&mut self, word: &str) -> Option<u8> {
        let words = &mut self.timeline.outcomes;
        let known = words.iter().position(|known| known == word);
        let place = known.or_else(|| {
            words.push(cut(word.to_owned()));
            Some(words.len() - 1).filter(|at| *at < MOST_OUTCOMES)
        });
        words.truncate(MOST_OUTCOMES);
        place.and_then(|place| u8::try_from(place).ok())
    }

    /// The place of the drop that these values are of.
    fn dropped(&mut self, values: &[Field<'_>]) -> Option<u16> {
        let [
            Field::Unsigned(place),
            Field::Unsigned(stack),
            Field::Text(waited),
            Field::Boolean(is_panicking),
            ..,
        ] = *values
        else {
            return None;
        };
        let (place, stack) = (u32::try_from(place).ok()?, u32::try_from(stack).ok()?);
        let waited = match waited {
            "awaiting" => WireWaited::Awaiting,
            "runnable" => WireWaited::Runnable,
            "not_begun" => WireWaited::NotBegun,
            _ => WireWaited::Unknown,
        };
        let dropped = TaskDrop { place, stack, waited, is_panicking, ..TaskDrop::default() };
        let drops = &mut self.timeline.drops;
        let known = drops.iter().position(|known| *known == dropped);
        let at = known.or_else(|| {
            (drops.len() < MOST_DROPS).then(|| {
                drops.push(dropped);
                drops.len() - 1
            })
        });
        at.and_then(|at| u16::try_from(at).ok())
    }

    /// The timeline, whose times are nanoseconds since its first record.
    pub fn finish(self) -> Timeline {
        let Self { mut timeline, clock, open, tasks, traces, mut first, mut last, .. } = self;
        if first > last {
            (first, last) = (clock.tsc, clock.tsc);
        }
        let ns_of = |ticks: u64| (ticks as f64 * 1e9 / clock.tsc_hz) as u64;
        let ns = |tsc: u64| ns_of(tsc.saturating_sub(first));
        let ends = |begin: u64, end: u64| (ns(begin), ns(end.max(begin)));
        for (thread, open) in timeline.threads.iter_mut().zip(open) {
            for index in open {
                thread.events[index as usize].end_ns = last;
            }
            for event in &mut thread.events {
                (event.begin_ns, event.end_ns) = ends(event.begin_ns, event.end_ns);
            }
            thread.events.sort_by_key(|event| (event.begin_ns, Reverse(event.end_ns)));
        }
        timeline.roots = roots(&tasks);
        timeline.tasks = tasks.into_values().collect();
        for task in &mut timeline.tasks {
            let end = if task.edges == Edges::Begin { last } else { task.end_ns };
            (task.begin_ns, task.end_ns) = ends(task.begin_ns, end);
            task.trace_id = traces.get(&task.task).copied();
        }
        timeline.tasks.sort_by_key(|task| (task.begin_ns, task.task));
        timeline.duration_ns = ns(last);
        // Of stamps before the point, too.
        let at = |point_ns: u64| {
            let later = point_ns.saturating_add(ns_of(first.saturating_sub(clock.tsc)));
            later.saturating_sub(ns_of(clock.tsc.saturating_sub(first)))
        };
        (timeline.unix_ns, timeline.mono_ns) = (at(clock.real_ns), at(clock.mono_ns));
        timeline
    }
}

/// The part of a name that is kept.
fn cut(mut name: String) -> String {
    let end = (0..=LONGEST_NAME.min(name.len())).rev().find(|&end| name.is_char_boundary(end));
    name.truncate(end.unwrap_or_default());
    name
}

/// For each task that is a part of another, the outermost: of those whose begins were seen.
fn roots(tasks: &HashMap<u64, TimelineTask>) -> HashMap<u64, u64> {
    let mut roots = HashMap::new();
    let mut way = Vec::new();
    for &task in tasks.keys() {
        let mut top = task;
        // Each task's way is gone once. A damaged file may have parents in a circle.
        while way.len() <= tasks.len() {
            if let Some(&known) = roots.get(&top) {
                top = known;
                break;
            }
            way.push(top);
            let parent = tasks.get(&top).map_or(0, |it| it.parent);
            match tasks.get(&parent) {
                Some(it) if it.edges != Edges::End => top = parent,
                _ => break,
            }
        }
        roots.extend(way.drain(..).map(|below| (below, top)));
    }
    roots.retain(|task, root| task != root);
    roots
}
