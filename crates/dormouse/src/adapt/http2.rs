//! The reads that brought the requests of a connection, where it is one of HTTP/2.
//!
//! Several requests may come before the connection's task looks at its socket. One read would
//! return them all, with one stamp. So if nobody has looked for [`RECENT_NS`], the connection is
//! read frame by frame, until a frame is more recent than that, or [`MOST_READS`] were read. A
//! request came when the header of the frame came that opens its stream.
//!
//! # Which request is which
//!
//! h2 reads until the socket is empty, and returns one request. Before it returns the next one, it
//! reads again. So the first read that finds nothing comes just before the first request, the
//! second one before the second. If the socket takes no more bytes, h2 returns requests without
//! reading; all that are left then have the arrival of the last bytes.
//!
//! # Recognition
//!
//! Times may begin in the middle of a connection. Then the first bytes after the socket was empty
//! are taken for the header of a frame, if they can be one. Those of HTTP/1 and of TLS cannot: as a
//! frame they would be too long.
//!
//! # References
//!
//! RFC 9113, 4.1 (frames), 5.1.1 (numbers of streams), 6.5.2 (the longest frame).

use std::collections::VecDeque;
use std::mem::replace;

use dormouse_clock::ns_to_ticks;
use dormouse_waits::Arrival;

/// Bytes that have come within this time are not read frame by frame: a millisecond.
const RECENT_NS: u64 = 1_000_000;
/// How many reads a poll makes frame by frame.
const MOST_READS: u8 = 32;
/// How many arrivals a connection keeps.
const MOST_KEPT: usize = 64;

/// The bytes that a client sends before its first frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER: usize = 9;
/// Frames are not longer, unless a server has asked for longer ones.
const LONGEST: u32 = 1 << 14;

/// Types of frames.
mod kind {
    pub(super) const HEADERS: u8 = 1;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
    pub(super) const CONTINUATION: u8 = 9;
    pub(super) const PRIORITY_UPDATE: u8 = 16;
}

/// The arrivals of requests that a connection has read and not begun. Of a connection that is none
/// of HTTP/2, the arrival of the last bytes.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    place: Place,
    header: [u8; HEADER],
    /// The highest number of a stream.
    stream: u32,
    of_requests: VecDeque<Arrival>,
    last: Option<Arrival>,
    /// When the socket was found empty, as a stamp; 0: that was not seen.
    emptied: u64,
    /// Bytes were read since.
    has_read: bool,
    /// How many reads may be frame by frame.
    reads: u8,
}

/// Where in a frame the next byte is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Unknown,
    /// Behind that many bytes of a header.
    Header(usize),
    /// Before that many bytes of a payload.
    Payload(u32),
}

impl Arrivals {
    /// How many bytes the next read, at `now`, should return at most.
    pub(super) fn most(&mut self, now: u64) -> usize {
        if !self.has_read {
            let is_old = self.emptied != 0 && now.saturating_sub(self.emptied) > ns_to_ticks(RECENT_NS);
            self.reads = if is_old { MOST_READS } else { 0 };
        }
        match self.place {
            Place::Header(has) if self.reads > 0 => HEADER - has,
            // With the header of the next frame, whose stamp the read has then.
            Place::Payload(left) if self.reads > 0 => left as usize + HEADER,
            _ => usize::MAX,
        }
    }

    /// Bytes were read at `now`, of which the last came then.
    pub(super) fn read(&mut self, bytes: &[u8], arrival: Arrival, now: u64) {
        if !replace(&mut self.has_read, true) {
            self.of_requests.clear();
            if self.place == Place::Unknown {
                self.place = Place::Header(0);
            }
        }
        self.last = Some(arrival);
        let came = arrival.received.unwrap_or(now);
        let is_recent = now.saturating_sub(came) < ns_to_ticks(RECENT_NS);
        self.reads = if is_recent { 0 } else { self.reads.saturating_sub(1) };
        self.follow(bytes, arrival);
    }

    /// The socket is empty, at `now`. The arrival of the request that the connection may begin.
    pub(super) fn emptied(&mut self, now: u64) -> Option<Arrival> {
        (self.emptied, self.has_read) = (now, false);
        self.of_requests.pop_front().or(self.last)
    }

    /// The connection may begin requests without reading. The arrival that they have then.
    pub(super) fn lose_order(&mut self) -> Option<Arrival> {
        self.of_requests.clear();
        self.last
    }

    fn follow(&mut self, mut bytes: &[u8], arrival: Arrival) {
        if self.place == Place::Header(0) {
            bytes = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
        }
        while !bytes.is_empty() {
            match self.place {
                Place::Unknown => return,
                Place::Header(has) => {
                    let (taken, rest) = bytes.split_at(bytes.len().min(HEADER - has));
                    let has_now = has + taken.len();
                    self.header[has..has_now].copy_from_slice(taken);
                    self.place = if has_now < HEADER { Place::Header(has_now) } else { self.frame(arrival) };
                    bytes = rest;
                }
                Place::Payload(left) => {
                    let (taken, rest) = bytes.split_at(bytes.len().min(left as usize));
                    self.place = Place::before(left - taken.len() as u32);
                    bytes = rest;
                }
            }
        }
    }

    /// The header of a frame is whole.
    fn frame(&mut self, arrival: Arrival) -> Place {
        let [a, b, c, kind, _flags, stream @ ..] = self.header;
        let length = u32::from_be_bytes([0, a, b, c]);
        let stream = u32::from_be_bytes(stream) & !(1 << 31);
        let is_known = kind <= kind::CONTINUATION || kind == kind::PRIORITY_UPDATE;
        let is_of_connection = match kind {
            kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE => stream == 0,
            kind::WINDOW_UPDATE => true,
            // Streams that a client opens have odd numbers.
            _ => stream % 2 == 1,
        };
        if length > LONGEST || !is_known || !is_of_connection {
            self.of_requests.clear();
            return Place::Unknown;
        }
        if kind == kind::HEADERS && stream > self.stream {
            self.stream = stream;
            if self.of_requests.len() < MOST_KEPT && self.of_requests.try_reserve(1).is_ok() {
                self.of_requests.push_back(arrival);
            }
        }
        Place::before(length)
    }
}

impl Place {
    fn before(payload: u32) -> Self {
        if payload == 0 { Self::Header(0) } else { Self::Payload(payload) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize, kind: u8, stream: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length as u8, kind, 0, 0, 0, 0, stream];
        frame.resize(HEADER + length, 0xff);
        frame
    }

    fn came(received: u64) -> Arrival {
        Arrival { received: Some(received), woken: 1 }
    }

    /// Later than anything that is recent.
    fn later() -> u64 {
        ns_to_ticks(10 * RECENT_NS) + 100
    }

    /// A connection that was read until it was empty, which `bytes` did not open.
    fn emptied(bytes: &[u8]) -> Arrivals {
        _ = dormouse_clock::point();
        let mut arrivals = Arrivals::default();
        arrivals.read(bytes, came(1), 1);
        assert_eq!(arrivals.emptied(2), Some(came(1)));
        arrivals
    }

    /// Reads packets that came one after the other, from stamp 11 on, while nobody looked; returns
    /// in how many reads.
    fn read(arrivals: &mut Arrivals, packets: &[Vec<u8>], now: u64) -> usize {
        let all = packets.concat();
        let ends: Vec<usize> = packets
            .iter()
            .scan(0, |end, packet| {
                *end += packet.len();
                Some(*end)
            })
            .collect();
        let (mut at, mut reads) = (0, 0);
        while at < all.len() {
            let end = all.len().min(at.saturating_add(arrivals.most(now)));
            // The stamp of the last packet that the read has touched.
            let packet = ends.partition_point(|&of| of < end) as u64;
            arrivals.read(&all[at..end], came(11 + packet), now);
            (at, reads) = (end, reads + 1);
        }
        reads
    }

    fn drained(arrivals: &mut Arrivals, now: u64) -> Vec<Option<u64>> {
        (0..4).map(|_| arrivals.emptied(now).and_then(|arrival| arrival.received)).collect()
    }

    #[test]
    fn each_request_came_with_its_own_header() {
        let opening = [PREFACE.to_vec(), frame(6, kind::SETTINGS, 0)].concat();
        let packets = [
            frame(30, kind::HEADERS, 1),
            frame(4, kind::WINDOW_UPDATE, 0),
            [frame(30, kind::HEADERS, 3), frame(50, 0, 3)].concat(),
            // Trailers open no stream.
            frame(9, kind::HEADERS, 1),
            frame(0, kind::HEADERS, 5),
        ];
        // Times began with the connection, and later.
        for opening in [opening, frame(8, kind::PING, 0)] {
            let mut arrivals = emptied(&opening);
            assert_eq!(read(&mut arrivals, &packets, later()), packets.len() + 1);
            assert_eq!(drained(&mut arrivals, later()), [Some(11), Some(13), Some(15), Some(15)]);
            // The next poll begins anew.
            read(&mut arrivals, &[frame(3, kind::HEADERS, 7)], 2 * later());
            assert_eq!(drained(&mut arrivals, 2 * later())[0], Some(11));
        }
    }

    #[test]
    fn a_socket_just_read_is_read_at_once() {
        let mut arrivals = emptied(&frame(8, kind::PING, 0));
        let packets = [frame(30, kind::HEADERS, 1), frame(30, kind::HEADERS, 3)];
        assert_eq!(read(&mut arrivals, &packets, 3), 1);
        assert_eq!(drained(&mut arrivals, 3)[..2], [Some(12), Some(12)]);
        // So is what came just now, behind its first header.
        let mut arrivals = emptied(&frame(8, kind::PING, 0));
        let most = arrivals.most(later());
        arrivals.read(&packets[0][..most], came(later()), later());
        assert_eq!(arrivals.most(later()), usize::MAX);
    }

    #[test]
    fn reads_and_arrivals_are_bounded() {
        let mut arrivals = emptied(&frame(8, kind::PING, 0));
        let packets: Vec<_> = (0..100).map(|n| frame(5, kind::HEADERS, 2 * n + 1)).collect();
        assert_eq!(read(&mut arrivals, &packets, later()), usize::from(MOST_READS) + 1);
        let all: Vec<_> = (0..100).map(|_| arrivals.emptied(later()).and_then(|it| it.received)).collect();
        assert_eq!(all[..3], [Some(11), Some(12), Some(13)]);
        assert!(all[usize::from(MOST_READS)..].iter().all(|&of| of == Some(110)), "{all:?}");
    }

    #[test]
    fn a_lost_order_leaves_the_last_arrival() {
        let mut arrivals = emptied(&frame(8, kind::PING, 0));
        read(&mut arrivals, &[frame(30, kind::HEADERS, 1), frame(30, kind::HEADERS, 3)], later());
        assert_eq!(arrivals.lose_order(), Some(came(12)));
        assert_eq!(drained(&mut arrivals, later())[0], Some(12));
    }

    #[test]
    fn other_protocols_are_read_as_they_are() {
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x17\x03\x03\x00\x05hello", b"*1\r\n$4\r\nPING\r\n"] {
            let mut arrivals = emptied(bytes);
            assert_eq!(read(&mut arrivals, &[bytes.to_vec(), bytes.to_vec()], later()), 1);
            assert_eq!(drained(&mut arrivals, later()), [Some(12); 4]);
        }
    }
}
