//! A request line becomes a request or an error; a request comes back as it went; globs are parsed
//! and matched in bounded time, whatever they are.

use dormouse::keys::Selector;
use dormouse_protocol::{KeysRequest, Note, OffRequest, OnRequest, Op, Request, ResetRequest, TraceRequest};

/// Names to match globs with.
const NAMES: [&str; 3] = ["db.query", "GET /menu", ""];

/// Bytes are a line of the protocol.
///
/// # Panics
///
/// When a request that was read is another one when it is written and read again.
pub fn check(bytes: &[u8]) {
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        let written = serde_json::to_vec(&request).expect("our own types serialise");
        assert_eq!(serde_json::from_slice::<Request>(&written).expect("our own line"), request);
        match &request.op {
            Op::Keys(KeysRequest { glob: Some(glob) })
            | Op::On(OnRequest { glob, .. })
            | Op::Off(OffRequest { glob, .. })
            | Op::Reset(ResetRequest { glob })
            | Op::Trace(TraceRequest { glob }) => select(glob),
            _ => {}
        }
    }
    if let Ok(note) = serde_json::from_slice::<Note>(bytes) {
        serde_json::to_vec(&note).expect("our own types serialise");
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        select(text);
    }
}

fn select(globs: &str) {
    if let Ok(selector) = Selector::parse(globs) {
        assert_eq!(selector.as_str(), globs);
        for name in NAMES {
            selector.matches_at(name, "src/main.rs", 77);
        }
    }
}
