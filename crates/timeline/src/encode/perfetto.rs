//! Perfetto's `TrackEvent`s.
//!
//! A thread is a track with its spans as slices. A group is a track with its tasks as slices; tasks
//! that overlap lie on tracks of the same name, which the viewer shows as one. All events of one
//! request have one flow.
//!
//! The packets of a track are in order of time, and slices nest: one that would end after the slice
//! around it ends with it.
//!
//! # References
//!
//! <https://github.com/google/perfetto/blob/main/protos/perfetto/trace/track_event/track_event.proto>

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use dormouse::record::Field;
use dormouse_encode::protobuf::Message;
use dormouse_protocol::is_connection;

use crate::timeline::{Edges, POLL, Timeline, TimelineEvent, TimelineTask};

mod trace {
    pub(super) const PACKET: u32 = 1;
}

mod packet {
    pub(super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const DEFAULTS: u32 = 59;
    pub(super) const TRACK: u32 = 60;
    /// Flags of a sequence: what was interned before is gone; this one needs what is interned.
    pub(super) const CLEARED: u64 = 1;
    pub(super) const NEEDS: u64 = 2;
}

mod defaults {
    pub(super) const CLOCK: u32 = 58;
}

mod clocks {
    pub(super) const CLOCK: u32 = 1;
    pub(super) const PRIMARY: u32 = 2;
    pub(super) const ID: u32 = 1;
    pub(super) const TIMESTAMP: u32 = 2;
    pub(super) const REALTIME: u64 = 1;
    pub(super) const MONOTONIC: u64 = 3;
}

mod track {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PROCESS: u32 = 3;
    pub(super) const THREAD: u32 = 4;
    pub(super) const PARENT: u32 = 5;
    pub(super) const PROCESS_PID: u32 = 1;
    pub(super) const PROCESS_NAME: u32 = 6;
    pub(super) const THREAD_PID: u32 = 1;
    pub(super) const THREAD_TID: u32 = 2;
    pub(super) const THREAD_NAME: u32 = 5;
}

mod event {
    pub(super) const ANNOTATION: u32 = 4;
    pub(super) const TYPE: u32 = 9;
    pub(super) const NAME: u32 = 10;
    pub(super) const TRACK: u32 = 11;
    pub(super) const CATEGORY: u32 = 3;
    pub(super) const FLOW: u32 = 47;
    pub(super) const BEGIN: u64 = 1;
    pub(super) const END: u64 = 2;
    pub(super) const INSTANT: u64 = 3;
}

mod annotation {
    pub(super) const NAME: u32 = 1;
    pub(super) const BOOLEAN: u32 = 2;
    pub(super) const UNSIGNED: u32 = 3;
    pub(super) const SIGNED: u32 = 4;
    pub(super) const FLOAT: u32 = 5;
    pub(super) const TEXT: u32 = 6;
}

/// Kinds of interned names, by their fields.
mod interned {
    pub(super) const CATEGORY: u32 = 1;
    pub(super) const EVENT: u32 = 2;
    pub(super) const ANNOTATION: u32 = 3;
    pub(super) const NUMBER: u32 = 1;
    pub(super) const NAME: u32 = 2;
}

/// The one sequence of packets.
const SEQUENCE: u64 = 1;
const PROCESS: u64 = 1;
/// Tracks of threads, and of groups, from here on.
const THREADS: u64 = 1 << 32;
const GROUPS: u64 = 2 << 32;

/// Writes a timeline as a `.pftrace` file that <https://ui.perfetto.dev> opens.
///
/// # Errors
///
/// An error of `out`.
pub fn perfetto(timeline: &Timeline, out: impl Write) -> io::Result<()> {
    let mut writer = Writer {
        timeline,
        out,
        packet: Message::default(),
        new_names: Message::default(),
        names: Default::default(),
    };
    writer.begin()?;
    for index in 0..timeline.threads.len() {
        writer.thread(index)?;
    }
    writer.groups()?;
    writer.out.flush()
}

struct Writer<'a, W> {
    timeline: &'a Timeline,
    out: W,
    packet: Message,
    /// Names that this packet is the first to use.
    new_names: Message,
    /// Numbers of interned names, by kind. They count from 1.
    names: [HashMap<String, u64>; 3],
}

impl<W: Write> Writer<'_, W> {
    /// The clock, and the process.
    fn begin(&mut self) -> io::Result<()> {
        let mut snapshot = Message::default();
        for (id, ns) in
            [(clocks::MONOTONIC, self.timeline.mono_ns), (clocks::REALTIME, self.timeline.unix_ns)]
        {
            let mut clock = Message::default();
            clock.number(clocks::ID, id);
            clock.number(clocks::TIMESTAMP, ns);
            snapshot.message(clocks::CLOCK, &clock);
        }
        snapshot.number(clocks::PRIMARY, clocks::MONOTONIC);
        self.packet.message(packet::CLOCK_SNAPSHOT, &snapshot);
        self.put()?;
        let mut of_all = Message::default();
        of_all.number(defaults::CLOCK, clocks::MONOTONIC);
        self.packet.message(packet::DEFAULTS, &of_all);
        self.packet.number(packet::SEQUENCE_FLAGS, packet::CLEARED);
        self.put()?;
        let mut process = Message::default();
        process.number(track::PROCESS_PID, self.timeline.pid.into());
        process.bytes(track::PROCESS_NAME, self.timeline.program.as_bytes());
        let mut described = Message::default();
        described.number(track::UUID, PROCESS);
        described.message(track::PROCESS, &process);
        self.packet.message(packet::TRACK, &described);
        self.put()
    }

    /// Ends the packet.
    fn put(&mut self) -> io::Result<()> {
        self.packet.number(packet::SEQUENCE, SEQUENCE);
        if !self.new_names.as_bytes().is_empty() {
            self.packet.message(packet::INTERNED, &self.new_names);
            self.new_names.clear();
        }
        let mut whole = Message::default();
        whole.message(trace::PACKET, &self.packet);
        self.packet.clear();
        self.out.write_all(whole.as_bytes())
    }

    fn thread(&mut self, index: usize) -> io::Result<()> {
        let (timeline, uuid) = (self.timeline, THREADS + index as u64);
        let of = &timeline.threads[index];
        let mut thread = Message::default();
        thread.number(track::THREAD_PID, timeline.pid.into());
        thread.number(track::THREAD_TID, of.tid.into());
        thread.bytes(track::THREAD_NAME, of.name.as_bytes());
        let mut described = Message::default();
        described.number(track::UUID, uuid);
        described.number(track::PARENT, PROCESS);
        described.message(track::THREAD, &thread);
        self.packet.message(packet::TRACK, &described);
        self.put()?;
        // The ends of the slices around.
        let mut ends: Vec<u64> = Vec::new();
        for event in &of.events {
            while let Some(end) = ends.pop_if(|end| *end <= event.begin_ns) {
                self.end(uuid, end)?;
            }
            let around = ends.last().copied().unwrap_or(u64::MAX);
            self.event(uuid, event, event.end_ns.saturating_sub(around))?;
            if event.edges != Edges::Point {
                ends.push(event.end_ns.min(around));
            }
        }
        while let Some(end) = ends.pop() {
            self.end(uuid, end)?;
        }
        Ok(())
    }

    /// An event, which lasts for `longer_ns` after the slice around it.
    fn event(&mut self, uuid: u64, it: &TimelineEvent, longer_ns: u64) -> io::Result<()> {
        let timeline = self.timeline;
        let probe = timeline.probe(it);
        let name = probe.map_or("(probe unknown)", |probe| &probe.name);
        let is_poll = name == POLL;
        let mut message = Message::default();
        let kind = if it.edges == Edges::Point { event::INSTANT } else { event::BEGIN };
        // A poll has its group's name, because its probe's is the same for all.
        let shown = if is_poll { timeline.group(it.group) } else { name };
        self.head(&mut message, kind, uuid, shown, name);
        let mut named =
            vec![("task", Field::Unsigned(it.task)), ("group", Field::Text(timeline.group(it.group)))];
        named.truncate(if it.task == 0 && it.group == 0 { 0 } else { 2 });
        named.extend(it.edges.note().map(|note| ("note", Field::Text(note))));
        named.extend((longer_ns > 0).then_some(("longer_ns", Field::Unsigned(longer_ns))));
        let fields = probe.map_or(&[][..], |probe| &probe.fields);
        for (index, value) in timeline.values(it).into_iter().enumerate() {
            named.push((fields.get(index).map_or("?", |field| field), value));
        }
        for (name, value) in named {
            self.annotate(&mut message, name, value);
        }
        if it.task != 0 {
            message.fixed(event::FLOW, timeline.request_of(it.task));
        }
        self.at(it.begin_ns, &message)
    }

    /// The tasks of each group, on as many tracks of its name as there were at once.
    fn groups(&mut self) -> io::Result<()> {
        let timeline = self.timeline;
        let mut groups: BTreeMap<u32, Vec<&TimelineTask>> = BTreeMap::new();
        for task in &timeline.tasks {
            groups.entry(task.group).or_default().push(task);
        }
        let mut uuid = GROUPS;
        for (group, tasks) in groups {
            // The tracks, by when they are free.
            let mut tracks: BTreeSet<(u64, u64)> = BTreeSet::new();
            for task in tasks {
                let free = tracks.first().copied().filter(|&(since, _)| since <= task.begin_ns);
                let track = if let Some(first) = free {
                    tracks.remove(&first);
                    first.1
                } else {
                    uuid += 1;
                    let mut described = Message::default();
                    described.number(track::UUID, uuid);
                    described.number(track::PARENT, PROCESS);
                    described.bytes(track::NAME, timeline.group(group).as_bytes());
                    self.packet.message(packet::TRACK, &described);
                    self.put()?;
                    uuid
                };
                tracks.insert((task.end_ns, track));
                self.task(track, task)?;
            }
        }
        Ok(())
    }

    fn task(&mut self, uuid: u64, it: &TimelineTask) -> io::Result<()> {
        let mut message = Message::default();
        let name = match it.task {
            _ if it.is_request => "request",
            task if is_connection(task) => "connection",
            _ => "task",
        };
        self.head(&mut message, event::BEGIN, uuid, name, crate::timeline::TASK);
        self.annotate(&mut message, "task", Field::Unsigned(it.task));
        if it.parent != 0 {
            self.annotate(&mut message, "parent", Field::Unsigned(it.parent));
        }
        if let Some(trace) = it.trace_digits() {
            self.annotate(&mut message, "trace_id", Field::Text(&trace));
        }
        if let Some(outcome) = self.timeline.outcome(it) {
            self.annotate(&mut message, "outcome", Field::Text(outcome));
        }
        for (name, words) in ["waited_at", "dropped_by"].into_iter().zip(self.timeline.dropped(it)) {
            if let Some(words) = words {
                self.annotate(&mut message, name, Field::Text(words));
            }
        }
        if let Some(note) = it.edges.note() {
            self.annotate(&mut message, "note", Field::Text(note));
        }
        message.fixed(event::FLOW, self.timeline.request_of(it.task));
        self.at(it.begin_ns, &message)?;
        self.end(uuid, it.end_ns)
    }

    fn head(&mut self, message: &mut Message, kind: u64, uuid: u64, name: &str, category: &str) {
        message.number(event::TYPE, kind);
        message.number(event::TRACK, uuid);
        message.number(event::NAME, self.name(interned::EVENT, name));
        message.number(event::CATEGORY, self.name(interned::CATEGORY, category));
    }

    fn end(&mut self, uuid: u64, ns: u64) -> io::Result<()> {
        let mut message = Message::default();
        message.number(event::TYPE, event::END);
        message.number(event::TRACK, uuid);
        self.at(ns, &message)
    }

    fn at(&mut self, ns: u64, message: &Message) -> io::Result<()> {
        self.packet.number(packet::TIMESTAMP, self.timeline.mono_ns.saturating_add(ns));
        self.packet.number(packet::SEQUENCE_FLAGS, packet::NEEDS);
        self.packet.message(packet::TRACK_EVENT, message);
        self.put()
    }

    fn annotate(&mut self, message: &mut Message, name: &str, value: Field<'_>) {
        let mut annotation = Message::default();
        annotation.number(annotation::NAME, self.name(interned::ANNOTATION, name));
        match value {
            Field::Boolean(it) => annotation.always(annotation::BOOLEAN, it.into()),
            Field::Unsigned(it) => annotation.always(annotation::UNSIGNED, it),
            Field::Signed(it) => annotation.always(annotation::SIGNED, it.cast_unsigned()),
            Field::Float(it) => annotation.fixed(annotation::FLOAT, it.to_bits()),
            Field::Text(it) | Field::Formatted(it) => annotation.bytes(annotation::TEXT, it.as_bytes()),
            _ => annotation.bytes(annotation::TEXT, b"-"),
        }
        message.message(event::ANNOTATION, &annotation);
    }

    /// The number of a name. A new one goes into the packet that is being written.
    fn name(&mut self, kind: u32, name: &str) -> u64 {
        let known = &mut self.names[kind as usize - 1];
        if let Some(&number) = known.get(name) {
            return number;
        }
        let number = known.len() as u64 + 1;
        known.insert(name.to_owned(), number);
        let mut entry = Message::default();
        entry.number(interned::NUMBER, number);
        entry.bytes(interned::NAME, name.as_bytes());
        self.new_names.message(kind, &entry);
        number
    }
}
