//! Reads a recorder's file ([`FileWriter`](crate::FileWriter)): holds one frame, or one answer, and
//! refuses longer ones.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::file::{FILE_VERSION, FileHead, MAX_FILE_ANSWER};
use crate::{FrameKind, MAX_FRAME};

/// The most bytes of frames in a file.
const MAX_FILE: u64 = 1 << 30;

/// The file is not a recorder's, or is damaged.
#[derive(Debug, thiserror::Error)]
#[error("at byte {at} of the unpacked file: {what}")]
pub struct FileError {
    /// The offset of the fault in the compressed file, in bytes.
    pub at: u64,
    /// The fault.
    pub what: String,
}

/// A part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilePart<'a> {
    /// An answer of the agent.
    Answer {
        /// The name of the operation.
        name: &'a str,
        /// The `from` of a part.
        from: u64,
        /// The answer, as JSON.
        json: &'a [u8],
    },
    /// A frame of the trace's stream: length, kind and payload.
    Frame(&'a [u8]),
}

/// Reads a file, part by part. After an error nothing more is returned.
#[derive(Debug)]
pub struct FileReader<R: Read> {
    gzip: GzDecoder<R>,
    at: u64,
    frame: Vec<u8>,
    answer: Vec<u8>,
    name: String,
    head: FileHead,
}

/// The end of an answer's piece: its `from`, and whether the answer ends with it.
type PieceEnd = (u64, bool);

impl<R: Read> FileReader<R> {
    /// Begins to read.
    ///
    /// # Errors
    ///
    /// If the file is not a recorder's, or has a version that this build does not support.
    pub fn new(from: R) -> Result<Self, FileError> {
        let gzip = GzDecoder::new(from);
        let mut reader = Self {
            gzip,
            at: 0,
            frame: Vec::new(),
            answer: Vec::new(),
            name: String::new(),
            head: FileHead::default(),
        };
        let head = match reader.next()? {
            Some(FilePart::Answer { name: "file", json, .. }) => serde_json::from_slice::<FileHead>(json),
            _ => return Err(reader.fault("not a file of dormouse's recorder: it does not begin with a head")),
        };
        reader.head = head.map_err(|why| reader.fault(format!("its head does not parse: {why}")))?;
        if reader.head.version != FILE_VERSION {
            let version = reader.head.version;
            return Err(reader.fault(format!(
                "the file is of format {version}, this command reads {FILE_VERSION}: use that of the service's version"
            )));
        }
        Ok(reader)
    }

    /// Why the file was written.
    pub fn head(&self) -> &FileHead {
        &self.head
    }

    /// The next part; `None` at the end.
    #[expect(clippy::should_implement_trait, reason = "a part is lent")]
    pub fn next(&mut self) -> Result<Option<FilePart<'_>>, FileError> {
        self.answer.clear();
        let mut from = None;
        while self.read_frame()? {
            if self.frame.get(4) != Some(&(FrameKind::Answer as u8)) {
                if from.is_some() {
                    return Err(self.fault("an answer ends in its midst"));
                }
                return Ok(Some(FilePart::Frame(&self.frame)));
            }
            let (of, is_last) = self.piece(from)?;
            from = Some(of);
            if is_last {
                return Ok(Some(FilePart::Answer { name: &self.name, from: of, json: &self.answer }));
            }
        }
        if from.is_some() {
            return Err(self.fault("an answer ends in its midst"));
        }
        Ok(None)
    }

    /// Puts the piece of an answer that the frame has behind those before it, which are of `from`.
    fn piece(&mut self, from: Option<u64>) -> Result<PieceEnd, FileError> {
        let parts = || {
            let (&length, rest) = self.frame.get(5..)?.split_first()?;
            let (name, rest) = rest.split_at_checked(usize::from(length))?;
            let (of, rest) = rest.split_first_chunk()?;
            let (&is_last, json) = rest.split_first()?;
            Some((name, u64::from_le_bytes(*of), is_last, json))
        };
        let Some((name, of, is_last, json)) = parts() else {
            return Err(self.fault(format!("an answer of {} bytes", self.frame.len() - 5)));
        };
        let Ok(name) = std::str::from_utf8(name) else {
            return Err(self.fault("an answer whose name is not UTF-8"));
        };
        if from.is_some_and(|before| before != of || self.name != name) {
            return Err(self.fault(format!("a piece of `{name}` in the midst of `{}`", self.name)));
        }
        if self.answer.len() + json.len() > MAX_FILE_ANSWER {
            return Err(self.fault(format!("`{name}` has more than {MAX_FILE_ANSWER} bytes")));
        }
        if from.is_none() {
            name.clone_into(&mut self.name);
        }
        self.answer.extend_from_slice(json);
        Ok((of, is_last == 1))
    }

    /// Reads the next frame; false at the end.
    fn read_frame(&mut self) -> Result<bool, FileError> {
        self.frame.clear();
        if !self.read_to(4)? {
            return Ok(false);
        }
        let length = self.frame.first_chunk().map_or(0, |length| u32::from_le_bytes(*length)) as usize;
        if length == 0 || length > MAX_FRAME {
            return Err(self.fault(format!("a frame of {length} bytes")));
        }
        if self.at + length as u64 > MAX_FILE {
            return Err(self.fault(format!("the file has more than {MAX_FILE} bytes")));
        }
        if !self.read_to(4 + length)? {
            return Err(self.fault(format!("a frame of {length} bytes is cut off")));
        }
        Ok(true)
    }

    /// Reads until the frame is that long; false if there was nothing more at all.
    fn read_to(&mut self, length: usize) -> Result<bool, FileError> {
        let begun = self.frame.len();
        let wanted = (length - begun) as u64;
        let read = Read::by_ref(&mut self.gzip).take(wanted).read_to_end(&mut self.frame);
        self.at += (self.frame.len() - begun) as u64;
        match read {
            Ok(0) => Ok(false),
            Ok(_) if self.frame.len() < length => Err(self.fault("the file is cut off")),
            Ok(_) => Ok(true),
            Err(why) => Err(self.fault(format!("cannot unpack: {why}"))),
        }
    }

    fn fault(&self, what: impl Into<String>) -> FileError {
        FileError { at: self.at, what: what.into() }
    }
}
