//! Stacks of named functions with a count each, in the format of `profile.proto`: for what is
//! counted and has no addresses.

use std::collections::HashMap;
use std::io::Write as _;

use dormouse_encode::gzip::{Gzip, Level};
use dormouse_encode::protobuf::Message;
use dormouse_protocol::profile::Column;

use crate::pprof::{function, label, line, location, profile as field, sample, value_type};
use crate::symbols::SourceFrame;

/// Things that agree in their stack and labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountedStack {
    /// The functions, the innermost first.
    pub frames: Vec<SourceFrame>,
    /// How many there are.
    pub count: u64,
    /// Names and values of labels.
    pub labels: Vec<(&'static str, String)>,
}

/// The stacks as a `.pb.gz` file, whose values are those of one column; `comments` for its readers.
pub fn pprof_counted(column: Column, unix_ns: u64, stacks: &[CountedStack], comments: &[String]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.string("");
    let mut out = Message::default();
    let value_type = writer.value_type(column);
    out.message(field::SAMPLE_TYPE, &value_type);
    for stack in stacks {
        let locations: Vec<u64> = stack.frames.iter().map(|frame| writer.location(frame)).collect();
        let mut message = Message::default();
        message.packed(sample::LOCATION, locations);
        message.packed(sample::VALUE, [stack.count.min(i64::MAX as u64)]);
        for (key, text) in &stack.labels {
            let mut label = Message::default();
            label.number(label::KEY, writer.string(key));
            label.number(label::TEXT, writer.string(text));
            message.message(sample::LABEL, &label);
        }
        out.message(field::SAMPLE, &message);
    }
    out.number(field::TIME, unix_ns.min(i64::MAX as u64));
    out.message(field::PERIOD_TYPE, &value_type);
    out.number(field::PERIOD, 1);
    out.packed(field::COMMENT, comments.iter().map(|it| writer.string(it)).collect::<Vec<_>>());
    out.append(&writer.location_table);
    out.append(&writer.function_table);
    out.append(&writer.string_table);
    // Nothing that is written to memory fails.
    let mut gzip = Gzip::new(Vec::new(), Level::Small, &[]);
    gzip.write_all(out.as_bytes()).and_then(|()| gzip.finish()).unwrap_or_default()
}

#[derive(Default)]
struct Writer {
    strings: HashMap<String, u64>,
    functions: HashMap<(u64, u64), u64>,
    locations: HashMap<(u64, u32), u64>,
    string_table: Message,
    function_table: Message,
    location_table: Message,
}

impl Writer {
    fn string(&mut self, text: &str) -> u64 {
        if let Some(&index) = self.strings.get(text) {
            return index;
        }
        let index = self.strings.len() as u64;
        self.strings.insert(text.to_owned(), index);
        self.string_table.bytes(field::STRING, text.as_bytes());
        index
    }

    fn value_type(&mut self, column: Column) -> Message {
        let mut message = Message::default();
        message.number(value_type::TYPE, self.string(column.name));
        message.number(value_type::UNIT, self.string(column.unit));
        message
    }

    fn location(&mut self, frame: &SourceFrame) -> u64 {
        let function = self.function(frame);
        let next = self.locations.len() as u64 + 1;
        *self.locations.entry((function, frame.line)).or_insert_with(|| {
            let mut at = Message::default();
            at.number(line::FUNCTION, function);
            at.number(line::LINE, frame.line.into());
            let mut message = Message::default();
            message.number(location::ID, next);
            message.message(location::LINE, &at);
            self.location_table.message(field::LOCATION, &message);
            next
        })
    }

    fn function(&mut self, frame: &SourceFrame) -> u64 {
        let key = (self.string(&frame.function), self.string(&frame.file));
        let next = self.functions.len() as u64 + 1;
        *self.functions.entry(key).or_insert_with(|| {
            let mut message = Message::default();
            message.number(function::ID, next);
            message.number(function::NAME, key.0);
            message.number(function::FILE, key.1);
            self.function_table.message(field::FUNCTION, &message);
            next
        })
    }
}
