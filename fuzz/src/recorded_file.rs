//! The reader of a recorder's files ends on any bytes, holds little of them, and says where a fault
//! is.

use std::io::Write as _;

use dormouse_protocol::{FilePart, FileReader, MAX_FILE_ANSWER, MAX_FRAME};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Bytes are a file, or what is packed in one.
///
/// # Panics
///
/// When a part is longer than allowed, or a fault lies behind the end.
pub fn check(bytes: &[u8]) {
    read(bytes);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
    gzip.write_all(bytes).expect("memory takes it");
    read(&gzip.finish().expect("memory takes it"));
}

fn read(file: &[u8]) {
    let Ok(mut reader) = FileReader::new(file) else { return };
    loop {
        match reader.next() {
            Ok(Some(FilePart::Answer { json, .. })) => assert!(json.len() <= MAX_FILE_ANSWER),
            Ok(Some(FilePart::Frame(frame))) => assert!((5..=MAX_FRAME + 4).contains(&frame.len())),
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(why) => {
                assert!(!why.what.is_empty());
                return;
            }
        }
    }
}
