//! `GET /brochure?guest=Alice`: compression of a body, on the worker: about half a millisecond.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
};

use axum::{
    extract::{Query, rejection::QueryRejection},
    http::{
        HeaderMap, HeaderName,
        header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, VARY},
    },
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};
use serde::Deserialize;

use crate::{
    instrument::{probe, tracing},
    routes::refusal::Refusal,
    teas::TEAS,
};

/// The longest name of a guest, in bytes.
const MAX_GUEST: usize = 64;

const TEXT: (HeaderName, &str) = (CONTENT_TYPE, "text/plain; charset=utf-8");

/// Whom it is for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reader {
    #[serde(default = "anybody")]
    guest: String,
}

fn anybody() -> String {
    "our guest".into()
}

/// A brochure addressed to its reader, which is why it is not compressed once for all.
pub(super) async fn send(
    headers: HeaderMap,
    reader: Result<Query<Reader>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(Reader { guest }) = reader?;
    if guest.len() > MAX_GUEST {
        return Err(Refusal::bad_request(format!("guest has {} bytes, may have {MAX_GUEST}", guest.len())));
    }
    let plain = print(&guest);
    if !takes_gzip(&headers) {
        probe!("brochure.plain", bytes = plain.len(), guest);
        return Ok(([TEXT, (VARY, "accept-encoding")], plain).into_response());
    }
    let packed =
        pack(plain.as_bytes()).map_err(|error| Refusal::failed("the brochure was not compressed", &error))?;
    probe!("brochure.packed", plain = plain.len(), packed = packed.len(), guest);
    tracing::debug!(plain = plain.len(), packed = packed.len(), guest, "brochure sent");
    Ok(([TEXT, (VARY, "accept-encoding"), (CONTENT_ENCODING, "gzip")], packed).into_response())
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|coding| coding.trim() == "gzip")
}

/// Each tea, praised, and how strong it gets at which heat after how long.
fn print(guest: &str) -> String {
    let mut text = format!("For {guest}, with the compliments of the house.\n");
    for tea in &TEAS {
        let _ = writeln!(text, "\n{}: {}.", tea.name, tea.notes);
        for celsius in (60..=100).step_by(5) {
            for minutes in 1..=5 {
                let body = 100.0 * tea.flavour[0].mul_add(0.5, 0.5);
                let strength =
                    body * (f64::from(celsius) / 100.0).powi(3) * (1.0 - (-0.4 * f64::from(minutes)).exp());
                let _ = writeln!(text, "  {celsius} °C for {minutes} min: strength {strength:.1}");
            }
        }
    }
    text
}

fn pack(plain: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn a_packed_brochure_unpacks_to_the_same_text() {
        let plain = print("Alice");
        let packed = pack(plain.as_bytes()).unwrap();
        assert!(packed.len() < plain.len() / 3, "{} of {}", packed.len(), plain.len());
        let mut unpacked = String::new();
        GzDecoder::new(packed.as_slice()).read_to_string(&mut unpacked).unwrap();
        assert_eq!(unpacked, plain);
    }
}
