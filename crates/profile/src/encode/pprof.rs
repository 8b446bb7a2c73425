//! `profile.proto`, compressed, by a writer of our own: the format has six kinds of messages, of
//! numbers and strings.
//!
//! A location is an address as [`Profile`] has it: inside the instruction, so that a tool that
//! resolves functions and lines itself finds the caller's. Mappings with functions are marked as
//! resolved, and tools leave them alone; the others are for the tools to resolve by their build id.
//!
//! # References
//!
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>

use std::collections::HashMap;
use std::io::Write as _;

use dormouse_encode::gzip::{Gzip, Level};
use dormouse_encode::protobuf::Message;
use dormouse_protocol::profile::{Column, MappedRange, Profile, Sample, Thread, WallState};

use crate::pprof::{comments, label, mapping, profile as field, sample, value_type};
use crate::pprof::{function, line, location};
use crate::symbols::{SourceFrame, Symbols, missing};
#[cfg(feature = "files")]
use crate::tasks::Tasks;

/// A profile as a `.pb.gz` file.
///
/// Values are those of [`crate::ProfileKind::columns`], labels `group`, `thread`, `tid` and, for
/// wall time, `state`. Without symbols there are only addresses and mappings. An unknown stack is
/// one function with the name [`crate::symbols::STACK_UNKNOWN`]. The comments list what is missing.
pub fn pprof(profile: &Profile, symbols: &Symbols) -> Vec<u8> {
    labelled(profile, symbols, |_| None)
}

/// [`pprof`], whose samples have the label `task` as well.
#[cfg(feature = "files")]
pub fn pprof_with_tasks(profile: &Profile, symbols: &Symbols, tasks: &Tasks) -> Vec<u8> {
    labelled(profile, symbols, |sample| tasks.name(sample))
}

/// The file, with the task of each sample, by its index.
fn labelled<'t>(profile: &Profile, symbols: &Symbols, task: impl Fn(usize) -> Option<&'t str>) -> Vec<u8> {
    let mut writer = Writer::new(profile, symbols);
    let mut samples = Message::default();
    for (index, it) in profile.samples.iter().enumerate() {
        let mut message = writer.sample(it);
        if let Some(task) = task(index) {
            message.message(sample::LABEL, &writer.text_label("task", task));
        }
        samples.message(field::SAMPLE, &message);
    }
    let body = writer.finish(&samples);
    // Nothing that is written to memory fails.
    let mut gzip = Gzip::new(Vec::with_capacity(body.as_bytes().len() / 4), Level::Small, &[]);
    gzip.write_all(body.as_bytes()).and_then(|()| gzip.finish()).unwrap_or_default()
}

struct Writer<'a> {
    profile: &'a Profile,
    symbols: &'a Symbols,
    /// Mappings in the order of their ids: the program's first, which tools take for the main one.
    mappings: Vec<(&'a MappedRange, Found)>,
    strings: HashMap<String, u64>,
    functions: HashMap<(u64, u64), u64>,
    locations: HashMap<u64, u64>,
    /// Locations that stand for stacks that are not known.
    missing: HashMap<&'static str, u64>,
    string_table: Message,
    function_table: Message,
    location_table: Message,
}

/// Whether the names of a mapping's locations have functions, files, lines, inlined functions: the
/// format's flags, in its order.
type Found = [bool; 4];

impl<'a> Writer<'a> {
    fn new(profile: &'a Profile, symbols: &'a Symbols) -> Self {
        let mut mappings: Vec<_> = profile.mappings.iter().map(|it| (it, Found::default())).collect();
        mappings.sort_by_key(|(it, _)| it.path != profile.program);
        let mut writer = Self {
            profile,
            symbols,
            mappings,
            strings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            missing: HashMap::new(),
            string_table: Message::default(),
            function_table: Message::default(),
            location_table: Message::default(),
        };
        // The first one is empty, by the format.
        writer.string("");
        writer
    }

    fn string(&mut self, text: &str) -> u64 {
        if let Some(&index) = self.strings.get(text) {
            return index;
        }
        let index = self.strings.len() as u64;
        self.strings.insert(text.to_owned(), index);
        self.string_table.bytes(field::STRING, text.as_bytes());
        index
    }

    fn sample(&mut self, it: &Sample) -> Message {
        let mut locations: Vec<u64> = Vec::new();
        for address in self.profile.stack(it.stack) {
            locations.push(self.location(address));
        }
        if locations.is_empty() {
            locations.push(self.missing(it));
        }
        let columns = self.profile.kind.columns().len();
        let mut message = Message::default();
        message.packed(sample::LOCATION, locations);
        message.packed(sample::VALUE, it.values[..columns].iter().map(|&it| signed(it)));
        let group = self.profile.groups.get(it.group as usize);
        if let Some(group) = group.filter(|it| !it.name.is_empty()) {
            message.message(sample::LABEL, &self.text_label("group", &group.name));
        }
        let thread = self.profile.threads.get(it.thread as usize);
        if let Some(thread) = thread.filter(|it| **it != Thread::default()) {
            message.message(sample::LABEL, &self.text_label("thread", &thread.name));
            let mut tid = Message::default();
            tid.number(label::KEY, self.string("tid"));
            tid.number(label::NUMBER, thread.tid.into());
            message.message(sample::LABEL, &tid);
        }
        if let Some(state) = self.profile.stack(it.stack).last().and_then(WallState::at) {
            message.message(sample::LABEL, &self.text_label("state", state.name()));
        }
        message
    }

    fn text_label(&mut self, key: &str, text: &str) -> Message {
        let mut message = Message::default();
        message.number(label::KEY, self.string(key));
        message.number(label::TEXT, self.string(text));
        message
    }

    fn location(&mut self, address: u64) -> u64 {
        if let Some(&id) = self.locations.get(&address) {
            return id;
        }
        let frames = self.symbols.get(address);
        let at = self.mappings.iter().position(|(it, _)| (it.start..it.end).contains(&address));
        if let Some(at) = at {
            let found = &mut self.mappings[at].1;
            found[0] |= !frames.is_empty();
            found[1] |= frames.iter().any(|it| !it.file.is_empty());
            found[2] |= frames.iter().any(|it| it.line != 0);
            found[3] |= frames.iter().any(|it| it.inlined);
        }
        let mapping = at.map_or(0, |at| at as u64 + 1);
        let id = self.put_location(mapping, address, frames);
        self.locations.insert(address, id);
        id
    }

    fn missing(&mut self, it: &Sample) -> u64 {
        let name = missing(self.profile, it);
        if let Some(&id) = self.missing.get(name) {
            return id;
        }
        let id =
            self.put_location(0, 0, &[SourceFrame { function: name.to_owned(), ..SourceFrame::default() }]);
        self.missing.insert(name, id);
        id
    }

    fn put_location(&mut self, mapping: u64, address: u64, frames: &[SourceFrame]) -> u64 {
        let id = (self.locations.len() + self.missing.len()) as u64 + 1;
        let mut message = Message::default();
        message.number(location::ID, id);
        message.number(location::MAPPING, mapping);
        message.number(location::ADDRESS, address);
        for frame in frames {
            let mut at = Message::default();
            at.number(line::FUNCTION, self.function(frame));
            at.number(line::LINE, frame.line.into());
            message.message(location::LINE, &at);
        }
        self.location_table.message(field::LOCATION, &message);
        id
    }

    fn function(&mut self, frame: &SourceFrame) -> u64 {
        let key = (self.string(&frame.function), self.string(&frame.file));
        let next = self.functions.len() as u64 + 1;
        *self.functions.entry(key).or_insert_with(|| {
            let mut message = Message::default();
            message.number(function::ID, next);
            // No system name: where it is the same as the name, tools demangle it once more, and
            // cut what stands in angle brackets.
            message.number(function::NAME, key.0);
            message.number(function::FILE, key.1);
            self.function_table.message(field::FUNCTION, &message);
            next
        })
    }

    fn finish(mut self, samples: &Message) -> Message {
        let profile = self.profile;
        let mut out = Message::default();
        for column in profile.kind.columns() {
            out.message(field::SAMPLE_TYPE, &self.value_type(*column));
        }
        out.append(samples);
        for (index, (it, found)) in std::mem::take(&mut self.mappings).into_iter().enumerate() {
            let mut message = Message::default();
            message.number(mapping::ID, index as u64 + 1);
            message.number(mapping::START, it.start);
            message.number(mapping::LIMIT, it.end);
            message.number(mapping::OFFSET, it.offset);
            message.number(mapping::FILE, self.string(&it.path));
            message.number(mapping::BUILD_ID, self.string(&it.build_id));
            for (flag, is_set) in (mapping::HAS_FUNCTIONS..).zip(found) {
                message.number(flag, is_set.into());
            }
            out.message(field::MAPPING, &message);
        }
        let main = profile.kind.columns()[profile.kind.main_column()];
        out.number(field::TIME, signed(profile.unix_ns));
        out.number(field::DURATION, signed(profile.duration_ns));
        let period_type = self.value_type(main);
        out.message(field::PERIOD_TYPE, &period_type);
        out.number(field::PERIOD, signed(profile.period));
        let comments: Vec<u64> = comments(&profile.coverage).iter().map(|it| self.string(it)).collect();
        out.packed(field::COMMENT, comments);
        let shown = profile.kind.columns()[profile.main_column()];
        out.number(field::DEFAULT_SAMPLE_TYPE, self.string(shown.name));
        out.append(&self.location_table);
        out.append(&self.function_table);
        out.append(&self.string_table);
        out
    }

    fn value_type(&mut self, column: Column) -> Message {
        let mut message = Message::default();
        message.number(value_type::TYPE, self.string(column.name));
        message.number(value_type::UNIT, self.string(column.unit));
        message
    }
}

/// The format's numbers are signed.
fn signed(value: u64) -> u64 {
    value.min(i64::MAX as u64)
}
