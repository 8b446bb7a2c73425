//! The binary record: a probe writes it into its thread's ring, and a reader decodes it.
//!
//! | offset | type | what |
//! |---|---|---|
//! | 0 | `u16` | length of the whole record, a multiple of 8 |
//! | 2 | `u8` | version, [`VERSION`] |
//! | 3 | `u8` | [`RecordKind`] |
//! | 4 | `u32` | probe |
//! | 8 | `u64` | time stamp counter |
//! | 16 | `u64` | task, 0 outside any |
//! | 24 | `u32` | group, 0 outside any |
//! | 28 | `u16` | number of values |
//! | 30 | `u16` | flags: bit 0, something was cut for want of room |
//! | 32 | | values: a tag byte, then 8 bytes, 1 byte, or a `u16` length and that many bytes |
//!
//! Integers are little-endian. A reader skips records of an unknown version by their length.

use std::fmt::{self, Write as _};

/// The version of the record format that this build writes.
pub const VERSION: u8 = 1;
/// The length of a record's header in bytes, which is the offset of its values.
pub const HEADER: usize = 32;
/// The length of the longest record in bytes. A longer one is cut and marked.
pub const MAX_RECORD: usize = 512;

const CUT: u16 = 1;

mod tag {
    pub(super) const NOTHING: u8 = 0;
    pub(super) const SIGNED: u8 = 1;
    pub(super) const UNSIGNED: u8 = 2;
    pub(super) const FLOAT: u8 = 3;
    pub(super) const BOOLEAN: u8 = 4;
    pub(super) const TEXT: u8 = 5;
    pub(super) const FORMATTED: u8 = 6;
}

/// The event that a record marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// A point in time.
    Point = 0,
    /// The beginning of a function or scope.
    Enter = 1,
    /// Its end, with one value: the nanoseconds since the beginning. Ends of polls and tasks have
    /// no value.
    Exit = 2,
}

impl RecordKind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Point, Self::Enter, Self::Exit].into_iter().find(|&p| p as u8 == byte)
    }
}

/// Builds one record on the stack.
///
/// ```
/// use dormouse::Value;
/// use dormouse::record::Writer;
///
/// struct Tea {
///     cups: u32,
/// }
///
/// impl Value for Tea {
///     fn record(&self, into: &mut Writer) {
///         into.unsigned(self.cups.into());
///     }
/// }
///
/// dormouse::probe!("tea.poured", tea = Tea { cups: 2 });
/// ```
#[derive(Debug)]
pub struct Writer {
    bytes: [u8; MAX_RECORD],
    length: usize,
    values: u16,
    flags: u16,
}

impl Writer {
    /// Begins a record.
    #[inline]
    pub(crate) fn new(phase: RecordKind, probe: u32, tsc: u64, task: u64, group: u32) -> Self {
        let mut writer = Self { bytes: [0; MAX_RECORD], length: HEADER, values: 0, flags: 0 };
        writer.bytes[2] = VERSION;
        writer.bytes[3] = phase as u8;
        writer.bytes[4..8].copy_from_slice(&probe.to_le_bytes());
        writer.bytes[8..16].copy_from_slice(&tsc.to_le_bytes());
        writer.bytes[16..24].copy_from_slice(&task.to_le_bytes());
        writer.bytes[24..28].copy_from_slice(&group.to_le_bytes());
        writer
    }

    /// Ends the record and gives its bytes.
    #[inline]
    pub(crate) fn finish(&mut self) -> &[u8] {
        let length = self.length.next_multiple_of(8);
        self.bytes[0..2].copy_from_slice(&(length as u16).to_le_bytes());
        self.bytes[28..30].copy_from_slice(&self.values.to_le_bytes());
        self.bytes[30..32].copy_from_slice(&self.flags.to_le_bytes());
        &self.bytes[..length]
    }

    fn put(&mut self, tag: u8, payload: &[u8]) {
        let end = self.length + 1 + payload.len();
        // After a cut nothing more: a later value would stand at an earlier one's place.
        if end > MAX_RECORD || self.flags & CUT != 0 {
            self.flags |= CUT;
            return;
        }
        self.bytes[self.length] = tag;
        self.bytes[self.length + 1..end].copy_from_slice(payload);
        self.length = end;
        self.values += 1;
    }

    /// Adds an absent value.
    pub fn nothing(&mut self) {
        self.put(tag::NOTHING, &[]);
    }

    /// Adds a signed integer.
    #[inline]
    pub fn signed(&mut self, value: i64) {
        self.put(tag::SIGNED, &value.to_le_bytes());
    }

    /// Adds an unsigned integer.
    #[inline]
    pub fn unsigned(&mut self, value: u64) {
        self.put(tag::UNSIGNED, &value.to_le_bytes());
    }

    /// Adds a floating-point number.
    #[inline]
    pub fn float(&mut self, value: f64) {
        self.put(tag::FLOAT, &value.to_le_bytes());
    }

    /// Adds a boolean.
    #[inline]
    pub fn boolean(&mut self, value: bool) {
        self.put(tag::BOOLEAN, &[u8::from(value)]);
    }

    /// Adds text, cut at the end of a character if it does not fit.
    pub fn text(&mut self, value: &str) {
        if let Some(mut part) = self.begin_text(tag::TEXT) {
            // Room runs out silently here: the part notes the cut itself.
            let _ = part.write_str(value);
        }
    }

    /// Adds text from bytes that should be UTF-8. Invalid bytes are replaced, as by
    /// [`String::from_utf8_lossy`].
    pub fn lossy(&mut self, value: &[u8]) {
        if let Some(mut part) = self.begin_text(tag::TEXT) {
            for chunk in value.utf8_chunks() {
                let replaced = if chunk.invalid().is_empty() { "" } else { "\u{fffd}" };
                if part.write_str(chunk.valid()).and_then(|()| part.write_str(replaced)).is_err() {
                    break;
                }
            }
        }
    }

    /// Adds the text of a value's `Display` or `Debug`, cut at the end of a character if it does
    /// not fit.
    pub fn formatted(&mut self, value: fmt::Arguments<'_>) {
        if let Some(mut part) = self.begin_text(tag::FORMATTED) {
            let _ = part.write_fmt(value);
        }
    }

    fn begin_text(&mut self, tag: u8) -> Option<TextPart<'_>> {
        let at = self.length;
        if at + 3 > MAX_RECORD || self.flags & CUT != 0 {
            self.flags |= CUT;
            return None;
        }
        self.bytes[at] = tag;
        self.length = at + 3;
        self.values += 1;
        Some(TextPart { writer: self, length_at: at + 1 })
    }
}

/// Text under way; its length is filled in when it is dropped.
struct TextPart<'a> {
    writer: &'a mut Writer,
    length_at: usize,
}

impl fmt::Write for TextPart<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let writer = &mut *self.writer;
        let room = MAX_RECORD - writer.length;
        let fits = floor_char_boundary(text, room);
        writer.bytes[writer.length..writer.length + fits].copy_from_slice(&text.as_bytes()[..fits]);
        writer.length += fits;
        if fits < text.len() {
            writer.flags |= CUT;
            // Nothing more fits: no need to format the rest.
            return Err(fmt::Error);
        }
        Ok(())
    }
}

impl Drop for TextPart<'_> {
    fn drop(&mut self) {
        let length = (self.writer.length - self.length_at - 2) as u16;
        self.writer.bytes[self.length_at..self.length_at + 2].copy_from_slice(&length.to_le_bytes());
    }
}

/// The largest end of a character that is at most `at`. (std's own is newer than this crate's
/// Rust.)
pub(crate) fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0)
}

/// A value of a record.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Field<'a> {
    /// An absent value.
    Nothing,
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Boolean(bool),
    /// Text.
    Text(&'a str),
    /// Text of a value's `Display` or `Debug`.
    Formatted(&'a str),
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("-"),
            Self::Signed(n) => n.fmt(f),
            Self::Unsigned(n) => n.fmt(f),
            Self::Float(n) => n.fmt(f),
            Self::Boolean(b) => b.fmt(f),
            // Quoted and escaped, because a terminal must not interpret what a service recorded.
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Formatted(text) => text.chars().try_for_each(|c| {
                if c.is_control() { write!(f, "{}", c.escape_default()) } else { f.write_char(c) }
            }),
        }
    }
}

/// A decoded record.
#[derive(Debug, Clone, PartialEq)]
pub struct Record<'a> {
    /// The event that the record marks.
    pub phase: RecordKind,
    /// The probe's number.
    pub probe: u32,
    /// The value of the time stamp counter.
    pub tsc: u64,
    /// The number of the task; 0 outside of tasks.
    pub task: u64,
    /// The number of the group; 0 outside of groups.
    pub group: u32,
    /// Whether something was cut because there was no room.
    pub cut: bool,
    /// The values, in the order of the probe's fields.
    pub values: Vec<Field<'a>>,
}

/// Bytes that are not a valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed record at byte {at}: {what}")]
pub struct Malformed {
    /// The offset at which the invalid record begins.
    pub at: usize,
    /// The fault.
    pub what: &'static str,
}

/// Decodes consecutive records. After an error nothing more is returned.
///
/// ```
/// use dormouse::record::Reader;
///
/// let bytes = [7; 40]; // as a client has received them
/// for record in Reader::new(&bytes) {
///     match record {
///         Ok(record) => println!("{:?} {:?}", record.phase, record.values),
///         Err(malformed) => println!("no record at {}", malformed.at),
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The offset of the next record.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The next record whole: its probe and its bytes.
    pub(crate) fn next_raw(&mut self) -> Option<Result<(u32, &'a [u8]), Malformed>> {
        let rest = self.bytes.get(self.at..).filter(|r| !r.is_empty())?;
        let at = self.at;
        let Some(length) = array(rest, 0).map(u16::from_le_bytes).map(usize::from) else {
            return Some(Err(self.fail(at, "shorter than a length")));
        };
        if length < HEADER || !length.is_multiple_of(8) {
            return Some(Err(self.fail(at, "impossible length")));
        }
        let (Some(record), Some(probe)) = (rest.get(..length), array(rest, 4)) else {
            return Some(Err(self.fail(at, "shorter than its length field")));
        };
        self.at += length;
        Some(Ok((u32::from_le_bytes(probe), record)))
    }

    fn fail(&mut self, at: usize, what: &'static str) -> Malformed {
        self.at = self.bytes.len();
        Malformed { at, what }
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.at;
            let record = match self.next_raw()? {
                Ok((_, record)) => record,
                Err(malformed) => return Some(Err(malformed)),
            };
            if record[2] != VERSION {
                continue;
            }
            return Some(parse(record).map_err(|what| self.fail(at, what)));
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn parse(bytes: &[u8]) -> Result<Record<'_>, &'static str> {
    const SHORT: &str = "shorter than its header";
    let word = |at| array(bytes, at).map(u64::from_le_bytes).ok_or(SHORT);
    let half = |at| array(bytes, at).map(u32::from_le_bytes).ok_or(SHORT);
    let quarter = |at| array(bytes, at).map(u16::from_le_bytes).ok_or(SHORT);
    let count = quarter(28)?;
    let mut rest = &bytes[HEADER..];
    let mut values = Vec::with_capacity(usize::from(count).min(MAX_RECORD));
    for _ in 0..count {
        let (value, length) = parse_value(rest)?;
        values.push(value);
        rest = &rest[length..];
    }
    Ok(Record {
        phase: RecordKind::of(bytes[3]).ok_or("unknown phase")?,
        probe: half(4)?,
        tsc: word(8)?,
        task: word(16)?,
        group: half(24)?,
        cut: quarter(30)? & CUT != 0,
        values,
    })
}

fn parse_value(bytes: &[u8]) -> Result<(Field<'_>, usize), &'static str> {
    const SHORT: &str = "a value is cut off";
    let word = || array(bytes, 1).ok_or(SHORT);
    let text = || -> Result<(&str, usize), &'static str> {
        let length = usize::from(u16::from_le_bytes(array(bytes, 1).ok_or(SHORT)?));
        let text = bytes.get(3..3 + length).ok_or(SHORT)?;
        Ok((std::str::from_utf8(text).map_err(|_| "text is not UTF-8")?, 3 + length))
    };
    Ok(match *bytes.first().ok_or(SHORT)? {
        tag::NOTHING => (Field::Nothing, 1),
        tag::SIGNED => (Field::Signed(i64::from_le_bytes(word()?)), 9),
        tag::UNSIGNED => (Field::Unsigned(u64::from_le_bytes(word()?)), 9),
        tag::FLOAT => (Field::Float(f64::from_le_bytes(word()?)), 9),
        tag::BOOLEAN => (Field::Boolean(*bytes.get(1).ok_or(SHORT)? != 0), 2),
        tag::TEXT => text().map(|(t, n)| (Field::Text(t), n))?,
        tag::FORMATTED => text().map(|(t, n)| (Field::Formatted(t), n))?,
        _ => return Err("unknown kind of value"),
    })
}

#[cfg(test)]
mod tests;
