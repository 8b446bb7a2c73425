//! Bodies that are compressed for clients that accept it.
//!
//! To compress a scrape of a thousand groups takes longer than to write it. So a long body is cut
//! into parts, which are compressed at once on separate threads, and become one member of gzip:
//! each part but the last ends at a whole byte, without ending the stream (RFC 1951), and the
//! checksums of the parts combine to that of the body.

use std::num::NonZero;
use std::sync::{LazyLock, Mutex};
use std::thread;

use axum::body::Bytes;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};

use super::answers::bytes;

/// Shorter ones fit into a packet as they are.
const WORTH_IT: usize = 1400;

/// The shortest part of a body that has a thread of its own: it takes about a millisecond.
const PART: usize = 512 * 1024;

/// The most parts: further threads would only disturb the services.
const MOST_PARTS: usize = 4;

/// The head of gzip, without a name, a time and a system.
const HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

/// A body that is packed once.
#[derive(Debug)]
pub(super) struct Packed {
    kind: HeaderValue,
    plain: Bytes,
    small: Option<Bytes>,
}

impl Packed {
    pub(super) fn new(kind: HeaderValue, body: Vec<u8>) -> Packed {
        let small = pack(&body, Compression::default()).map(Bytes::from);
        Packed { kind, plain: body.into(), small }
    }

    pub(super) fn answer(&self, headers: &HeaderMap) -> Response {
        let packed = self.small.clone().filter(|_| is_taken(headers));
        respond(self.kind.clone(), self.plain.clone(), packed)
    }
}

/// An answer, by gzip if the client takes that and it is worth it.
pub(super) fn answer(kind: HeaderValue, body: Vec<u8>, headers: &HeaderMap) -> Response {
    // Fast rather than small: a scrape is packed each time anew.
    let packed =
        (is_taken(headers) && body.len() > WORTH_IT).then(|| pack(&body, Compression::fast())).flatten();
    respond(kind, body.into(), packed.map(Bytes::from))
}

fn is_taken(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT_ENCODING).iter().any(|value| takes_gzip(value.as_bytes()))
}

fn respond(kind: HeaderValue, plain: Bytes, packed: Option<Bytes>) -> Response {
    let is_packed = packed.is_some();
    let mut response = bytes(kind, packed.unwrap_or(plain));
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    if is_packed {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn pack(body: &[u8], how: Compression) -> Option<Vec<u8>> {
    static PROCESSORS: LazyLock<usize> =
        LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));
    /// Held while a body has further threads: others, at the same time, are packed by their own.
    static IS_PARTED: Mutex<()> = Mutex::new(());
    let parted = IS_PARTED.try_lock();
    let most = if parted.is_ok() { (*PROCESSORS).min(MOST_PARTS) } else { 1 };
    pack_in(body, how, (body.len() / PART).clamp(1, most))
}

/// Compresses a body in that number of parts at most.
fn pack_in(body: &[u8], how: Compression, parts: usize) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = body.chunks(body.len().div_ceil(parts).max(1)).collect();
    if parts.is_empty() {
        parts.push(body);
    }
    let last = parts.len() - 1;
    let work = |at: usize| deflate(parts[at], how, at == last);
    let packed = thread::scope(|scope| {
        let work = &work;
        let begin =
            |at| thread::Builder::new().name("serve-pack".into()).spawn_scoped(scope, move || work(at));
        let others: Vec<_> = (1..=last).map(|at| (at, begin(at))).collect();
        let first = work(0);
        let others = others.into_iter().map(|(at, thread)| match thread {
            Ok(thread) => thread.join().ok().flatten(),
            // There are no more threads: this one does it.
            Err(_) => work(at),
        });
        std::iter::once(first).chain(others).collect::<Option<Vec<_>>>()
    })?;
    let mut member = Vec::with_capacity(packed.iter().map(|(part, _)| part.len()).sum::<usize>() + 18);
    member.extend(HEAD);
    let mut sum = Crc::new();
    for (part, own) in &packed {
        member.extend(part);
        sum.combine(own);
    }
    member.extend(sum.sum().to_le_bytes());
    member.extend(sum.amount().to_le_bytes());
    Some(member)
}

/// A part of a stream, compressed, and its checksum.
fn deflate(part: &[u8], how: Compression, is_last: bool) -> Option<(Vec<u8>, Crc)> {
    let mut sum = Crc::new();
    sum.update(part);
    let mut packed = Vec::with_capacity(part.len() / 4 + 64);
    let mut packer = Compress::new(how, false);
    let flush = if is_last { FlushCompress::Finish } else { FlushCompress::Sync };
    loop {
        let taken = usize::try_from(packer.total_in()).ok()?;
        let status = packer.compress_vec(&part[taken..], &mut packed, flush).ok()?;
        let is_taken = packer.total_in() == part.len() as u64;
        // If there is room left, all of it has come out.
        let is_flushed = is_taken && packed.len() < packed.capacity();
        let is_done = if is_last { status == Status::StreamEnd } else { is_flushed };
        if is_done {
            return Some((packed, sum));
        }
        packed.reserve(packed.capacity().max(PART));
    }
}

fn takes_gzip(value: &[u8]) -> bool {
    let value = String::from_utf8_lossy(value).to_ascii_lowercase();
    value.split(',').any(|part| {
        let mut words = part.split(';').map(str::trim);
        let is_gzip = words.next().is_some_and(|name| ["gzip", "x-gzip", "*"].contains(&name));
        let is_refused = words.any(|word| {
            word.strip_prefix("q=").is_some_and(|q| q.parse::<f64>().is_ok_and(|quality| quality <= 0.0))
        });
        is_gzip && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn parts_are_one_member_of_gzip() {
        let line =
            |n: u32| format!("dormouse_polls_total{{group=\"GET /{}\"}} {n}\n", n.wrapping_mul(0x9e37_79b9));
        let long: String = (0..4000).map(line).collect();
        for body in ["", "a", &long] {
            for parts in 1..6 {
                let packed = pack_in(body.as_bytes(), Compression::fast(), parts).unwrap();
                let (mut member, mut read) = (GzDecoder::new(&packed[..]), String::new());
                member.read_to_string(&mut read).unwrap();
                assert_eq!(read, body, "{parts} parts");
                assert!(member.into_inner().is_empty(), "more than one member");
            }
        }
    }

    #[test]
    fn gzip_is_for_who_takes_it() {
        for (value, expected) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("*", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0, br", false),
            ("br", false),
            ("", false),
        ] {
            assert_eq!(takes_gzip(value.as_bytes()), expected, "{value}");
        }
    }
}
