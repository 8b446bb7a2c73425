//! Bytes to be sent. They grow as long as there is memory.

use std::io;

use serde::Serialize;

use dormouse_protocol::{FrameKind, MAX_FRAME, Note, write_json};

/// Sent bytes that are kept until their memory is needed. Fewer are not worth a move.
const KEPT: usize = 64 * 1024;

/// The most memory that is kept while nothing is unsent.
const MOST_EMPTY: usize = 256 * 1024;

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
        let unsent = self.unsent().len();
        // A client that is always a little behind never has it all. For each byte that is sent at
        // most one is moved.
        if unsent == 0 || self.sent >= KEPT.max(unsent) {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        // The memory of a long answer, or of a trace that was far behind.
        if unsent == 0 && self.bytes.capacity() > MOST_EMPTY {
            self.bytes = Vec::new();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes_are_freed_while_others_wait() {
        let mut output = Output::default();
        let payload = [7; 1_000];
        for _ in 0..10_000 {
            output.frame(FrameKind::Records, &[&payload]).unwrap();
            // The client is never done.
            output.sent(output.unsent().len() - 100);
            assert_eq!(output.unsent(), [7; 100]);
        }
        assert!(output.bytes.capacity() < 1 << 20, "{}", output.bytes.capacity());
        output.line(&"x".repeat(1 << 20)).unwrap();
        output.sent(output.unsent().len());
        assert!(output.bytes.capacity() <= MOST_EMPTY, "{}", output.bytes.capacity());
    }
}
