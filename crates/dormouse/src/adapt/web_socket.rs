//! The messages that a WebSocket sends.
//!
//! The layer of a group sees the response that upgrades a connection, and only the connection's
//! stream sees the bytes, whichever library makes frames of messages. So the layer notes its group,
//! with the runtime's number of the task. The stream takes the note at its next write, which begins
//! with the head of that response. The bytes behind the head are frames (RFC 6455, section 5.2),
//! whose headers are read.
//!
//! # Invariants
//!
//! 1. A note is taken only in the task that made it.
//! 2. Of nested layers the innermost one makes the note: the socket's task is in its group.
//! 3. Headers are followed from the first one on, whether times are taken or not: nobody finds the
//!    next one in the midst of a stream.
//! 4. Bytes that are no frames, such as those of TLS above the stream, end the counting.

use std::cell::Cell;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

use ::tokio::task::{Id, try_id};
use dormouse_waits::{Frames, count_frames};

use crate::core::group::Group;

/// How the head of the response begins.
const HEAD: &[u8] = b"HTTP/1.1 101 ";
/// Its last bytes, as a number.
const END_OF_HEAD: u32 = u32::from_be_bytes(*b"\r\n\r\n");

/// The longest header: two bytes, a length of eight, and a mask of four.
const LONGEST: usize = 14;

/// Whether any note was made. Without one, a write does not look for it.
static HAS_NOTES: AtomicBool = AtomicBool::new(false);

thread_local! {
    static NOTED: Cell<Option<(Id, Group)>> = const { Cell::new(None) };
}

/// A response of `group` makes a WebSocket of the connection, in the present task of the runtime.
#[cfg(feature = "tower")]
#[cold]
pub(super) fn upgrades(group: Group) {
    let Some(task) = try_id() else { return };
    // Invariant 2.
    if NOTED.get().is_none_or(|(of, _)| of != task) {
        NOTED.set(Some((task, group)));
        HAS_NOTES.store(true, Ordering::Relaxed);
    }
}

/// The messages that a stream sends, if it is one of a WebSocket.
#[derive(Debug, Default)]
pub(super) enum SentMessages {
    #[default]
    Unknown,
    Head(Head),
    Frames(SentFrames),
}

impl SentMessages {
    /// The stream is about to write.
    #[inline]
    pub(super) fn follow(&mut self) {
        if HAS_NOTES.load(Ordering::Relaxed) {
            self.take_note();
        }
    }

    #[inline(never)]
    fn take_note(&mut self) {
        if matches!(self, Self::Unknown)
            // Invariant 1.
            && let Some((_, group)) = NOTED.get().filter(|(task, _)| try_id() == Some(*task))
        {
            NOTED.set(None);
            *self = Self::Head(Head { group, bytes: 0, last: 0 });
        }
    }

    /// The stream has written the first `n` bytes of these.
    #[inline]
    pub(super) fn written(&mut self, slices: &[IoSlice<'_>], n: usize) {
        if !matches!(self, Self::Unknown) {
            self.read(slices, n);
        }
    }

    #[inline(never)]
    fn read(&mut self, slices: &[IoSlice<'_>], mut n: usize) {
        let mut sent = Sent::default();
        for slice in slices {
            let bytes = &slice[..slice.len().min(n)];
            n -= bytes.len();
            self.read_bytes(bytes, &mut sent);
        }
        if let Self::Frames(frames) = self
            && sent.messages > 0
        {
            let of = Frames { frames: sent.messages, bytes: sent.bytes, is_stream: true };
            count_frames(dormouse_events::current_task(), frames.group.id(), of, &mut frames.last);
        }
    }

    fn read_bytes(&mut self, mut bytes: &[u8], sent: &mut Sent) {
        if let Self::Head(head) = self {
            let Ok(ended) = head.read(&mut bytes) else {
                *self = Self::Unknown;
                return;
            };
            if ended {
                *self = Self::Frames(SentFrames::of(head.group));
            }
        }
        if let Self::Frames(frames) = self
            && frames.read(bytes, sent).is_err()
        {
            *self = Self::Unknown;
        }
    }
}

/// Messages that ended, or begin to end, in bytes that were written, and what they contain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sent {
    messages: u64,
    bytes: u64,
}

/// The bytes are not those of a WebSocket.
#[derive(Debug)]
struct NoSocket;

/// The head of the response, which is being written.
#[derive(Debug)]
pub(super) struct Head {
    group: Group,
    bytes: usize,
    last: u32,
}

impl Head {
    /// Takes the bytes of the head. Whether it has ended.
    fn read(&mut self, bytes: &mut &[u8]) -> Result<bool, NoSocket> {
        while let Some((&byte, rest)) = bytes.split_first() {
            *bytes = rest;
            if HEAD.get(self.bytes).is_some_and(|expected| *expected != byte) {
                return Err(NoSocket);
            }
            self.bytes += 1;
            self.last = self.last << 8 | u32::from(byte);
            if self.last == END_OF_HEAD {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The frames of a WebSocket that a stream sends.
#[derive(Debug)]
pub(super) struct SentFrames {
    group: Group,
    /// The header that is being written, and how much of it is.
    header: [u8; LONGEST],
    length: usize,
    /// The bytes of the frame that are still to come.
    left: u64,
    /// When the last message was sent, as a stamp; 0: none was while times were taken.
    last: u64,
}

impl SentFrames {
    fn of(group: Group) -> Self {
        Self { group, header: [0; LONGEST], length: 0, left: 0, last: 0 }
    }

    /// Adds the messages whose last frames begin in these bytes.
    fn read(&mut self, mut bytes: &[u8], sent: &mut Sent) -> Result<(), NoSocket> {
        loop {
            let payload = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= payload as u64;
            let Some((&byte, rest)) = bytes[payload..].split_first() else { return Ok(()) };
            bytes = rest;
            self.header[self.length] = byte;
            self.length += 1;
            if self.length == self.header_length() {
                self.begin(sent)?;
            }
        }
    }

    /// How long the header is, as far as that is known.
    fn header_length(&self) -> usize {
        if self.length < 2 {
            return 2;
        }
        let mask = if self.header[1] & 0x80 == 0 { 0 } else { 4 };
        mask + match self.header[1] & 0x7f {
            126 => 4,
            127 => 10,
            _ => 2,
        }
    }

    /// The header is whole: the frame begins.
    fn begin(&mut self, sent: &mut Sent) -> Result<(), NoSocket> {
        let [flags, length, ref extended @ ..] = self.header;
        self.length = 0;
        // A length in some bytes, the highest first.
        let number = |bytes: &[u8]| bytes.iter().fold(0, |high, byte| high << 8 | u64::from(*byte));
        self.left = match length & 0x7f {
            126 => number(&extended[..2]),
            127 => number(&extended[..8]),
            short => short.into(),
        };
        // The first of the reserved bits marks a message that is compressed.
        let is_valid = flags & 0x30 == 0 && self.left >> 63 == 0;
        match flags & 0xf {
            0..=2 if is_valid => {
                sent.messages += u64::from(flags & 0x80 != 0);
                sent.bytes += self.left;
                Ok(())
            }
            // Control frames are no messages.
            8..=10 if is_valid => Ok(()),
            _ => Err(NoSocket),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPGRADE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n";

    /// A frame with an empty payload of that length.
    fn frame(first: u8, mask: bool, length: usize) -> Vec<u8> {
        let bit = if mask { 0x80 } else { 0 };
        let mut frame = vec![first];
        match length {
            0..=125 => frame.push(bit | length as u8),
            126..=0xffff => frame.extend([&[bit | 0x7e][..], &(length as u16).to_be_bytes()].concat()),
            _ => frame.extend([&[bit | 0x7f][..], &(length as u64).to_be_bytes()].concat()),
        }
        frame.resize(frame.len() + if mask { 4 } else { 0 } + length, 0xff);
        frame
    }

    fn head() -> SentMessages {
        SentMessages::Head(Head { group: Group::new("frames"), bytes: 0, last: 0 })
    }

    /// The messages in parts that are written one after the other; `None`: no socket writes them.
    fn read(parts: &[&[u8]]) -> Option<Sent> {
        let (mut of, mut sent) = (head(), Sent::default());
        for part in parts {
            of.read_bytes(part, &mut sent);
        }
        matches!(of, SentMessages::Frames(_)).then_some(sent)
    }

    #[test]
    fn messages_are_found_wherever_writes_end() {
        let frames = [
            frame(0x81, false, 2),
            frame(0x01, false, 0),
            // A ping between the parts of a message.
            frame(0x89, false, 3),
            frame(0x00, true, 300),
            frame(0x80, false, 0),
            frame(0x82, false, 70_000),
            frame(0xc1, true, 125),
            frame(0x88, false, 2),
        ];
        let all = [UPGRADE, &frames.concat()].concat();
        let whole = Sent { messages: 4, bytes: 2 + 300 + 70_000 + 125 };
        assert_eq!(read(&[&all]), Some(whole));
        for at in (0..1_000).chain(all.len() - 200..all.len()) {
            let (before, after) = all.split_at(at);
            assert_eq!(read(&[before, after]), Some(whole), "{at}");
        }
        let bytes: Vec<&[u8]> = all.chunks(1).collect();
        assert_eq!(read(&bytes), Some(whole));
    }

    #[test]
    fn what_is_no_frame_ends_the_counting() {
        let refused = [
            &b"HTTP/1.1 200 OK\r\n\r\n"[..],
            b"\x16\x03\x03",
            &[UPGRADE, &frame(0x83, false, 2)].concat(),
            &[UPGRADE, &frame(0x91, false, 2)].concat(),
            &[UPGRADE, b"\x82\x7f\xff\0\0\0\0\0\0\0"].concat(),
            // A record of TLS.
            &[UPGRADE, b"\x17\x03\x03\0\x20"].concat(),
        ];
        for bytes in refused {
            assert_eq!(read(&[bytes]), None, "{bytes:?}");
        }
    }

    #[test]
    fn only_written_bytes_count() {
        let (mut of, message) = (head(), frame(0x81, false, 2));
        let slices = [UPGRADE, &message, &message].map(IoSlice::new);
        of.written(&slices, UPGRADE.len() + message.len() + 1);
        let SentMessages::Frames(frames) = &of else { panic!("{of:?}") };
        assert_eq!((frames.length, frames.left, frames.header[0]), (1, 0, 0x81));
        of.written(&[IoSlice::new(&message[1..])], 1);
        let SentMessages::Frames(frames) = of else { panic!("{of:?}") };
        assert_eq!((frames.length, frames.left), (0, 2));
    }
}
