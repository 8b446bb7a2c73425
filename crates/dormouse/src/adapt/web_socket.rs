//! The messages of a WebSocket.
//!
//! The layer of a group sees the response that upgrades a connection, and only the connection's
//! stream sees the bytes, whichever library makes frames of messages. So the layer notes its group,
//! with the runtime's number of the task. The stream takes the note at its next write, which begins
//! with the head of that response. The bytes behind the head are frames (RFC 6455, section 5.2),
//! whose headers are read. The client's frames come behind the head of its request: a client waits
//! for the response before it sends any (section 4.1), so the last bytes that were read before are
//! the end of that head.
//!
//! # Invariants
//!
//! 1. A note is taken only in the task that made it.
//! 2. Of nested layers the innermost one makes the note: the socket's task is in its group.
//! 3. Headers are followed from the first one on, whether times are taken or not: nobody finds the
//!    next one in the midst of a stream.
//! 4. Bytes that are no frames, such as those of TLS above the stream, end the counting.
//! 5. Received messages are not followed if the bytes before the response end with anything else
//!    than a head: the client has not waited, or its request has a body.

use std::cell::Cell;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};

use ::tokio::task::{Id, try_id};
use dormouse_waits::{Frames, count_frames, count_messages};

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

/// The messages of a stream, if it is one of a WebSocket.
#[derive(Debug)]
pub(super) enum Messages {
    /// The stream is none, as far as anybody knows. The last four bytes that were read.
    Unknown(u32),
    Socket(Socket),
}

impl Default for Messages {
    fn default() -> Self {
        Self::Unknown(0)
    }
}

impl Messages {
    /// The stream is about to write.
    #[inline]
    pub(super) fn follow(&mut self) {
        if HAS_NOTES.load(Ordering::Relaxed) {
            self.take_note();
        }
    }

    #[inline(never)]
    fn take_note(&mut self) {
        if let Self::Unknown(last) = *self
            // Invariant 1.
            && let Some((_, group)) = NOTED.get().filter(|(task, _)| try_id() == Some(*task))
        {
            NOTED.set(None);
            *self = Self::Socket(Socket::new(group, last));
        }
    }

    /// The stream has written the first `n` bytes of these.
    #[inline]
    pub(super) fn written(&mut self, slices: &[IoSlice<'_>], n: usize) {
        if let Self::Socket(socket) = self
            && socket.sends(slices, n).is_err()
        {
            *self = Self::default();
        }
    }

    /// The stream has read these bytes.
    #[inline]
    pub(super) fn read(&mut self, bytes: &[u8]) {
        match self {
            Self::Unknown(last) => match bytes.last_chunk() {
                Some(chunk) => *last = u32::from_be_bytes(*chunk),
                None => bytes.iter().for_each(|byte| *last = *last << 8 | u32::from(*byte)),
            },
            Self::Socket(socket) => socket.receives(bytes),
        }
    }
}

/// The bytes are not those of a WebSocket.
#[derive(Debug)]
struct NoSocket;

/// A WebSocket, from the head of the response on that begins it.
#[derive(Debug)]
pub(super) struct Socket {
    group: Group,
    /// The head, while it is being written.
    head: Option<Head>,
    sent: MessageFrames,
    /// `None` where messages are not followed: invariant 5.
    received: Option<MessageFrames>,
    /// When the last message was sent, and when one was received, as stamps; 0: none was while
    /// times were taken.
    last_sent: u64,
    last_received: u64,
}

impl Socket {
    /// A socket whose stream has read these four bytes last.
    fn new(group: Group, last: u32) -> Self {
        let received = (last == END_OF_HEAD).then(MessageFrames::default);
        let (head, sent) = (Some(Head::default()), MessageFrames::default());
        Self { group, head, sent, received, last_sent: 0, last_received: 0 }
    }

    #[inline(never)]
    fn sends(&mut self, slices: &[IoSlice<'_>], mut n: usize) -> Result<(), NoSocket> {
        let mut begun = Begun::default();
        for slice in slices {
            let bytes = &slice[..slice.len().min(n)];
            n -= bytes.len();
            self.send(bytes, &mut begun)?;
        }
        if begun.messages > 0 {
            let of = Frames { frames: begun.messages, bytes: begun.bytes, is_stream: true };
            count_frames(dormouse_events::current_task(), self.group.id(), of, &mut self.last_sent);
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8], begun: &mut Begun) -> Result<(), NoSocket> {
        if let Some(head) = &mut self.head {
            if !head.read(&mut bytes)? {
                return Ok(());
            }
            self.head = None;
        }
        self.sent.read(bytes, begun)
    }

    #[inline(never)]
    fn receives(&mut self, bytes: &[u8]) {
        let mut begun = Begun::default();
        let Some(received) = &mut self.received else { return };
        if received.read(bytes, &mut begun).is_err() {
            self.received = None;
        }
        if begun.messages > 0 {
            count_messages(self.group.id(), begun.messages, begun.bytes, &mut self.last_received);
        }
    }
}

/// The messages whose last frames begin in some bytes, and the payload of all their frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Begun {
    messages: u64,
    bytes: u64,
}

/// The head of the response, which is being written.
#[derive(Debug, Default)]
struct Head {
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

/// The frames of a WebSocket in one direction.
#[derive(Debug, Default)]
struct MessageFrames {
    /// The header that is passing, and how much of it has passed.
    header: [u8; LONGEST],
    length: usize,
    /// The bytes of the frame that are still to come.
    left: u64,
    /// The payload of the frames so far of a message whose last frame has not begun.
    parts: u64,
}

impl MessageFrames {
    /// Adds what begins in these bytes.
    fn read(&mut self, mut bytes: &[u8], begun: &mut Begun) -> Result<(), NoSocket> {
        loop {
            let payload = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= payload as u64;
            let Some((&byte, rest)) = bytes[payload..].split_first() else { return Ok(()) };
            bytes = rest;
            self.header[self.length] = byte;
            self.length += 1;
            if self.length == self.header_length() {
                self.begin(begun)?;
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
    fn begin(&mut self, begun: &mut Begun) -> Result<(), NoSocket> {
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
                self.parts = self.parts.saturating_add(self.left);
                if flags & 0x80 != 0 {
                    begun.messages += 1;
                    begun.bytes += std::mem::take(&mut self.parts);
                }
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

    fn socket() -> Socket {
        Socket::new(Group::new("frames"), END_OF_HEAD)
    }

    /// The messages in parts that are written one after the other; `None`: no socket writes them.
    fn sent(parts: &[&[u8]]) -> Option<Begun> {
        let (mut of, mut begun) = (socket(), Begun::default());
        for part in parts {
            of.send(part, &mut begun).ok()?;
        }
        of.head.is_none().then_some(begun)
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
        let whole = Begun { messages: 4, bytes: 2 + 300 + 70_000 + 125 };
        assert_eq!(sent(&[&all]), Some(whole));
        for at in (0..1_000).chain(all.len() - 200..all.len()) {
            let (before, after) = all.split_at(at);
            assert_eq!(sent(&[before, after]), Some(whole), "{at}");
        }
        let bytes: Vec<&[u8]> = all.chunks(1).collect();
        assert_eq!(sent(&bytes), Some(whole));
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
            assert_eq!(sent(&[bytes]), None, "{bytes:?}");
            let mut of = Messages::Socket(socket());
            of.written(&[IoSlice::new(bytes)], bytes.len());
            assert!(matches!(of, Messages::Unknown(0)), "{of:?}");
        }
        let mut of = socket();
        of.receives(b"\x17\x03\x03\0\x20");
        assert!(of.received.is_none(), "what is sent goes on: {of:?}");
        assert!(of.sends(&[IoSlice::new(UPGRADE)], UPGRADE.len()).is_ok());
    }

    #[test]
    fn only_written_bytes_count() {
        let (mut of, message) = (socket(), frame(0x81, false, 2));
        let slices = [UPGRADE, &message, &message].map(IoSlice::new);
        of.sends(&slices, UPGRADE.len() + message.len() + 1).unwrap();
        assert_eq!((of.sent.length, of.sent.left, of.sent.header[0]), (1, 0, 0x81));
        of.sends(&[IoSlice::new(&message[1..])], 1).unwrap();
        assert_eq!((of.sent.length, of.sent.left), (0, 2));
    }

    #[test]
    fn received_messages_begin_behind_the_request() {
        const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nupgrade: websocket\r\n\r\n";
        let early = [REQUEST, &frame(0x81, true, 2)].concat();
        for (parts, is_followed) in [
            (vec![REQUEST], true),
            (REQUEST.chunks(1).collect(), true),
            (REQUEST.chunks(3).collect(), true),
            // Nobody knows where in a frame these end.
            (vec![&early[..]], false),
            (early.chunks(1).collect(), false),
            (vec![], false),
        ] {
            let mut of = Messages::default();
            for part in &parts {
                of.read(part);
            }
            let Messages::Unknown(last) = of else { panic!("{of:?}") };
            assert_eq!(Socket::new(Group::new("frames"), last).received.is_some(), is_followed, "{parts:?}");
        }
    }
}
