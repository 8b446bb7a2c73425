//! The first message of a response of gRPC. A second one makes the response a stream.
//!
//! HTTP does not show whether a method answers by one message or by a stream. But a call sends its
//! head, its message and its trailers at once, because it has its answer before the head. So a body
//! that has nothing to send for two seconds, before its trailers, is a stream as well, even if it
//! sends one message, or none.

use crate::core::long_lived::LongSince;

/// Bytes before a message of gRPC: whether it is compressed, and its length.
pub(super) const PREFIX: usize = 5;

/// The frames that were sent of a body that may be a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SentFrames {
    pub(super) frames: u64,
    pub(super) bytes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FirstMessage {
    sent: SentFrames,
    /// Where the first message ends. 0: it has not begun.
    ends: u64,
    /// Since when the body has had nothing to send.
    silent: Option<LongSince>,
    is_stream: bool,
}

impl FirstMessage {
    /// The body has nothing to send now.
    pub(super) fn is_silent(&mut self) {
        self.silent.get_or_insert_with(LongSince::now);
    }

    /// The body has something to send, or ends.
    fn is_silent_no_more(&mut self, now: impl FnOnce() -> LongSince) {
        if let Some(since) = self.silent.take() {
            self.is_stream |= since.is_seconds_before(2, now());
        }
    }

    /// Takes the next frame of the body. Returns all that was sent, if it is a stream.
    pub(super) fn next(&mut self, bytes: u64, prefix: Option<[u8; PREFIX]>) -> Option<SentFrames> {
        self.is_silent_no_more(LongSince::now);
        if self.sent.bytes == 0 && bytes > 0 {
            // A frame that begins with less is none that servers send.
            self.ends = prefix
                .map_or(u64::MAX, |[_, length @ ..]| PREFIX as u64 + u64::from(u32::from_be_bytes(length)));
        }
        self.sent.frames += 1;
        self.sent.bytes += bytes;
        self.is_stream |= self.sent.bytes > self.ends;
        self.is_stream.then_some(self.sent)
    }

    /// The body ends, or is dropped. Returns what was sent, if it turns out to be a stream now.
    pub(super) fn end(&mut self) -> Option<SentFrames> {
        self.is_silent_no_more(LongSince::now);
        self.is_stream.then_some(self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: Option<[u8; PREFIX]> = Some([0, 0, 0, 0, 2]);

    /// A body goes on that has been silent for these seconds.
    fn silent_for(of: &mut FirstMessage, seconds: u64) {
        of.is_silent();
        of.silent = Some(LongSince::at(1_000));
        of.is_silent_no_more(|| LongSince::at(1_000 + seconds));
    }

    #[test]
    fn a_silent_body_is_a_stream() {
        let none = SentFrames::default();
        let one = SentFrames { frames: 1, bytes: 7 };
        for (seconds, is_stream) in [(0, false), (1, false), (2, true), (3_600, true)] {
            let mut before = FirstMessage::default();
            silent_for(&mut before, seconds);
            assert_eq!(before.next(7, MESSAGE), is_stream.then_some(one), "{seconds}");
            let mut after = FirstMessage::default();
            assert_eq!(after.next(7, MESSAGE), None);
            silent_for(&mut after, seconds);
            assert_eq!(after.end(), is_stream.then_some(one), "{seconds}");
            let mut empty = FirstMessage::default();
            silent_for(&mut empty, seconds);
            assert_eq!(empty.end(), is_stream.then_some(none), "{seconds}");
        }
    }

    #[test]
    fn short_silences_do_not_add_up() {
        let mut of = FirstMessage::default();
        for part in 0..5 {
            silent_for(&mut of, 1);
            assert_eq!(of.next(1, MESSAGE), None, "{part}");
        }
        assert_eq!(of.end(), None);
    }

    #[test]
    fn a_look_does_not_end_a_silence() {
        let mut of = FirstMessage::default();
        of.is_silent();
        of.silent = Some(LongSince::at(1_000));
        of.is_silent();
        assert_eq!(of.silent, Some(LongSince::at(1_000)));
    }
}
