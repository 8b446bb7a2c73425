//! The Firefox Profiler's processed format.
//!
//! A thread is a thread there, and its spans and points are markers. A poll has the name of its
//! group, everything else the name of its probe, because the chart has a row for each name. Tasks
//! may end on another thread than they began on, so they are markers on a track of their own.
//! Markers of one request have one flow, which the viewer follows from thread to thread.
//!
//! # References
//!
//! <https://github.com/firefox-devtools/profiler/blob/main/docs-developer/markers.md>

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::mem;

use dormouse::record::Field;
use dormouse_protocol::is_connection;
use flate2::Compression;
use flate2::write::GzEncoder;
use fxprof_processed_profile as fx;
use serde::Serialize as _;
use serde_json::ser::Formatter;

use crate::timeline::{Edges, POLL, TASK, Timeline, TimelineEvent, TimelineTask, TimelineThread};

/// The field by which markers are connected.
const FLOW: &str = "flow";
/// The track of tasks.
const TASKS: &str = "tasks";
/// Integers beyond it are no numbers of JSON's.
const MOST_EXACT: u64 = 1 << 53;

const COLOURS: [fx::CategoryColor; 9] = [
    fx::CategoryColor::Blue,
    fx::CategoryColor::Orange,
    fx::CategoryColor::Green,
    fx::CategoryColor::Purple,
    fx::CategoryColor::Red,
    fx::CategoryColor::Brown,
    fx::CategoryColor::LightBlue,
    fx::CategoryColor::Magenta,
    fx::CategoryColor::LightGreen,
];

/// Writes a timeline as a `.json.gz` file that <https://profiler.firefox.com> opens. It consumes
/// the timeline, so that the events and the markers made from them are not all in memory at once.
///
/// # Errors
///
/// An error of `out`.
pub fn firefox(mut timeline: Timeline, out: impl Write) -> io::Result<()> {
    let (threads, tasks) = (mem::take(&mut timeline.threads), mem::take(&mut timeline.tasks));
    let profile = Encoder::new(&timeline).encode(threads, &tasks);
    drop((timeline, tasks));
    let mut gzip = GzEncoder::new(out, Compression::default());
    let mut json = serde_json::Serializer::with_formatter(&mut gzip, Flows::default());
    profile.serialize(&mut json)?;
    gzip.finish()?.flush()
}

/// The kind of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    Integer,
    Decimal,
    Text,
}

impl FieldKind {
    fn of(value: &Field<'_>) -> Self {
        match *value {
            Field::Signed(it) if it.unsigned_abs() <= MOST_EXACT => Self::Integer,
            Field::Unsigned(it) if it <= MOST_EXACT => Self::Integer,
            Field::Float(it) if it.is_finite() => Self::Decimal,
            _ => Self::Text,
        }
    }

    /// One that holds values of both.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Text, _) | (_, Self::Text) => Self::Text,
            (Self::Decimal, _) | (_, Self::Decimal) => Self::Decimal,
            _ => Self::Integer,
        }
    }

    fn format(self) -> fx::MarkerFieldFormat {
        match self {
            Self::Integer => fx::MarkerFieldFormat::Integer,
            Self::Decimal => fx::MarkerFieldFormat::Decimal,
            Self::Text => fx::MarkerFieldFormat::String,
        }
    }
}

/// A marker; its values in the order of its type's fields.
struct Marker<'a> {
    of: fx::MarkerTypeHandle,
    name: fx::StringHandle,
    category: fx::CategoryHandle,
    values: &'a [MarkerValue],
}

#[derive(Clone, Copy)]
enum MarkerValue {
    Number(f64),
    Text(fx::StringHandle),
}

impl fx::Marker for Marker<'_> {
    fn marker_type(&self, _: &mut fx::Profile) -> fx::MarkerTypeHandle {
        self.of
    }

    fn name(&self, _: &mut fx::Profile) -> fx::StringHandle {
        self.name
    }

    fn category(&self, _: &mut fx::Profile) -> fx::CategoryHandle {
        self.category
    }

    fn string_field_value(&self, index: u32) -> fx::StringHandle {
        match self.values[index as usize] {
            MarkerValue::Text(it) => it,
            // The fields of the type distinguish the two.
            MarkerValue::Number(_) => self.name,
        }
    }

    fn number_field_value(&self, index: u32) -> f64 {
        match self.values[index as usize] {
            MarkerValue::Number(it) => it,
            MarkerValue::Text(_) => 0.0,
        }
    }
}

/// The markers of a probe.
struct MarkerType {
    handle: fx::MarkerTypeHandle,
    kinds: Vec<FieldKind>,
    name: fx::StringHandle,
    is_poll: bool,
}

struct Encoder<'a> {
    timeline: &'a Timeline,
    out: fx::Profile,
    categories: HashMap<u32, (fx::StringHandle, fx::CategoryHandle)>,
    types: BTreeMap<u32, MarkerType>,
    nothing: fx::StringHandle,
    values: Vec<MarkerValue>,
}

impl<'a> Encoder<'a> {
    fn new(timeline: &'a Timeline) -> Self {
        let start = fx::ReferenceTimestamp::from_millis_since_unix_epoch(timeline.unix_ns as f64 / 1e6);
        let interval = fx::SamplingInterval::from_millis(1);
        let mut out = fx::Profile::new(&timeline.program, start, interval);
        out.set_symbolicated(true);
        let nothing = out.intern_string("");
        let (categories, types) = (HashMap::new(), BTreeMap::new());
        Self { timeline, out, categories, types, nothing, values: Vec::new() }
    }

    fn encode(mut self, threads: Vec<TimelineThread>, tasks: &[TimelineTask]) -> fx::Profile {
        let timeline = self.timeline;
        let begin = fx::Timestamp::from_nanos_since_reference(0);
        let end = fx::Timestamp::from_nanos_since_reference(timeline.duration_ns);
        let process = self.out.add_process(&timeline.program, timeline.pid, begin);
        self.out.set_process_end_time(process, end);
        self.add_types(&threads);
        for of in threads {
            let thread = self.out.add_thread(process, of.tid, begin, of.tid == timeline.pid);
            self.show(thread, &of.name, end);
            for event in &of.events {
                self.event(thread, event);
            }
        }
        if !tasks.is_empty() {
            let thread = self.out.add_thread(process, 0, begin, false);
            self.show(thread, TASKS, end);
            let of = self.add_task_type();
            for task in tasks {
                self.task(thread, of, task);
            }
        }
        self.out
    }

    /// All tracks can be seen at once: the viewer hides threads without samples by itself.
    fn show(&mut self, thread: fx::ThreadHandle, name: &str, end: fx::Timestamp) {
        self.out.set_thread_name(thread, name);
        self.out.set_thread_end_time(thread, end);
        self.out.set_thread_show_markers_in_timeline(thread, true);
        self.out.add_initial_visible_thread(thread);
    }

    /// A type of markers for each probe, with fields of the kinds that their values are.
    fn add_types(&mut self, threads: &[TimelineThread]) {
        let timeline = self.timeline;
        let mut kinds: BTreeMap<u32, Vec<FieldKind>> = BTreeMap::new();
        for event in threads.iter().flat_map(|thread| &thread.events) {
            let of = kinds.entry(event.probe).or_default();
            for (index, value) in timeline.values(event).iter().enumerate() {
                let kind = FieldKind::of(value);
                match of.get_mut(index) {
                    Some(known) => *known = known.with(kind),
                    None => of.push(kind),
                }
            }
        }
        // Several probes may have one name, and other fields.
        let mut names: HashMap<&str, u32> = HashMap::new();
        for (id, mut kinds) in kinds {
            let probe = timeline.probes.get(&id);
            let name = probe.map_or("(probe unknown)", |probe| &probe.name);
            let fields = probe.map_or(&[][..], |probe| &probe.fields);
            // No event has a value for these.
            kinds.resize(fields.len().max(kinds.len()), FieldKind::Text);
            let uses = names.entry(name).and_modify(|uses| *uses += 1).or_insert(1);
            let type_name = if *uses == 1 { name.to_owned() } else { format!("{name} ({uses})") };
            let labels = (0..kinds.len()).map(|index| fields.get(index).map_or("?", |field| field));
            let place = probe.map(|probe| probe.place.clone());
            let own = kinds
                .iter()
                .zip(labels)
                .enumerate()
                .map(|(index, (kind, label))| field(&format!("f{index}"), label, kind.format()));
            let handle = self.register(type_name, place, own.collect());
            let name_handle = self.out.intern_string(name);
            let of = MarkerType { handle, kinds, name: name_handle, is_poll: name == POLL };
            self.types.insert(id, of);
        }
    }

    fn add_task_type(&mut self) -> fx::MarkerTypeHandle {
        let own = vec![
            field("kind", "kind", fx::MarkerFieldFormat::String),
            field("parent", "parent", fx::MarkerFieldFormat::String),
            field("trace_id", "trace id", fx::MarkerFieldFormat::String),
            field("outcome", "outcome", fx::MarkerFieldFormat::String),
            field("waited_at", "waited at", fx::MarkerFieldFormat::String),
            field("dropped_by", "dropped by", fx::MarkerFieldFormat::String),
        ];
        self.register(TASK.to_owned(), None, own)
    }

    /// The fields of all types come first.
    fn register(
        &mut self,
        type_name: String,
        description: Option<String>,
        own: Vec<fx::RuntimeSchemaMarkerField>,
    ) -> fx::MarkerTypeHandle {
        let mut fields = vec![
            field("group", "group", fx::MarkerFieldFormat::String),
            field("task", "task", fx::MarkerFieldFormat::String),
            field(FLOW, "request", fx::MarkerFieldFormat::String),
            field("note", "note", fx::MarkerFieldFormat::String),
        ];
        let label = own.first().map(|first| format!("{{marker.data.{}}}", first.key));
        fields.extend(own);
        self.out.register_marker_type(fx::RuntimeSchemaMarkerSchema {
            type_name,
            description,
            locations: fx::MarkerLocations::MARKER_CHART
                | fx::MarkerLocations::MARKER_TABLE
                | fx::MarkerLocations::TIMELINE_OVERVIEW,
            chart_label: Some(label.clone().unwrap_or_else(|| "{marker.data.task}".to_owned())),
            tooltip_label: Some("{marker.name}".to_owned()),
            table_label: Some(label.unwrap_or_else(|| "{marker.data.task}".to_owned())),
            fields,
            graphs: Vec::new(),
        })
    }

    fn category(&mut self, group: u32) -> (fx::StringHandle, fx::CategoryHandle) {
        let (timeline, out) = (self.timeline, &mut self.out);
        *self.categories.entry(group).or_insert_with(|| {
            let name = timeline.group(group);
            let colour = match group {
                0 => fx::CategoryColor::Gray,
                _ => COLOURS[group as usize % COLOURS.len()],
            };
            (out.intern_string(name), out.add_category(name, colour))
        })
    }

    /// The values of the fields that all types have.
    fn common(&mut self, group: fx::StringHandle, task: u64, edges: Edges) {
        let request = number(&mut self.out, self.timeline.request_of(task));
        let task = number(&mut self.out, task);
        let note = edges.note().map(|note| self.out.intern_string(note));
        self.values.clear();
        self.values.push(MarkerValue::Text(group));
        self.values.extend([task, request, note].map(|it| MarkerValue::Text(it.unwrap_or(self.nothing))));
    }

    fn event(&mut self, thread: fx::ThreadHandle, it: &TimelineEvent) {
        let (group, category) = self.category(it.group);
        self.common(group, it.task, it.edges);
        let Some(of) = self.types.get(&it.probe) else { return };
        let mut values = self.timeline.values(it).into_iter();
        for kind in &of.kinds {
            let value = values.next();
            self.values.push(match (kind, value) {
                (FieldKind::Text, Some(value)) => MarkerValue::Text(self.out.intern_string(&text(value))),
                (FieldKind::Text, None) => MarkerValue::Text(self.nothing),
                (_, Some(Field::Signed(it))) => MarkerValue::Number(it as f64),
                (_, Some(Field::Unsigned(it))) => MarkerValue::Number(it as f64),
                (_, Some(Field::Float(it))) => MarkerValue::Number(it),
                // Without its record; a null is no value.
                _ => MarkerValue::Number(f64::NAN),
            });
        }
        let name = if of.is_poll { group } else { of.name };
        let marker = Marker { of: of.handle, name, category, values: &self.values };
        self.out.add_marker(thread, timing(it.edges, it.begin_ns, it.end_ns), marker);
    }

    fn task(&mut self, thread: fx::ThreadHandle, of: fx::MarkerTypeHandle, it: &TimelineTask) {
        let (name, category) = self.category(it.group);
        self.common(name, it.task, it.edges);
        let kind = match it.edges {
            Edges::End => "",
            _ if it.is_request => "request",
            _ if is_connection(it.task) => "connection",
            _ => "part",
        };
        self.values.push(MarkerValue::Text(self.out.intern_string(kind)));
        let parent = number(&mut self.out, it.parent).unwrap_or(self.nothing);
        self.values.push(MarkerValue::Text(parent));
        let trace = it.trace_digits();
        let [waited_at, dropped_by] = self.timeline.dropped(it);
        for text in [trace.as_deref(), self.timeline.outcome(it), waited_at, dropped_by] {
            let text = text.map_or(self.nothing, |text| self.out.intern_string(text));
            self.values.push(MarkerValue::Text(text));
        }
        let marker = Marker { of, name, category, values: &self.values };
        self.out.add_marker(thread, timing(it.edges, it.begin_ns, it.end_ns), marker);
    }
}

/// The number of a task, as text: a number of JSON's has fewer digits. None if there is no task.
fn number(out: &mut fx::Profile, task: u64) -> Option<fx::StringHandle> {
    (task != 0).then(|| out.intern_string(&task.to_string()))
}

fn field(key: &str, label: &str, format: fx::MarkerFieldFormat) -> fx::RuntimeSchemaMarkerField {
    fx::RuntimeSchemaMarkerField {
        key: key.to_owned(),
        label: label.to_owned(),
        format,
        flags: fx::MarkerFieldFlags::SEARCHABLE,
    }
}

fn timing(edges: Edges, begin_ns: u64, end_ns: u64) -> fx::MarkerTiming {
    let at = fx::Timestamp::from_nanos_since_reference;
    match edges {
        Edges::Point => fx::MarkerTiming::Instant(at(begin_ns)),
        _ => fx::MarkerTiming::Interval(at(begin_ns), at(end_ns)),
    }
}

/// Text as it was recorded, other values as `dormouse trace` prints them.
fn text(value: Field<'_>) -> String {
    match value {
        Field::Text(it) | Field::Formatted(it) => it.to_owned(),
        other => other.to_string(),
    }
}

/// Writes `flow-id` as the format of fields that connect markers. The library has no word for that
/// format, whose values are text like a unique string's; so the word is replaced where the schema
/// is written: the value of `format` after a `key` that is [`FLOW`].
#[derive(Debug, Default)]
struct Flows {
    is_key: bool,
    last: Last,
    is_flow: bool,
}

/// The last key of an object, as far as it matters.
#[derive(Debug, Default, PartialEq, Eq)]
enum Last {
    Key,
    Format,
    #[default]
    Other,
}

impl Formatter for Flows {
    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.is_key = true;
        if first { Ok(()) } else { writer.write_all(b",") }
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_key = false;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if self.is_key {
            self.last = match fragment {
                "key" => Last::Key,
                "format" => Last::Format,
                _ => Last::Other,
            };
        } else if self.last == Last::Key {
            self.is_flow = fragment == FLOW;
        } else if self.last == Last::Format && self.is_flow {
            return writer.write_all(b"flow-id");
        }
        writer.write_all(fragment.as_bytes())
    }
}
