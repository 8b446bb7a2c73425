//! A recorder's file: what a service recorded about itself just before something happened.
//!
//! It is gzip, with the extra field `dormouse` in its header, and contains frames as a trace does:
//! [`FrameKind::Note`] and [`FrameKind::Records`] are the stream of a trace, and
//! [`FrameKind::Answer`] is what the agent would have answered to a request at that moment. So a
//! command reads a file with the code that reads a service: it looks the answer up instead of
//! sending a request.
//!
//! The payload of an answer is a `u8` length and the name of the operation, a `u64` (its `from`,
//! for answers in parts), a `u8` (1: this piece is the last), and a piece of JSON. The pieces of an
//! answer follow one another. The first answer is [`FileHead`], under the name `file`. Answers with
//! other names and frames of other kinds come from a newer service, and are skipped.
//!
//! | name | answer | `from` |
//! |---|---|---|
//! | `file` | [`FileHead`] | |
//! | `hello` | [`Hello`](crate::Hello) | |
//! | `trace` | [`Tracing`](crate::Tracing) | |
//! | `stat` | [`Stat`](crate::Stat) | |
//! | `tasks` | [`TasksPart`](crate::TasksPart) | as asked |
//! | `places` | [`PlacesPart`](crate::PlacesPart) | as asked |
//! | `cancelled` | [`CancelledRows`](crate::CancelledRows) | |
//! | `profile-report` | [`ProfilePart`](crate::ProfilePart) | as asked |
//! | `mappings` | [`FileMappings`] | |
//! | `missing` | [`FileMissing`], as often as there is one | its number |
//!
//! The writer streams: it holds one piece of JSON and gzip's buffers.

use std::io::{self, Write};

use dormouse_encode::gzip::{Gzip, Level};
use serde::{Deserialize, Serialize};

use crate::json::{write_json, write_pieces};
use crate::profile::MappedRange;
use crate::{FrameKind, MAX_FRAME, Note};

/// The version of the format that this build writes.
pub const FILE_VERSION: u32 = 1;

/// The longest answer in a file, in bytes.
pub const MAX_FILE_ANSWER: usize = 16 * 1024 * 1024;

/// The extra field of the gzip header: an id, a length, and the name.
const EXTRA: [u8; 12] = *b"DM\x08\0dormouse";

/// Where it stands, behind the fixed header and its own length.
const EXTRA_AT: usize = 12;

/// How many bytes of a file [`is_file`] needs.
pub const FILE_MAGIC: usize = EXTRA_AT + EXTRA.len();

/// Bytes of JSON in one frame.
const PIECE: usize = 64 * 1024;

/// The first answer in a file: why the file was written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileHead {
    /// The [`FILE_VERSION`] of the writer.
    pub version: u32,
    /// The rule that fired, as it was given; absent if a command requested the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The event that fired the rule, in words.
    pub seen: String,
    /// The number of the task that was seen, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u64>,
    /// The number of the group that was seen, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The trace to which that task belongs, as 32 digits, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The span of the request, or of its caller, as 16 digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_id: Option<String>,
    /// When the event was seen, in nanoseconds since 1970.
    pub real_ns: u64,
    /// `CLOCK_MONOTONIC` at that time, in nanoseconds.
    pub mono_ns: u64,
    /// The process id.
    pub pid: u32,
    /// The path of the process's executable.
    pub program: String,
}

/// The mappings with code, from which addresses in the file get their names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileMappings {
    /// The mappings, in order of their addresses.
    pub mappings: Vec<MappedRange>,
}

/// Something that is missing from the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileMissing {
    /// The name of the answer, or `records`.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// Writes a file, frame by frame.
#[derive(Debug)]
pub struct FileWriter<W: Write> {
    gzip: Gzip<W>,
    missing: u64,
}

impl<W: Write> FileWriter<W> {
    /// Begins a file. The writer holds a third of a megabyte by itself, of gzip.
    pub fn new(to: W, head: &FileHead) -> io::Result<Self> {
        let gzip = Gzip::new(to, Level::Fast, &EXTRA);
        let mut writer = Self { gzip, missing: 0 };
        writer.answer("file", 0, head)?;
        Ok(writer)
    }

    /// Writes an answer of the agent.
    pub fn answer(&mut self, name: &str, from: u64, answer: &impl Serialize) -> io::Result<()> {
        let mut piece = Vec::new();
        piece.try_reserve_exact(PIECE).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let full = &mut |piece: &mut Vec<u8>| self.piece(name, from, piece, false);
        write_pieces(&mut piece, PIECE, full, answer)?;
        self.piece(name, from, &mut piece, true)
    }

    /// Records that something is missing from the file.
    pub fn missing(&mut self, what: &str, why: impl Into<String>) -> io::Result<()> {
        self.missing += 1;
        let missing = FileMissing { what: what.to_owned(), why: why.into() };
        self.answer("missing", self.missing, &missing)
    }

    /// Writes a note of the trace.
    pub fn note(&mut self, note: &Note) -> io::Result<()> {
        let mut json = Vec::new();
        write_json(&mut json, note)?;
        self.frame(FrameKind::Note, &[&json])
    }

    /// Writes records of one thread.
    pub fn records(&mut self, tid: u32, start: u64, records: &[u8]) -> io::Result<()> {
        self.frame(FrameKind::Records, &[&tid.to_le_bytes(), &start.to_le_bytes(), records])
    }

    /// The underlying writer, which has all but what is buffered.
    pub fn get_ref(&self) -> &W {
        self.gzip.get_ref()
    }

    /// Ends the file and returns the underlying writer.
    pub fn finish(self) -> io::Result<W> {
        self.gzip.finish()
    }

    fn piece(&mut self, name: &str, from: u64, piece: &mut Vec<u8>, is_last: bool) -> io::Result<()> {
        // Names of operations are short.
        let length = name.len() as u8;
        let name = &name.as_bytes()[..usize::from(length)];
        let head = [&[length][..], name, &from.to_le_bytes(), &[u8::from(is_last)]].concat();
        self.frame(FrameKind::Answer, &[&head, piece])?;
        piece.clear();
        Ok(())
    }

    fn frame(&mut self, kind: FrameKind, payload: &[&[u8]]) -> io::Result<()> {
        let length = 1 + payload.iter().map(|part| part.len()).sum::<usize>();
        if length > MAX_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a frame over its bound"));
        }
        self.gzip.write_all(&(length as u32).to_le_bytes())?;
        self.gzip.write_all(&[kind as u8])?;
        payload.iter().try_for_each(|part| self.gzip.write_all(part))
    }
}

/// Whether a file that begins with these bytes is a recorder's. The first [`FILE_MAGIC`] bytes are
/// enough.
pub fn is_file(bytes: &[u8]) -> bool {
    // Gzip's own magic, deflate, and an extra field alone.
    bytes.starts_with(&[0x1f, 0x8b, 8, 4]) && bytes.get(EXTRA_AT..FILE_MAGIC) == Some(&EXTRA)
}
