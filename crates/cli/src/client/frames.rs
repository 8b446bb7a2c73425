//! The stream after an accepted `trace`: frames of a length, a kind and a payload.
//!
//! Kinds that this build does not support are skipped, so that a newer agent can send more.

use dormouse_protocol::{FrameKind, MAX_FRAME, Note};

use super::{Client, Filled, excerpt};
use crate::exit::Outcome;

/// A frame that this build understands.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame<'a> {
    /// A note of the agent between records.
    Note(Note),
    /// Records of one thread.
    Records {
        /// Thread id in the service's own namespace.
        tid: u32,
        /// Start number of the thread.
        start: u64,
        /// Whole records.
        bytes: &'a [u8],
    },
}

/// Reads once what has come after an answer that announced frames, and passes every whole frame to
/// `take`, earlier ones first. If the connection has ended, a failure is returned after them.
pub(crate) fn read(client: &mut Client, mut take: impl FnMut(Frame<'_>)) -> Outcome<()> {
    let filled = client.fill()?;
    let mut rest = &client.inbox[..];
    while let Some((length, body)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > MAX_FRAME {
            return Err(client.nonsense(&format!("a frame of {length} bytes")));
        }
        let Some((frame, next)) = body.split_at_checked(length) else { break };
        if let Some(frame) = understand(client, frame)? {
            take(frame);
        }
        rest = next;
    }
    let used = client.inbox.len() - rest.len();
    client.inbox.drain(..used);
    if filled == Filled::End { Err(client.hung_up()) } else { Ok(()) }
}

fn understand<'a>(client: &Client, frame: &'a [u8]) -> Outcome<Option<Frame<'a>>> {
    let Some((&kind, payload)) = frame.split_first() else { return Ok(None) };
    if kind == FrameKind::Note as u8 {
        // A note of a newer agent is a variant that does not parse; garbage is not even JSON.
        return match serde_json::from_slice(payload) {
            Ok(note) => Ok(Some(Frame::Note(note))),
            Err(_) if serde_json::from_slice::<serde_json::Value>(payload).is_ok() => Ok(None),
            Err(_) => Err(client.nonsense(&format!("a note {}", excerpt(payload)))),
        };
    }
    if kind != FrameKind::Records as u8 {
        return Ok(None);
    }
    let parts = payload.split_first_chunk().and_then(|(tid, rest)| Some((tid, rest.split_first_chunk()?)));
    let Some((tid, (start, bytes))) = parts else {
        return Err(client.nonsense(&format!("a frame of records with {} bytes", payload.len())));
    };
    Ok(Some(Frame::Records { tid: u32::from_le_bytes(*tid), start: u64::from_le_bytes(*start), bytes }))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::exit::Failure;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(payload.len() + 1).unwrap().to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend_from_slice(payload);
        bytes
    }

    fn records(tid: u32, start: u64, bytes: &[u8]) -> Vec<u8> {
        frame(2, &[&tid.to_le_bytes()[..], &start.to_le_bytes(), bytes].concat())
    }

    pub(crate) fn stream() -> (UnixStream, Client) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let source = crate::client::Source::Socket(ours);
        let client = Client::new(source, 7, "tea (process 7)".into(), Duration::from_secs(60));
        (theirs, client)
    }

    /// Everything that one reading yields, in words.
    fn told(client: &mut Client) -> (Vec<String>, Option<Failure>) {
        let mut seen = Vec::new();
        let end = read(client, |frame| {
            seen.push(match frame {
                Frame::Note(note) => format!("{note:?}"),
                Frame::Records { tid, start, bytes } => format!("{tid} {start} {bytes:?}"),
            });
        });
        (seen, end.err())
    }

    #[test]
    fn frames_are_whole_however_they_come() {
        let (mut agent, mut client) = stream();
        let note = br#"{"dropped":{"rings":3,"client":4,"of_a_newer_agent":5}}"#;
        let bytes = [frame(1, note), records(7, 8, b"ab"), frame(9, b"unknown"), records(9, 1, b"")].concat();
        let mut seen = Vec::new();
        for byte in bytes {
            agent.write_all(&[byte]).unwrap();
            let (more, end) = told(&mut client);
            assert!(end.is_none());
            seen.extend(more);
        }
        assert_eq!(seen, ["Dropped { rings: 3, client: 4 }", "7 8 [97, 98]", "9 1 []"]);
        assert!(client.inbox.is_empty());
    }

    #[test]
    fn notes_of_newer_agents_are_skipped() {
        let (mut agent, mut client) = stream();
        agent.write_all(&frame(1, br#"{"weather":{"rain":true}}"#)).unwrap();
        agent.write_all(&records(1, 1, b"x")).unwrap();
        let (seen, end) = told(&mut client);
        assert_eq!((seen.len(), end.is_none()), (1, true));
    }

    #[test]
    fn what_is_no_frame_is_named() {
        for (bytes, part) in [
            (0_u32.to_le_bytes().to_vec(), "a frame of 0 bytes"),
            (u32::MAX.to_le_bytes().to_vec(), "a frame of 4294967295 bytes"),
            (frame(2, b"short"), "a frame of records with 5 bytes"),
            (frame(1, b"\x1bnot JSON"), "a note \"\\u{1b}not JSON\""),
        ] {
            let (mut agent, mut client) = stream();
            agent.write_all(&bytes).unwrap();
            let (_, end) = told(&mut client);
            assert!(end.as_ref().is_some_and(|end| end.to_string().contains(part)), "{part}: {end:?}");
        }
    }

    #[test]
    fn the_streams_end_follows_its_frames() {
        let (mut agent, mut client) = stream();
        agent.write_all(&records(1, 1, b"x")).unwrap();
        agent.write_all(&[9, 0]).unwrap();
        drop(agent);
        let (seen, end) = told(&mut client);
        assert_eq!((seen.len(), end.is_none()), (1, true), "there were bytes");
        let (seen, end) = told(&mut client);
        assert_eq!(seen.len(), 0);
        assert!(end.is_some_and(|end| end.to_string().contains("in the middle of an answer")));
    }
}
