//! Bodies that are compressed for clients that accept it.

use std::io::Write as _;

use axum::body::Bytes;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::answers::bytes;

/// Shorter ones fit into a packet as they are.
const WORTH_IT: usize = 1400;

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
    let mut packer = GzEncoder::new(Vec::with_capacity(body.len() / 4), how);
    packer.write_all(body).ok()?;
    packer.finish().ok()
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
    use super::*;

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
