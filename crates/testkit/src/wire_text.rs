//! Protocol buffers as text, for snapshots: a line for each field, with its number.
//!
//! The wire does not tell text, bytes and messages apart. A field that reads as text is text, one
//! that reads as a message is a message, and others are bytes.

use std::fmt::Write as _;

/// The fields of a message, those of inner messages below them.
///
/// # Panics
///
/// If the bytes are no message.
pub fn wire_text(message: &[u8]) -> String {
    let mut text = String::new();
    assert!(write(message, 0, &mut text).is_some(), "{message:x?} is no message");
    text
}

fn write(mut message: &[u8], depth: usize, text: &mut String) -> Option<()> {
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let number = key >> 3;
        if number == 0 {
            return None;
        }
        let _ = write!(text, "{:1$}{number}", "", depth * 2);
        let length = match key & 7 {
            0 => {
                let _ = writeln!(text, ": {}", varint(&mut message)?);
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (field, rest) = message.split_at_checked(length)?;
        message = rest;
        let is_text = |it: &&str| !it.chars().any(|c| c.is_control() && c != '\n');
        let mut inner = String::new();
        if key & 7 == 2
            && let Some(field) = str::from_utf8(field).ok().filter(is_text)
        {
            let _ = writeln!(text, ": {field:?}");
        } else if key & 7 == 2 && write(field, depth + 1, &mut inner).is_some() {
            let _ = write!(text, "\n{inner}");
        } else {
            let _ = writeln!(text, ": {field:02x?}");
        }
    }
    Some(())
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
