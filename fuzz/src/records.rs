//! The reader of records ends on any bytes, and says nothing after an error.

use dormouse::record::{HEADER, Reader};

/// Bytes are what a service says it has recorded.
///
/// # Panics
///
/// When there are more records than fit, or one after an error.
pub fn check(bytes: &[u8]) {
    let (mut records, mut is_over) = (0, false);
    for record in Reader::new(bytes) {
        assert!(!is_over, "after an error");
        match record {
            Ok(record) => {
                records += 1;
                for value in &record.values {
                    assert!(!value.to_string().contains('\u{1b}'), "a terminal would obey it");
                }
            }
            Err(malformed) => {
                assert!(malformed.at < bytes.len());
                is_over = true;
            }
        }
    }
    assert!(records * HEADER <= bytes.len());
}
