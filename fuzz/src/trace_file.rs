//! The reader of traces ends on any file, and what it has read is what is written again.

use std::io::Write as _;

use dormouse_lab::faults::{FaultOp, FaultWriter, is_trace, read};
use flate2::Compression;
use flate2::write::GzEncoder;

/// The first byte says whether the rest is a file, or what is compressed in one.
///
/// # Panics
///
/// When a trace that was read cannot be written, or is then another one.
pub fn check(bytes: &[u8]) {
    let Some((&first, rest)) = bytes.split_first() else { return };
    if first == 0 {
        come_back(rest);
    } else {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
        encoder.write_all(b"dmfault1").and_then(|()| encoder.write_all(rest)).expect("memory");
        come_back(&encoder.finish().expect("memory"));
    }
}

fn come_back(file: &[u8]) {
    let begins = is_trace(file).expect("memory can be read");
    let Ok(ops) = read(file) else { return };
    assert!(begins);
    let mut writer = FaultWriter::new(Vec::new());
    for op in &ops {
        writer.put(op).expect("an operation that was read");
    }
    let again: Vec<FaultOp> = read(&writer.finish().expect("memory")[..]).expect("a trace");
    assert_eq!(again, ops);
}
