//! A reader of OpenTelemetry's contexts, written from the standards' texts alone: OTEP 4719 for the
//! process, OTEP 4947 for its threads. It runs in another process than the writer.

mod context;
mod slot;
mod tracee;

use std::collections::BTreeMap;

pub use context::{ReadProcess, process_context};
pub use slot::ThreadSlot;
pub use tracee::{Tracee, memory};

use context::utf8;

/// The length of a record before its attributes.
const RECORD_HEADER: usize = 28;

/// The contents of a thread's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadContext {
    /// The id of the active span's trace; zeros if there is none.
    pub trace_id: [u8; 16],
    /// The id of the active span.
    pub span_id: [u8; 8],
    /// Attributes, by their keys.
    pub attributes: BTreeMap<String, String>,
}

impl ThreadSlot {
    /// The record of a thread that is stopped; `None` if it shows none. Panics if the record
    /// violates the standard.
    pub fn read(&self, tracee: &Tracee, keys: &[String]) -> Option<ReadContext> {
        let slot = self.address(tracee)?;
        let [pointer] = memory::<u64, 1>(tracee.pid, slot)?;
        if pointer == 0 {
            return None;
        }
        assert_eq!(pointer % 2, 0, "a record is aligned to two bytes");
        let header: [u8; RECORD_HEADER] = memory(tracee.pid, pointer).expect("a record");
        let [valid, flags] = [header[24], header[25]];
        assert_eq!((valid, flags), (1, 0), "nothing but a whole record without a span");
        let size = usize::from(u16::from_ne_bytes([header[26], header[27]]));
        assert!(RECORD_HEADER + size <= 640, "{size} bytes of attributes");
        let mut bytes = Vec::new();
        for at in 0..size {
            bytes.extend(memory::<u8, 1>(tracee.pid, pointer + (RECORD_HEADER + at) as u64).unwrap());
        }
        let (mut attributes, mut rest) = (BTreeMap::new(), &bytes[..]);
        while let [key, length, after @ ..] = rest {
            let (value, after) = after.split_at(usize::from(*length));
            let key = keys.get(usize::from(*key)).expect("a key of the process context");
            attributes.insert(key.clone(), utf8(value));
            rest = after;
        }
        assert!(rest.is_empty(), "half an attribute");
        Some(ReadContext {
            trace_id: header[..16].try_into().unwrap(),
            span_id: header[16..24].try_into().unwrap(),
            attributes,
        })
    }
}
