//! Bytes to be sent. They grow as long as there is memory.

use std::io;

use serde::Serialize;

use dormouse_protocol::{FrameKind, MAX_FRAME, Note, write_json};

#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

impl Output {
    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// The client has taken the next `length` bytes.
    pub(super) fn sent(&mut self, length: usize) {
        self.sent += length;
        if self.unsent().is_empty() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// A line of JSON.
    pub(super) fn line(&mut self, of: &impl Serialize) -> io::Result<()> {
        write_json(&mut self.bytes, of)?;
        self.put(b"\n")
    }

    pub(crate) fn frame(&mut self, kind: FrameKind, payload: &[&[u8]]) -> io::Result<()> {
        let length = 1 + payload.iter().map(|part| part.len()).sum::<usize>();
        // A chunk is at most one ring, a name some hundred bytes. A longer frame would end the
        // client's trace, so it is left out.
        if length > MAX_FRAME {
            return Ok(());
        }
        self.put(&(length as u32).to_le_bytes())?;
        self.put(&[kind as u8])?;
        payload.iter().try_for_each(|part| self.put(part))
    }

    pub(crate) fn note(&mut self, note: &Note) -> io::Result<()> {
        let mut json = Vec::new();
        write_json(&mut json, note)?;
        self.frame(FrameKind::Note, &[&json])
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.try_reserve(bytes.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}
