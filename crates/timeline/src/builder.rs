//! Combines records, as they come, to a timeline.
//!
//! The records of one thread come in order, those of several threads do not. A span is put among
//! the events of its thread at its enter and completed at its exit, so most threads need no
//! sorting.
//!
//! | record | what is open | so |
//! |---|---|---|
//! | enter | any | opened |
//! | exit of a poll | its enter, on the same thread | ends it, and polls that were entered since: they have lost their exits |
//! | exit of a function | its enter, on any thread, at the time that the exit contains | ends it, and functions of the task that were entered since on that thread, until their exits come |
//! | exit | none | its begin is the exit's less the time that it contains; else the thread's exit before; else the timeline's |
//! | enter of a function | an exit of that begin, which came first from another thread | both are one |
//! | none more | a function | it ends with its task, if that has ended; else with the timeline |
//! | none more | a poll | it ends with the timeline |
//! | point | any | a moment |
//!
//! A function that awaits is left by polls, and its task may run other calls of it meanwhile, or go
//! on with it on another thread: so the two ends of a call are matched by task, probe and time.
//! Begins and ends of tasks are matched by the task's number, whichever threads they come from, and
//! so are traces.

use std::cmp::Reverse;
use std::collections::HashMap;

use dormouse::record::{Field, Malformed, Reader, Record, RecordKind};
use dormouse_protocol::{ClockPoint, Note, ProbeInfo, WireWaited};

use crate::calls::{Call, Calls};
use crate::requests::roots;
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
/// Bytes for a function of which one end has come.
const CALL_BYTES: usize = 2 * size_of::<Call>();
/// Names that are kept of threads, and of groups.
const MOST_NAMES: usize = 1 << 16;
/// Bytes of a name that are kept; a group has no more.
const LONGEST_NAME: usize = 128;
/// Words for outcomes that are kept: more than a service has.
const MOST_OUTCOMES: usize = 64;
/// Drops that are kept: as many rows as a service has for cancelled requests.
const MOST_DROPS: usize = 512;
/// Spans of a thread that are open at once. Polls further inside have no end.
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
    /// The events that each thread has entered and not left, by index: without functions that
    /// await.
    open: Vec<Vec<u32>>,
    /// The functions of all threads that were entered and not left.
    entered: Calls,
    /// Those whose exits came first.
    left: Calls,
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
            entered: Calls::default(),
            left: Calls::default(),
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
        let own = self.own.get(&record.probe).copied();
        match record.phase {
            RecordKind::Enter if own == Some(Own::Task) => self.task_begins(thread, record),
            RecordKind::Exit if own == Some(Own::Task) => self.task_ends(thread, record),
            RecordKind::Enter => self.enter(thread, record, bytes, own == Some(Own::Poll)),
            RecordKind::Exit => {
                self.exit(thread, record, own == Some(Own::Poll));
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
        let at = if edges == Edges::End { NO_RECORD } else { self.keep(record, bytes) };
        self.bytes += EVENT_BYTES;
        let events = &mut self.timeline.threads[thread].events;
        let (begin_ns, end_ns) = (record.tsc, record.tsc);
        let Record { task, group, probe, .. } = *record;
        events.push(TimelineEvent { begin_ns, end_ns, task, group, probe, edges, record: at });
        (events.len() - 1) as u32
    }

    /// Keeps a record that has values; its place.
    fn keep(&mut self, record: &Record<'_>, bytes: &[u8]) -> u32 {
        if record.values.is_empty() {
            return NO_RECORD;
        }
        let kept = &mut self.timeline.records;
        let at = kept.len() as u32;
        kept.extend_from_slice(bytes);
        self.bytes += bytes.len();
        at
    }

    fn enter(&mut self, thread: usize, record: &Record<'_>, bytes: &[u8], is_poll: bool) {
        if !is_poll && self.begin_left(record, bytes) {
            return;
        }
        let index = self.push(thread, record, bytes, Edges::Begin);
        // Functions that await leave room for polls.
        if self.open[thread].len() < if is_poll { DEEPEST } else { DEEPEST / 2 } {
            self.open[thread].push(index);
        }
        if !is_poll {
            self.entered.add(Call::of(&self.timeline.threads[thread].events[index as usize], thread, index));
            self.bytes += CALL_BYTES;
        }
    }

    /// Gives a function whose exit came first its enter; false if there is none.
    fn begin_left(&mut self, record: &Record<'_>, bytes: &[u8]) -> bool {
        let Some(call) = self.left.nearest(record.task, record.probe, record.tsc) else { return false };
        let end = self.timeline.threads[call.thread].events[call.index as usize].end_ns;
        if !call.has_begun(record.tsc, end - call.begin, self.clock.tsc_hz) {
            return false;
        }
        self.left.remove(&call);
        self.bytes -= CALL_BYTES;
        let at = self.keep(record, bytes);
        let event = &mut self.timeline.threads[call.thread].events[call.index as usize];
        (event.begin_ns, event.edges, event.record) = (record.tsc.min(end), Edges::Both, at);
        true
    }

    fn exit(&mut self, thread: usize, record: &Record<'_>, is_poll: bool) {
        let elapsed = match record.values.first() {
            Some(Field::Unsigned(ns)) => Some((*ns as f64 * self.clock.tsc_hz / 1e9) as u64),
            _ => None,
        };
        let is_known =
            if is_poll { self.leave_poll(thread, record) } else { self.leave_call(thread, record, elapsed) };
        if is_known {
            return;
        }
        let index = self.push(thread, record, &[], Edges::End);
        let begin = elapsed.map_or(self.exits[thread], |elapsed| record.tsc.saturating_sub(elapsed));
        let event = &mut self.timeline.threads[thread].events[index as usize];
        event.begin_ns = begin.min(record.tsc);
        if !is_poll && elapsed.is_some() {
            self.left.add(Call::of(event, thread, index));
            self.bytes += CALL_BYTES;
        }
        if begin != UNKNOWN {
            self.first = self.first.min(begin);
        }
    }

    /// Ends a poll, and those inside; false if its enter was not seen.
    fn leave_poll(&mut self, thread: usize, record: &Record<'_>) -> bool {
        let events = &mut self.timeline.threads[thread].events;
        let is_its = |&index: &u32| {
            let it = &events[index as usize];
            (it.probe, it.task) == (record.probe, record.task)
        };
        let Some(at) = self.open[thread].iter().rposition(is_its) else { return false };
        let mut inner = self.open[thread].drain(at..);
        if let Some(own) = inner.next() {
            let own = &mut events[own as usize];
            (own.end_ns, own.edges) = (record.tsc, Edges::Both);
        }
        for index in inner {
            let it = &mut events[index as usize];
            // Functions await their next poll.
            if self.own.get(&it.probe) == Some(&Own::Poll) {
                it.end_ns = record.tsc;
            }
        }
        true
    }

    /// Ends a function, which has lasted for that many ticks; false if its enter was not seen.
    fn leave_call(&mut self, thread: usize, record: &Record<'_>, elapsed: Option<u64>) -> bool {
        let begin = record.tsc.saturating_sub(elapsed.unwrap_or_default());
        let tsc_hz = self.clock.tsc_hz;
        let is_it = |it: &Call| elapsed.is_none_or(|elapsed| it.has_begun(begin, elapsed, tsc_hz));
        let call = self.entered.nearest(record.task, record.probe, begin).filter(is_it).or_else(|| {
            // It may be left in the middle of another task.
            let events = &self.timeline.threads[thread].events;
            let calls = self.open[thread].iter().rev();
            calls
                .map(|&index| Call::of(&events[index as usize], thread, index))
                .find(|it| it.probe == record.probe && is_it(it))
        });
        let Some(call) = call else { return false };
        self.entered.remove(&call);
        self.bytes -= CALL_BYTES;
        let events = &mut self.timeline.threads[call.thread].events;
        let it = &mut events[call.index as usize];
        (it.end_ns, it.edges) = (record.tsc.max(it.begin_ns), Edges::Both);
        let open = &mut self.open[call.thread];
        let at = open.iter().rposition(|&index| index == call.index);
        for index in at.map_or_else(Vec::new, |at| open.split_off(at)).into_iter().skip(1) {
            let it = &mut events[index as usize];
            if call.thread == thread && it.task == call.task {
                it.end_ns = record.tsc;
            } else {
                open.push(index);
            }
        }
        true
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
        let Self { mut timeline, clock, open, entered, tasks, traces, mut first, mut last, .. } = self;
        if first > last {
            (first, last) = (clock.tsc, clock.tsc);
        }
        let ns_of = |ticks: u64| (ticks as f64 * 1e9 / clock.tsc_hz) as u64;
        let ns = |tsc: u64| ns_of(tsc.saturating_sub(first));
        let ends = |begin: u64, end: u64| (ns(begin), ns(end.max(begin)));
        for call in entered.into_iter() {
            let event = &mut timeline.threads[call.thread].events[call.index as usize];
            if event.end_ns == event.begin_ns {
                let task = tasks.get(&event.task).filter(|task| task.edges != Edges::Begin);
                event.end_ns = task.map_or(last, |task| task.end_ns.max(event.begin_ns));
            }
        }
        for (thread, open) in timeline.threads.iter_mut().zip(open) {
            for index in open {
                let event = &mut thread.events[index as usize];
                if event.end_ns == event.begin_ns {
                    event.end_ns = last;
                }
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
